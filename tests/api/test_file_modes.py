"""Files of the server: only their owner can read them, whatever the umask and whoever created the folder."""

import os
import stat
from pathlib import Path

import aiohttp
import pytest

from switchyard.adapters.files.durable import replace_file
from tests.support.process import Process, run_command


def modes(*folders: Path) -> dict[str, int]:
    """The mode of each folder and of everything in it."""
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in paths}


def assert_private(*folders: Path) -> None:
    found = modes(*folders)
    assert len(found) > len(folders)
    for path, mode in found.items():
        assert mode == (0o700 if Path(path).is_dir() else 0o600), f"{path} has {mode:o}"


def widen(folder: Path) -> None:
    """Give the folder the modes that a umask of 022 results in."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


class WithUmask(Process):
    """A process that is started under another umask."""

    umask = 0

    def spawn(self) -> None:
        before = os.umask(self.umask)
        try:
            super().spawn()
        finally:
            os.umask(before)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
async def test_files_are_private_whatever_the_umask(
    umask: int, tmp_path: Path, engine_settings: dict[str, str], session: aiohttp.ClientSession
) -> None:
    process = WithUmask(tmp_path, **engine_settings)
    process.umask = umask
    tmp_path.joinpath(f"up-{process.port}.log").touch()
    for number in range(2):  # a second start finds the files of the first
        try:
            await process.start()
            # Without a send deadline: an IOC order may be rejected for a while after a start on a busy machine.
            body = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "qty": 1000, "price": 100, "timeInForce": "GTC"}
            async with session.post(
                f"{process.url}/orders", json=body, headers=process.headers(key=f"{number}")
            ) as sent:
                assert sent.status == 202, await sent.text()
            assert_private(tmp_path / "var")  # with the files that exist only while it runs
            assert process.stop() == 0
        finally:
            process.close()
        assert_private(tmp_path / "var", tmp_path / "state")


async def test_wider_modes_of_an_earlier_version_are_taken_away(tmp_path: Path) -> None:
    process = Process(tmp_path)
    try:
        await process.start()
        process.kill()  # leaves the WAL behind
        widen(tmp_path / "var")
        await process.start()
        assert_private(tmp_path / "var")
        assert process.stop() == 0
    finally:
        process.close()


async def test_a_folder_that_others_use_too_is_not_changed(tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
    data_dir.mkdir(0o755)
    data_dir.chmod(0o755)
    data_dir.joinpath("letter.txt").touch()
    process = Process(tmp_path)
    try:
        await process.start()
        assert process.stop() == 0
    finally:
        process.close()
    assert "data_folder_readable_by_others" in process.log
    found = modes(data_dir)
    assert found.pop(str(data_dir)) == 0o755
    found.pop(str(data_dir / "letter.txt"))
    assert set(found.values()) == {0o600, 0o700}


def test_a_folder_of_all_users_is_rejected(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    done = run_command("up", SWITCHYARD_DATA_DIR=str(tmp_path), SWITCHYARD_PORT="0")
    assert done.returncode == 4
    assert "is shared by all users of this machine" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_file_never_goes_through_a_link_that_someone_put_there(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "head.json"
    victim.write_bytes(b"precious")
    (tmp_path / "head.json.new").symlink_to(victim)
    replace_file(path, b"content")
    assert (victim.read_bytes(), path.read_bytes(), path.is_symlink()) == (b"precious", b"content", False)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in tmp_path.iterdir()} == {"victim", "head.json", "head.json.new"}, "no draft stays"


def test_a_replacement_that_fails_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "head.json").mkdir()
    (tmp_path / "head.json" / "file").touch()
    with pytest.raises(OSError):
        replace_file(tmp_path / "head.json", b"content")
    assert [each.name for each in tmp_path.iterdir()] == ["head.json"]
