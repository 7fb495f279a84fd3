"""Calls a worker's function, plain or async, and stops waiting for it when its time is up."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

__all__ = ["AsyncCaller", "Caller", "PlainCaller"]


class Caller(ABC):
    """For one thread: it calls one function at a time."""

    @abstractmethod
    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        """Begin the call. A call that is given up goes on where it cannot be stopped, and its result is dropped."""

    @abstractmethod
    def give_up(self, call: "Future[Any]") -> None:
        """Stop waiting for a call."""


class PlainCaller(Caller):
    """Calls in a thread. Python cannot end a thread: one that hangs is left behind, and a new one takes its place."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] | None = None

    def call(self, function: Callable[[], Any]) -> "Future[Any]":
        if self._work is None:
            self._work = SimpleQueue()
            threading.Thread(target=_run, args=(self._work,), name=self._name, daemon=True).start()
        future: Future[Any] = Future()
        self._work.put((function, future))
        return future

    def give_up(self, call: "Future[Any]") -> None:
        if self._work is not None:
            self._work.put(None)  # the thread ends when its function returns
            self._work = None


class AsyncCaller(Caller):
    """Calls on the event loop that all slots of a worker share. A call that is given up is cancelled."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(function(), self._loop)

    def give_up(self, call: "Future[Any]") -> None:
        call.cancel()


def _run(work: "SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]") -> None:
    while (given := work.get()) is not None:
        function, future = given
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
