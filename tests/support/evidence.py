"""What a process leaves behind: its audit file, and the state that can be rebuilt from it."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.process import Process, run_command


def audit_lines(process: Process) -> list[dict[str, Any]]:
    """The complete lines of its audit file; the last one may still be on its way."""
    text = (process.folder / "var/gateway/audit.log").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def tool_settings(process: Process) -> dict[str, str]:
    """The process's settings for a command on the same data."""
    return {name: value for name, value in process.settings.items() if name != "SWITCHYARD_PORT"}


async def check_audit(process: Process, tmp_path: Path) -> None:
    """Stop it: the file verifies, and a database rebuilt from it has the live state."""
    assert await asyncio.to_thread(process.stop) == 0
    settings = tool_settings(process)
    audit, rebuilt = str(process.folder / "var/gateway/audit.log"), str(tmp_path / "rebuilt")
    # Each of them only reads what the process has left; most of their time is their own start.
    verified, digested, replayed = await asyncio.gather(
        asyncio.to_thread(run_command, "audit", "verify", **settings),
        asyncio.to_thread(run_command, "db", "digest", "--json", **settings),
        asyncio.to_thread(run_command, "replay", audit, "--json", SWITCHYARD_DATA_DIR=rebuilt),
    )
    for ended in (verified, digested, replayed):
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(replayed.stdout)["digest"] == json.loads(digested.stdout)["digest"]
