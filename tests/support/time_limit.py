"""Ends a test that exceeds the time limit of pytest-timeout, also while an event loop runs.

pytest-timeout raises from its SIGALRM handler. When the signal arrives while the event loop runs a callback or a task,
asyncio stores the exception there and the test hangs on. So while a loop runs, the first alarm cancels the test's task
instead: the test fails with a traceback that ends at the `await` that hangs.
"""

import asyncio
import contextlib
import signal
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest
import pytest_asyncio.plugin

# Enough for the fixtures of a cancelled test to end their processes; then pytest-timeout raises, again and again.
GRACE_SECONDS = 30.0


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Put the cancelling handler in front of the one that pytest-timeout installs."""
    result = yield
    fail = signal.getsignal(signal.SIGALRM)
    if settings.method != "signal" or not callable(fail):
        return result

    def on_alarm(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS, GRACE_SECONDS)
        loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
        if loop is None:
            fail(number, frame)
        else:
            reason = f"{item.nodeid} exceeded its limit of {settings.timeout} s"
            loop.call_soon_threadsafe(cancel_tasks, {str(item.path), pytest_asyncio.plugin.__file__}, reason)

    signal.signal(signal.SIGALRM, on_alarm)
    return result


def cancel_tasks(files: set[str], reason: str) -> None:
    """Cancel the tasks whose coroutine is defined in one of these files: the test's own and those of its fixtures."""
    for task in asyncio.all_tasks():
        code = getattr(task.get_coro(), "cr_code", None)
        if code is not None and code.co_filename in files:
            task.cancel(reason)
