"""The commands of docs/guide/pdca.md, pasted into a shell against a real `switchyard up`."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import ROOT, Process, clean_environment

GUIDE = ROOT / "docs" / "guide" / "pdca.md"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(tmp_path, SWITCHYARD_BACKOFFICE="true")
    await process.start()
    yield process
    process.close()


class Shell:
    """One bash that a person pastes commands into."""

    MARK = "=== done ==="

    def __init__(self, bash: asyncio.subprocess.Process, url: str) -> None:
        self._bash = bash
        self._url = url

    @classmethod
    async def open(cls, process: Process) -> "Shell":
        environment = clean_environment(**process.settings)
        pipe = asyncio.subprocess.PIPE
        bash = await asyncio.create_subprocess_exec("bash", cwd=ROOT, env=environment, stdin=pipe, stdout=pipe)
        return cls(bash, process.url)

    async def paste(self, commands: str) -> str:
        """Return what the commands print."""
        assert self._bash.stdin is not None and self._bash.stdout is not None
        pasted = commands.replace("http://127.0.0.1:8081", self._url)
        self._bash.stdin.write(f"{pasted}\necho; echo '{self.MARK}'\n".encode())
        output = await self._bash.stdout.readuntil(self.MARK.encode())
        return output.decode().removesuffix(self.MARK).strip()

    async def close(self) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        await self._bash.wait()


@pytest.fixture
async def shell(process: Process) -> AsyncIterator[Shell]:
    shell = await Shell.open(process)
    yield shell
    await shell.close()


async def test_the_guide_works_as_printed(shell: Shell) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 6
    register, token, one, everything, progress, listing = blocks
    assert await shell.paste(register) == "strat.meanrev.m1 is registered"
    assert await shell.paste(token) == ""
    first: dict[str, Any] = json.loads(await shell.paste(one))
    assert set(first) == {"request_id", "accepted_at"}
    assert json.loads(await shell.paste(one)) == first
    bulk = json.loads(await shell.paste(everything))
    shown = json.loads(await shell.paste(f"REQUEST_ID={bulk['request_id']}\n{progress}"))
    assert (shown["request_id"], shown["operation"], shown["dry_run"]) == (bulk["request_id"], "recheck_all", False)
    assert [item["strategy"] for item in shown["items"]] == ["strat.meanrev.m1"]
    assert shown["progress"]["total"] == 1
    listed = json.loads(await shell.paste(listing))
    assert (listed["page"], listed["page_size"], listed["total"]) == (1, 50, len(listed["items"]))


def test_the_samples_of_the_guide_are_those_of_the_specification() -> None:
    text = GUIDE.read_text("utf-8")
    for line in (
        '"strategies":["strat.meanrev.m1"],',
        '"params":{"recalc_metrics":["sharpe"]}',
        '"filter":{"tags_any":["daily"],"health":["unknown"]},',
        '-H "Idempotency-Key: 01J8TPZ7YJ1E1X4C5N9ZP3M3QA" \\',
        'curl -sS "$API/gui/strategies?health=healthy&sort=last_checked_at.desc&page=1&page_size=50" \\',
    ):
        assert line in text
