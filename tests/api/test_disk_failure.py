"""The disk of the gateway fails: every response is correct, and after a failed fsync no order is accepted."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from switchyard.telemetry.logs import configure_logs
from tests.support.disk import FailingDisk
from tests.support.gateway import running_gateway


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    disk = FailingDisk()
    yield disk
    disk.unregister()


async def test_after_a_failed_fsync_no_order_is_accepted_and_the_process_ends(
    disk: FailingDisk, tmp_path: Path
) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        assert (await gateway.place(key="before")).status == 202
        disk.sync_fails = True
        response = await gateway.place(key="during")
        assert (response.status, response.json["status"], response.json["reason"]) == (
            503,
            "UNKNOWN",
            "OUTCOME_UNKNOWN",
        )
        disk.sync_fails = False
        response = await gateway.place(key="after")
        assert (response.status, response.json["reason"]) == (503, "JOURNAL_UNAVAILABLE")
        assert gateway.engine.stop.is_set()
        assert "journal is broken" in str(gateway.engine.failure)


def move_the_wal(folder: Path) -> None:
    [wal] = folder.rglob("switchyard.db-wal")
    wal.rename(folder / "moved")


async def test_a_read_from_a_file_that_is_no_longer_in_its_place_says_to_read_again(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        assert (await gateway.place(key="before")).status == 202
        move_the_wal(tmp_path)
        response = await gateway.get("/orders")
        assert (response.status, response.json["status"], response.json["reason"]) == (
            503,
            "REJECTED",
            "JOURNAL_UNAVAILABLE",
        )
        assert response.json["message"] == "the database cannot confirm what it shows: read again"


@pytest.fixture
def full_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard error is on a full disk."""
    with Path("/dev/full").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logs("info", "text")
        yield
        structlog.reset_defaults()
        with contextlib.suppress(OSError):
            stream.close()


@pytest.mark.usefixtures("full_log")
async def test_a_full_disk_is_503_until_there_is_room_again(disk: FailingDisk, tmp_path: Path) -> None:
    """The log is on the same disk: a line that cannot be written must not keep the error from its caller."""
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        assert (await gateway.place(key="before")).status == 202
        disk.is_full = True
        response = await gateway.place(key="during")
        assert (response.status, response.json["reason"]) == (503, "JOURNAL_UNAVAILABLE")
        disk.is_full = False
        assert (await gateway.place(key="during")).status == 202
        assert len((await gateway.get("/orders")).json["orders"]) == 2
        assert not gateway.engine.stop.is_set()
