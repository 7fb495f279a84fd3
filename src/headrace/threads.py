"""Background threads that do not die silently: the first that ends with an exception is the failure of them all.

And signals, which interrupt a thread wherever it is.
"""

import _thread
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from types import FrameType

from headrace.errors import EngineError, Error

__all__ = ["Threads", "calling", "stopped_by_signals"]


def calling(stop: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
    """A handler of signals that calls a function in a thread of its own.

    In the thread that is interrupted, `stop` could wait for a lock that this very thread holds: that of an Event in
    the middle of `wait`, or of `set` for a signal before.
    """

    def handle(_: int, __: FrameType | None) -> None:
        _thread.start_new_thread(stop, ())

    return handle


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and Ctrl-C call `stop` meanwhile."""
    before = {number: signal.signal(number, calling(stop)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Threads:
    """The background threads of a run. Whoever waits for the run looks at `failure`."""

    def __init__(self, log: Path | None = None) -> None:
        """The traceback of a thread that died is appended to `log`."""
        self.failure: Error | None = None
        self._log = log
        self._lock = Lock()

    def new(self, name: str, target: Callable[[], None]) -> Thread:
        """A daemon thread, to be started by the caller."""

        def run() -> None:
            try:
                target()
            except BaseException as error:
                self._fail(name, error)

        return Thread(target=run, name=f"headrace {name}", daemon=True)

    def start(self, name: str, target: Callable[[], None]) -> Thread:
        thread = self.new(name, target)
        thread.start()
        return thread

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            raise self.failure

    def _fail(self, name: str, error: BaseException) -> None:
        failure = error if isinstance(error, Error) else self._died(name, error)
        with self._lock:
            self.failure = self.failure or failure

    def _died(self, name: str, error: BaseException) -> Error:
        where = "" if self._log is None else f" with the traceback in {self._log}"
        reason = traceback.format_exception_only(error)[-1].strip()
        died = EngineError(
            f"the background thread {name!r} died: {reason}",
            next_step=f"restart the app; processing resumes where it stopped. This is a defect: report it{where}",
        )
        died.__cause__ = error
        if self._log is not None:
            try:
                self._log.parent.mkdir(parents=True, exist_ok=True)
                with self._log.open("a") as log:
                    traceback.print_exception(error, file=log)
            except OSError:
                pass  # the disk may be what it died of; the reason is kept either way
        return died
