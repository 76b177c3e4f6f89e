"""Checks of a process's audit file and of the database rebuilt from it."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.support.process import Process, run_command


def audit_lines(process: Process) -> list[dict[str, Any]]:
    """The complete lines of the process's audit file; the last line may be incomplete while the process writes."""
    text = (process.folder / "var/gateway/audit.log").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def tool_settings(process: Process) -> dict[str, str]:
    """The process's settings, for a command on the same data."""
    return {name: value for name, value in process.settings.items() if name != "SWITCHYARD_PORT"}


async def check_audit(process: Process, tmp_path: Path) -> None:
    """Stop the process, verify its audit file, and compare a database rebuilt from the file with the live one."""
    assert await asyncio.to_thread(process.stop) == 0
    settings = tool_settings(process)
    audit, rebuilt = str(process.folder / "var/gateway/audit.log"), str(tmp_path / "rebuilt")
    # The commands only read the process's files, so they can run at the same time.
    verified, digested, replayed = await asyncio.gather(
        asyncio.to_thread(run_command, "audit", "verify", **settings),
        asyncio.to_thread(run_command, "db", "digest", "--json", **settings),
        asyncio.to_thread(run_command, "replay", audit, "--json", SWITCHYARD_DATA_DIR=rebuilt),
    )
    for command in (verified, digested, replayed):
        assert command.returncode == 0, command.stdout + command.stderr
    assert json.loads(replayed.stdout)["digest"] == json.loads(digested.stdout)["digest"]
