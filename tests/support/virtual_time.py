"""An event loop whose time is virtual: it jumps to the next timer, so hours pass in seconds and runs are repeatable."""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tests.support.memory.clock import START

T = TypeVar("T")


class Stalled(Exception):
    """Nothing is ready and no timer is set: the program waits for something that never comes."""


class _Selector(selectors.SelectSelector):
    """Does not wait: the loop's time goes forward instead."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stalled
        self.loop.advance(max(timeout, 0.0))
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Without I/O: only timers and what is ready."""

    def __init__(self) -> None:
        selector = _Selector()
        self._elapsed = 0.0
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass in which nothing runs, as when the machine is suspended."""
        self._elapsed += seconds


class VirtualClock:
    """ports.clock.Clock that reads the time of the running loop."""

    jumped_at: datetime | None = None
    stepped_ahead = timedelta()

    def now(self) -> datetime:
        return START + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
