"""`switchyard demo` as a newcomer starts and leaves it: nothing stays behind, and nothing of the caller's is used."""

import os
import signal
from pathlib import Path

from tests.support.cluster import Cluster
from tests.support.polling import until
from tests.support.process import Process, run_command

PROCESSES = 4  # three brokers and the gateway


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    return [int(word) for word in text.split()]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A process that has ended and whose parent has not noticed yet is none.
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"


def files(folder: Path) -> list[str]:
    """The names in a folder; none where it is gone."""
    return [path.name for path in folder.glob("*")]


async def started(cluster: Cluster, name: str) -> tuple[Process, list[int]]:
    """A demo that has begun to trade, with settings around it that must not reach it, and its processes."""
    foreign = {"SWITCHYARD_DATABASE_URL": "postgresql://production/", "SOR_VENUES": "broker"}
    demo = cluster.process("demo", name, TMPDIR=str(cluster.folder), **foreign)
    demo.spawn()

    def trades() -> bool:
        assert demo.is_running, demo.log
        return "begin to trade" in demo.log

    await until(trades, lambda: demo.log, pause_seconds=0.1)
    found = children(demo.pid)
    assert len(found) == PROCESSES
    return demo, found


async def test_ctrl_c_and_a_kill_leave_no_process_and_no_folder_behind(cluster: Cluster) -> None:
    demo, processes = await started(cluster, "interrupted")
    folder = Path(demo.log.split(" gateway in ")[1].split()[0])
    assert "demo.env" in files(folder)
    demo.send(signal.SIGINT)
    assert demo.wait() == 130
    assert not [pid for pid in processes if is_alive(pid)]
    assert files(folder) == []

    demo, processes = await started(cluster, "killed")
    demo.kill()
    await until(lambda: not any(map(is_alive, processes)), pause_seconds=0.1)


def test_a_folder_with_other_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "switchyard.yaml").write_text("venues: {}\n", "utf-8")
    done = run_command("demo", "--folder", str(tmp_path))
    assert (done.returncode, "not an empty folder" in done.stderr) == (4, True), done.stderr
