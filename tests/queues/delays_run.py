"""The delay service as a process that kills itself with SIGKILL at a named place, the n-th time it passes there."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config.run import RunConfig
from headrace.delivery import TransactionalProducer
from headrace.queues.delays import DelayService
from headrace.queues.index import DelayIndex

PLACES = ("read", "indexed", "before-transaction", "first-sent", "sent", "committed", "trimmed")


def struck(place: str, count: int) -> Callable[[str], None]:
    left = [count]

    def strike(here: str) -> None:
        if here == place:
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return strike


def around(owner: type, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    own: Any = getattr(owner, name)

    def wrapped(*arguments: Any, **named: Any) -> Any:
        before()
        result = own(*arguments, **named)
        after()
        return result

    setattr(owner, name, wrapped)


def main() -> None:
    address, home, place, count = sys.argv[1:]
    strike = struck(place, int(count))
    around(DelayIndex, "apply", lambda: strike("read"), lambda: strike("indexed"))
    around(TransactionalProducer, "transaction", lambda: strike("before-transaction"), lambda: None)
    around(TransactionalProducer, "send_record", lambda: None, lambda: strike("first-sent"))
    around(TransactionalProducer, "commit", lambda: strike("sent"), lambda: strike("committed"))
    around(DelayService, "_tidy", lambda: None, lambda: strike("trimmed"))
    service = DelayService(RunConfig(kafka=address, home=Path(home)), "killed", notice=print)
    signal.signal(signal.SIGTERM, lambda *_: service.stop())
    service.run()


if __name__ == "__main__":
    main()
