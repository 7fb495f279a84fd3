"""What harnesses share: Spark, a broker, and PostgreSQL if an app has views."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.engine import has_spark_context, start_session
from headrace.services import Addresses, Home, Services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Environment"]

MASTER = "local[2,4]"
# Tests run much code once, not some code often: compiling it well would take longer than it saves.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1"
ANY_PORT = "127.0.0.1:0"


class Environment:
    """Starts each part when it is first needed, and stops it at the end. Uses a Spark session that is running."""

    def __init__(self, folder: Path | None = None) -> None:
        self._stack = ExitStack()
        if folder is None:
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-testing-")))
        self.folder = folder
        self._services = Services(folder / "services")
        self._has_postgres = False
        self._addresses: Addresses | None = None
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> "SparkSession":
        from pyspark.sql import SparkSession

        if not has_spark_context():  # nobody has started one, or a test has stopped it
            settings = {"spark.driver.extraJavaOptions": JAVA_OPTIONS}
            self._spark = start_session("tests", home=self.folder / "spark", master=MASTER, settings=settings)
            self._stack.callback(self._spark.stop)
        elif self._spark is None:
            self._spark = SparkSession.builder.getOrCreate()
        assert self._spark is not None
        return self._spark

    def addresses(self, *, postgres: bool) -> Addresses:
        """Where the services are, started if they were not."""
        if self._addresses is None or (postgres and not self._has_postgres):
            if self._addresses is None:
                # As if it had been there the last time: the usual port is for those who mean to be found.
                home = Home(self._services.home.path)
                home.make()
                home.write({"broker": {"address": ANY_PORT}})
            self._addresses = self._stack.enter_context(self._services.used(kafka=True, postgres=postgres))
            self._has_postgres = postgres
        return self._addresses

    def new_folder(self, name: str) -> Path:
        """A folder that no other harness has."""
        (self.folder / "homes").mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder / "homes"))

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
