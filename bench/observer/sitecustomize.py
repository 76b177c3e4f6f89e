"""Python loads this at the start of an observed process, and of its children: it names the threads or counts calls.

It reads BENCH_OBSERVED, a folder, and BENCH_OBSERVE, `threads` or `calls`. It writes there: `PID.process` with the
command line, `PID.TID.thread` with a thread's name and the file that it works for. SIGUSR2 makes it write `PID.calls`,
the calls of each function by thread since the start, or, with `threads`, multiply pauses and timeouts by BENCH_PAUSES.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDER = Path(os.environ["BENCH_OBSERVED"])
COUNTS_CALLS = os.environ["BENCH_OBSERVE"] == "calls"
PACKAGE = f"{os.sep}switchyard{os.sep}"
# A thread that works for no file within so many calls has only its own name.
CALLS_UNTIL_NAMED_MAX = 1_000

_calls: list[tuple[int, dict[CodeType, int]]] = []


def _begin() -> None:
    signal.signal(signal.SIGUSR2, _write_calls if COUNTS_CALLS else _lengthen_pauses)
    if COUNTS_CALLS:
        _observe_thread()
    _write(f"{os.getpid()}.process", json.dumps([Path(word).name for word in sys.orig_argv[1:]]))
    threading.setprofile(lambda *_: _observe_thread())


def _observe_thread() -> None:
    """Replace the profiler of this thread, first with one that finds its name, then with one that counts or none."""
    counts: dict[CodeType, int] = {}
    file = f"{os.getpid()}.{threading.get_native_id()}.thread"
    seen = 0

    def name(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        if event == "call":
            seen += 1
            counts[frame.f_code] = counts.get(frame.f_code, 0) + 1
            # A database's threads have equal names: the first object with a path that they work for tells them apart.
            is_own = PACKAGE in frame.f_code.co_filename
            path = getattr(frame.f_locals.get("self"), "_path", None) if is_own else None
            if path is not None:
                _write(file, f"{threading.current_thread().name} {path}")
            if path is not None or seen == CALLS_UNTIL_NAMED_MAX:
                sys.setprofile(count if COUNTS_CALLS else None)

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            counts[frame.f_code] = counts.get(frame.f_code, 0) + 1

    if COUNTS_CALLS:
        _calls.append((threading.get_native_id(), counts))
    if threading.get_native_id() == os.getpid():
        sys.setprofile(count)
    else:
        _write(file, f"{threading.current_thread().name} ")
        sys.setprofile(name)


def _write_calls(*_: Any) -> None:
    rows = [
        (thread, code.co_filename, code.co_qualname, code.co_firstlineno, number)
        for thread, counts in list(_calls)
        for code, number in dict(counts).items()
    ]
    _write(f"{os.getpid()}.calls", json.dumps(rows))


def _lengthen_pauses(*_: Any) -> None:
    """Let what happens every so many seconds keep its share of the work of a process that Valgrind slows down."""
    import uvloop

    factor = float(os.environ["BENCH_PAUSES"])
    call_later, wait = uvloop.Loop.call_later, threading.Condition.wait

    def slow_call_later(loop: Any, delay: float, *arguments: Any, **named: Any) -> Any:
        return call_later(loop, delay * factor, *arguments, **named)

    def slow_call_at(loop: Any, when: float, *arguments: Any, **named: Any) -> Any:
        return call_later(loop, (when - loop.time()) * factor, *arguments, **named)

    def slow_wait(condition: threading.Condition, timeout: float | None = None) -> bool:
        return wait(condition, None if timeout is None else timeout * factor)

    methods = ((uvloop.Loop, "call_later"), (uvloop.Loop, "call_at"), (threading.Condition, "wait"))
    for (owner, method), slow in zip(methods, (slow_call_later, slow_call_at, slow_wait), strict=True):
        setattr(owner, method, slow)
    sys.setswitchinterval(sys.getswitchinterval() * factor)


def _write(name: str, text: str) -> None:
    """Write a file that a reader finds whole or not at all."""
    unfinished = FOLDER / f"{name}.unfinished"
    unfinished.write_text(text, "utf-8")
    unfinished.replace(FOLDER / name)


_begin()
os.register_at_fork(after_in_child=_begin)
