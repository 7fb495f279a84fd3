"""Views: all events of a topic through one query into PostgreSQL, which keeps the last row of each card."""

import shutil
from dataclasses import dataclass, replace
from functools import partial

import psycopg
from pyspark.sql import DataFrame

import headrace as hr
from benchmarks.bench import Bench
from benchmarks.engine.job import BATCH, LATENESS, SCHEMA, Setting, Way, busy_seconds, fill, strictly
from benchmarks.engine.rates import in_turn
from benchmarks.report import Section
from headrace.config.run import RunConfig
from headrace.engine.run.runner import Runner
from headrace.tables import EmbeddedPostgres

BY_HAND = "by hand"
GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")
COLUMNS = ("card", "id", "amount", "at")
ORDERED = "exactly-once, order_by"
SHARE = 4
"""Views get a part of the events that topics get."""


@dataclass(frozen=True)
class _Views:
    setting: Setting
    dsn: str

    def by_hand(self, number: int) -> float:
        """As one writes it: each batch copied into a temporary table, and merged into the view in one transaction."""
        setting, table = self.setting, f"by_hand_{number}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                f"CREATE TABLE {table} (card TEXT PRIMARY KEY, id BIGINT, amount DOUBLE PRECISION, at TIMESTAMPTZ)"
            )

        def write(frame: DataFrame, _: int) -> None:
            rows = frame.toPandas().drop_duplicates("card", keep="last")
            with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
                cursor.execute(f"CREATE TEMP TABLE batch (LIKE {table}) ON COMMIT DROP")
                with cursor.copy("COPY batch FROM STDIN") as copy:
                    for row in rows.itertuples(index=False):
                        copy.write_row(row)
                cursor.execute(
                    f"INSERT INTO {table} SELECT * FROM batch ON CONFLICT (card) DO UPDATE "
                    "SET id = excluded.id, amount = excluded.amount, at = excluded.at"
                )

        checkpoint = setting.folder / table
        rows = strictly(setting.raw()).select(*COLUMNS)
        query = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
        try:
            query.processAllAvailable()
            return busy_seconds(query)
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)

    def by_headrace(self, number: int, guarantee: str = "exactly-once", order_by: str | None = None) -> float:
        name = f"view{number}"
        app = hr.App(name, prefix=f"{name}.")
        source = self.setting.source
        payments = app.topic("payments", SCHEMA, key="card", event_time="at", lateness=LATENESS, topic=source)

        @app.view(key="card", guarantee=guarantee, order_by=order_by)
        def latest(rows: DataFrame = payments) -> DataFrame:  # type: ignore[assignment]
            return rows.select(*COLUMNS)

        home = self.setting.folder / name
        config = RunConfig(
            home=home,
            kafka=self.setting.address,
            postgres=self.dsn,
            max_records_per_batch=BATCH,
            create_inputs=False,
        )
        runner = Runner(app, config, self.setting.spark)
        runner.start()
        try:
            (query,) = self.setting.spark.streams.active
            runner.process_all_available()
            return busy_seconds(query)
        finally:
            runner.stop()
            shutil.rmtree(home, ignore_errors=True)


def run(bench: Bench) -> Section:
    options = replace(bench.options, events=bench.options.events // SHARE)
    address, source = bench.broker().address, "payments"
    fill(address, source, options.events)
    server = EmbeddedPostgres(options.folder / "postgres")
    dsn = server.start()
    try:
        views = _Views(Setting(bench.session(), address, options.folder, source, windowed=False), dsn)
        ways: dict[str, Way] = {BY_HAND: views.by_hand}
        ways |= {name: partial(views.by_headrace, guarantee=name) for name in GUARANTEES}
        ways[ORDERED] = partial(views.by_headrace, order_by="at")
        found = in_turn(ways, options.rounds, options.events)
    finally:
        server.stop()
    section = Section(
        "engine-views",
        "The engine: into a view",
        [
            f"{options.events:,} JSON events into a PostgreSQL table of 10,000 keys, embedded broker and PostgreSQL, "
            "batches of at most 500,000. By hand: PySpark with the same parsing; each batch goes to the driver, is "
            "copied into a temporary table and merged in one transaction, which makes it at-least-once. With order_by, "
            "the order of event times holds across batches: an older row does not replace a newer one."
        ],
        peer=BY_HAND,
    )
    for name in (*GUARANTEES, ORDERED):
        section.compare(name, "rate", found[name], found[BY_HAND], unit="/s")
    return section
