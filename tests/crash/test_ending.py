"""A process ends, and its log never fails its caller."""

import io
import subprocess
import sys

import pytest
import structlog

from switchyard.telemetry.logs import configure_logs

HANGS = """
import asyncio, threading
from switchyard.entrypoints.cli import failures
failures.END_SECONDS_MAX = 0.2

async def main():
    # A thread that Python waits for at its exit, as those of an executor.
    threading.Thread(target=threading.Event().wait).start()
    {end}

failures.run_to_end(main())
"""


@pytest.mark.parametrize(
    "end", ["return", "raise OSError('no space left')", "failures.bound_the_end(); await asyncio.Event().wait()"]
)
def test_a_process_that_hangs_at_its_end_exits_all_the_same(end: str) -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS.format(end=end)], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 70
    assert b"most recent call first" in ended.stderr  # where it hung


class FullStream(io.StringIO):
    """A stream on a disk that is full for a while."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_that_cannot_be_written_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FullStream()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs("info", "json")
    try:
        log = structlog.get_logger()
        log.error("first_event")
        log.critical("second_event")
        stream.is_full = False
        log.info("third_event")
    finally:
        structlog.reset_defaults()
    assert [line.split('"event": "')[1].split('"')[0] for line in stream.getvalue().splitlines()] == [
        "third_event",
        "log_lines_dropped",
    ]
    assert '"count": 2' in stream.getvalue()
