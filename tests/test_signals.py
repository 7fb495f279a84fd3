"""Signals that stop a process, whatever it does at that moment."""

from __future__ import annotations

import os
import signal
from threading import Event, Thread

import pytest

from headrace.threads import calling, stopped_by_signals


def test_a_handler_does_not_wait_for_what_the_interrupted_thread_holds() -> None:
    stopped = Event()

    def interrupted() -> None:
        with stopped._cond:  # type: ignore[attr-defined]  # as in the middle of `wait` and `set`
            calling(stopped.set)(signal.SIGTERM, None)

    thread = Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert stopped.wait(10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_stop_and_the_handlers_of_before_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    stopped = Event()
    with stopped_by_signals(stopped.set):
        os.kill(os.getpid(), number)
        assert stopped.wait(10)
    assert signal.getsignal(number) is before
