"""A restored database, resolved by the commands of docs/operate/restore.md alone."""

import asyncio
import re
import subprocess
from pathlib import Path

import aiohttp

from tests.support.cluster import Cluster
from tests.support.operations import PAGES
from tests.support.orders import place, until_all_final
from tests.support.polling import until
from tests.support.process import COMMAND, Process, clean_environment


def block_after(heading: str) -> str:
    """The first shell block of the page after these words."""
    page = (PAGES / "restore.md").read_text("utf-8")
    found = re.search(r"```sh\n(.*?)```", page[page.index(heading) :], flags=re.DOTALL)
    assert found is not None, heading
    return found[1]


def commands_after(heading: str, starting: str) -> str:
    """The commands of such a block that begin with these words."""
    return "\n".join(line for line in block_after(heading).splitlines() if line.startswith(starting))


async def run_shell(script: str, process: Process) -> str:
    """Run commands of the page with the settings of the process, as an operator would."""

    def run() -> subprocess.CompletedProcess[str]:
        environment = clean_environment(**process.settings)
        environment["PATH"] = f"{COMMAND.parent}:{environment['PATH']}"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=environment,
            cwd=process.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    done = await asyncio.to_thread(run)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


async def test_a_restored_sqlite_backup_is_brought_back_by_the_page(
    cluster: Cluster, tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    broker = await cluster.broker(dedupe="forever").start()
    process = await cluster.process(name="site", **broker.client_settings()).start()
    for number in range(5):
        await place(session, process, key=f"kept-{number}")
    await until_all_final(session, process)
    assert process.stop() == 0
    data, backup = Path(process.settings["SWITCHYARD_DATA_DIR"]), tmp_path / "backup"
    backup.mkdir()
    (backup / "switchyard.db").write_bytes((data / "switchyard.db").read_bytes())
    await process.start()
    for number in range(5):
        await place(session, process, key=f"lost-{number}")
    await until_all_final(session, process)
    assert process.stop() == 0

    await run_shell(block_after("**A SQLite backup**").replace("/backup", str(backup)), process)
    process.spawn()
    assert process.wait() == 4  # it does not send from an older database
    assert "switchyard db restored" in process.log
    assert "epoch 2" in await run_shell(block_after("## 3. Declare it"), process)
    await process.start()

    async def is_settled() -> bool:
        return "no outbox rows" in await run_shell(commands_after("## 5. Check", "switchyard outbox list"), process)

    await until(is_settled, lambda: process.log, pause_seconds=0.5)
    # A client repeats the requests that the database has lost: the venue executed them before.
    for number in range(5):
        await place(session, process, key=f"lost-{number}")
    await until_all_final(session, process)
    broker.check_nothing_twice()
    assert broker.orders().total() == 10
    assert process.stop() == 0
    assert "valid" in await run_shell(commands_after("## 5. Check", "switchyard audit verify"), process)
