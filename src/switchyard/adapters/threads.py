"""Threads for the blocking calls of one adapter, which answer the event loop that asked.

An executor of the standard library makes two futures, a lock and some sixty calls for each piece of work, and an order
that is alone needs four pieces.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class WorkerThreads:
    """Run calls in the order in which they come; with one thread, one after the other."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def call(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> "asyncio.Future[_Result]":
        """Run the function, unless the future is cancelled before it begins; the future is the running event loop's."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()

        def run() -> None:
            if future.cancelled():
                return
            result: Any = None
            problem: BaseException | None = None
            try:
                result = function(*args, **options)
            except BaseException as error:
                problem = error
            with contextlib.suppress(RuntimeError):  # the loop was closed: there is nothing to answer
                loop.call_soon_threadsafe(_answer, future, result, problem)

        self._calls.put(run)
        return future

    def call_and_wait(self, function: Callable[[], object]) -> None:
        """Run the function for another thread, and return once it has ended; its error is raised here."""
        ended = threading.Event()
        problems: list[BaseException] = []

        def run() -> None:
            try:
                function()
            except BaseException as error:
                problems.append(error)
            ended.set()

        self._calls.put(run)
        ended.wait()
        for problem in problems:
            raise problem

    def shutdown(self) -> None:
        """Run what was called before this, and end the threads."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # a result must not live until the next call


def _answer(future: "asyncio.Future[Any]", result: object, problem: BaseException | None) -> None:
    if future.done():
        return  # it was cancelled
    if problem is None:
        future.set_result(result)
    else:
        future.set_exception(problem)
