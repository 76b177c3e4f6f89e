"""The time limit ends a hanging test with a traceback, and the tests after it still run."""

import subprocess
import sys
from pathlib import Path

from tests.support.polling import DEADLINE_SECONDS
from tests.support.process import clean_environment

HANGING_TESTS = """
import asyncio, threading

async def keep_the_loop_busy():
    while True:
        sum(range(100_000))
        await asyncio.sleep(0)

async def test_awaits_forever():
    busy = asyncio.create_task(keep_the_loop_busy())
    await asyncio.Event().wait()

def test_blocks_forever():
    threading.Event().wait()

def test_runs_afterwards():
    pass
"""


def test_hanging_tests_fail_at_the_line_where_they_hang(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING_TESTS)
    options = ("-p", "tests.support.time_limit", "-o", "asyncio_mode=auto", "--timeout=1", "--rootdir=.")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_hanging.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert "2 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert ">       await asyncio.Event().wait()" in ended.stdout
    assert ">       threading.Event().wait()" in ended.stdout
