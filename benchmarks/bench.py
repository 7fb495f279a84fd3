"""What every scenario works with: a broker, a Spark session, and the folder they live in."""

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from tests import peers

from headrace.engine.session import start_session


@dataclass(frozen=True)
class Options:
    folder: Path
    rounds: int
    events: int
    seconds: float
    minutes: int = 5
    without_peer: bool = False
    peer_settings: tuple[str, ...] = ()


class Bench:
    def __init__(self, options: Options) -> None:
        self.options = options
        self._server: peers.Server | None = None
        self._session: SparkSession | None = None

    def broker(self) -> peers.Server:
        if self._server is None:
            self._server = peers.Headrace(self.options.folder / "broker", {"group.initial.rebalance.delay.ms": "0"})
            self._server.start()
        return self._server

    def session(self) -> SparkSession:
        if self._session is None:
            self._session = start_session("benchmarks", home=self.options.folder / "spark")
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
        if self._server is not None:
            self._server.kill()
            shutil.rmtree(self._server.home, ignore_errors=True)


def progress(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
