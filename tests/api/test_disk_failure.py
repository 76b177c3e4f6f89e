"""A disk that fails under the gateway: no answer that is not true, and no 202 after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.disk import FailingDisk
from tests.support.gateway import running_gateway


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    made = FailingDisk()
    yield made
    made.unregister()


async def test_after_a_failed_fsync_there_is_no_202_any_more_and_the_process_ends(
    disk: FailingDisk, tmp_path: Path
) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        assert (await gateway.place(key="before")).status == 202
        disk.sync_fails = True
        answer = await gateway.place(key="during")
        assert (answer.status, answer.json["status"], answer.json["reason"]) == (503, "UNKNOWN", "OUTCOME_UNKNOWN")
        disk.sync_fails = False
        answer = await gateway.place(key="after")
        assert (answer.status, answer.json["reason"]) == (503, "JOURNAL_UNAVAILABLE")
        assert gateway.engine.stop.is_set()
        assert "journal is broken" in str(gateway.engine.failure)


async def test_a_full_disk_is_503_and_the_gateway_goes_on_when_there_is_room(disk: FailingDisk, tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_WORKER="false") as gateway:
        assert (await gateway.place(key="before")).status == 202
        disk.is_full = True
        answer = await gateway.place(key="during")
        assert (answer.status, answer.json["reason"]) == (503, "JOURNAL_UNAVAILABLE")
        disk.is_full = False
        assert (await gateway.place(key="during")).status == 202
        assert len((await gateway.get("/orders")).json["orders"]) == 2
        assert not gateway.engine.stop.is_set()
