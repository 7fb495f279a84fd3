"""What the benchmarks of Spark's part have in common: their options, one scenario after the other, their results."""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import report
from benchmarks.bench import Bench, Options, progress

__all__ = ["main", "options", "workplace"]


def main(
    package: str,
    about: str,
    scenarios: Mapping[str, Callable[[Bench], report.Section]],
    rounds: int,
    own_rounds: Mapping[str, int] | None = None,
) -> None:
    """`own_rounds` are those of scenarios that take fewer or more than the others."""
    parser = options(package, about, scenarios, rounds, events=2_000_000)
    parser.set_defaults(rounds=None)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a measurement of latency, or of a node")
    parser.add_argument("--minutes", type=int, default=5, help="of a topology: the first and the last are measured")
    parser.add_argument("--without-peer", action="store_true", help="of a topology: Headrace alone, in half the time")
    told = "of a topology: a setting of Spark's by hand, such as spark.sql.shuffle.partitions=2; repeatable"
    parser.add_argument("--peer-set", action="append", default=[], metavar="KEY=VALUE", help=told)
    chosen = parser.parse_args()
    with workplace(chosen.dir) as folder:
        facts = report.machine_facts(folder)
        for name in chosen.names or scenarios:
            progress(f"== {name}")
            taken = chosen.rounds or (own_rounds or {}).get(name, rounds)
            bench = Bench(
                Options(
                    folder=folder / name,
                    rounds=taken,
                    events=chosen.events,
                    seconds=chosen.seconds,
                    minutes=chosen.minutes,
                    without_peer=chosen.without_peer,
                    peer_settings=tuple(chosen.peer_set),
                )
            )
            bench.options.folder.mkdir()
            try:
                section = scenarios[name](bench)
            finally:
                bench.close()
            command = (
                f"python -m {package} --rounds {taken} --events {chosen.events} "
                f"--seconds {chosen.seconds:g} --minutes {chosen.minutes} "
                + "--without-peer " * chosen.without_peer
                + "".join(f"--peer-set {setting} " for setting in chosen.peer_set)
                + name
            )
            print(section.markdown(command, facts), flush=True)
            if not chosen.dry:
                report.write(section, command, facts)


def options(package: str, about: str, names: Iterable[str], rounds: int, events: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=about)
    parser.add_argument("names", nargs="*", choices=[[], *names], help="all of them unless named")
    parser.add_argument("--rounds", type=int, default=rounds, help="rounds of each way")
    parser.add_argument("--events", type=int, default=events)
    parser.add_argument("--dir", type=Path, default=Path(".build/bench"), help="where the data goes: a real disk")
    parser.add_argument("--dry", action="store_true", help="write no results")
    return parser


@contextmanager
def workplace(above: Path) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    above.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=above.resolve()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
