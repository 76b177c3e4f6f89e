"""The one way to wait for a condition: poll it until a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable

# Far above what any machine needs: only a defect reaches it.
DEADLINE_SECONDS = 60.0
# A condition that is not true soon is asked less often: most are requests, which cost the system under test the most.
PAUSE_GROWTH = 1.2
PAUSE_SECONDS_MAX = 0.05


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    message: Callable[[], str] = lambda: "",
    *,
    seconds_max: float = DEADLINE_SECONDS,
    pause_seconds: float = 0.01,
) -> None:
    """Return once the condition is true; fail with the message at the deadline.

    A condition that loads the system under test needs a longer pause, so as not to slow down what it waits for.
    """
    deadline = time.monotonic() + seconds_max
    while True:
        is_true = condition()
        if not isinstance(is_true, bool):
            is_true = await is_true
        if is_true:
            return
        assert time.monotonic() < deadline, f"still false after {seconds_max:.0f} s: {message()}"
        await asyncio.sleep(pause_seconds)
        pause_seconds = max(pause_seconds, min(pause_seconds * PAUSE_GROWTH, PAUSE_SECONDS_MAX))
