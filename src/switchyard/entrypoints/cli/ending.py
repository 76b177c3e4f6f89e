"""Runs a process to its end within a bound: one that has closed its ports must not stay alive, whatever hangs."""

import asyncio
import contextlib
import faulthandler
import os
import threading
from collections.abc import Coroutine
from typing import Any

from switchyard.entrypoints.cli.failures import DEFECT

# Requests, sends and the last commits have 5 to 6 s each. What is left after this time is recovered by the next start,
# as after a kill.
END_SECONDS_MAX = 60.0

_bounding = threading.Event()


def run_to_end(main: Coroutine[Any, Any, None]) -> None:
    """Run the process's coroutine; raises what it raises."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(main)
        finally:
            bound_the_end()  # before the runner waits for tasks and threads that are left


def bound_the_end() -> None:
    """From the first call on, the process has END_SECONDS_MAX to end by itself; then it exits with the code DEFECT."""
    if _bounding.is_set():
        return
    _bounding.set()
    timer = threading.Timer(END_SECONDS_MAX, _give_up)
    timer.daemon = True
    timer.start()


def _give_up() -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be full or closed
        faulthandler.dump_traceback(all_threads=True)
    os._exit(DEFECT)
