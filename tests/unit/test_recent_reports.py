"""The recent reports in memory: pages, bounds and waiting readers."""

import asyncio

import pytest

from switchyard.adapters.venues.paper.book import RecentReports, cursor_text
from switchyard.domain.ids import VenueClientOrderId, VenueName
from switchyard.domain.orders.reports import ExecutionReport
from tests.support.polling import DEADLINE_SECONDS
from tests.support.venue_orders import MOMENT


def a_report(number: int) -> ExecutionReport:
    return ExecutionReport(
        exec_id=str(number),
        venue=VenueName("sim"),
        venue_client_order_id=VenueClientOrderId("one"),
        venue_order_id="sim-1",
        status="WORKING",
        at=MOMENT,
    )


def publish(recent: RecentReports, first: int, last: int) -> None:
    recent.publish([a_report(number) for number in range(first, last + 1)], last)


def numbers(recent: RecentReports, after: int, limit: int = 100) -> list[int] | None:
    page = recent.page(after, limit)
    if page is None:
        return None
    assert page.cursor == cursor_text(after + len(page.reports))
    return [int(report.exec_id) for report in page.reports]


async def test_pages_have_every_report_in_order() -> None:
    recent = RecentReports(100)
    publish(recent, 1, 4)
    publish(recent, 5, 5)
    assert numbers(recent, 0) == [1, 2, 3, 4, 5]
    assert numbers(recent, 1, limit=3) == [2, 3, 4]
    assert numbers(recent, 5) == []


@pytest.mark.parametrize("group", [1, 3, 7, 20])
async def test_no_more_than_the_last_reports_are_kept(group: int) -> None:
    recent = RecentReports(7, last_number=1000)
    for first in range(1001, 1101, group):
        publish(recent, first, first + group - 1)
    last = recent.unread(1000)[-1]
    assert numbers(recent, last - 7) == list(range(last - 6, last + 1))
    assert numbers(recent, last - 8) is None
    assert numbers(recent, 1000) is None
    assert len(recent._reports) <= 14


async def test_reports_before_a_lost_group_are_not_shown() -> None:
    recent = RecentReports(100)
    publish(recent, 1, 2)
    publish(recent, 4, 5)
    assert numbers(recent, 2) is None
    assert numbers(recent, 3) == [4, 5]


async def test_every_waiting_reader_is_woken_and_one_that_gave_up_does_not_disturb_the_others() -> None:
    recent = RecentReports(100)
    readers = [asyncio.create_task(recent.wait(0)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    publish(recent, 1, 1)
    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(*readers[1:])
    assert not recent._readers


async def test_a_reader_that_is_behind_does_not_wait() -> None:
    recent = RecentReports(100)
    publish(recent, 1, 3)
    waiting = recent.wait(2)
    with pytest.raises(StopIteration):
        waiting.send(None)
