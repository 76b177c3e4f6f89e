"""Reports that come with a venue's answer: recorded in its commit, and once, whatever the report stream does."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import pytest
from msgspec.structs import replace

from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.flow.sending import outcomes
from switchyard.ports.venue import Accepted, SendOutcome
from tests.support.build import VENUE
from tests.support.polling import until
from tests.support.sending import BatchVenue, Sending
from tests.support.wrapped import Forwarding


def filled(order: Order, exec_id: str | None = None, parts: int = 1) -> ExecutionReport:
    """The report of the fill, or of the first of so many equal parts."""
    assert order.price is not None
    qty = order.qty / parts
    return ExecutionReport(
        exec_id=exec_id or f"exec-{order.order_id}",
        venue=VENUE,
        venue_client_order_id=order.venue_client_order_id,
        venue_order_id=f"venue-{order.order_id}",
        status="FILLED" if parts == 1 else "PARTIALLY_FILLED",
        last_qty=qty,
        last_price=order.price,
        filled_qty_total=qty,
        at=order.accepted_at,
    )


class Filling:
    """Answers that carry a fill for each order, and the fills, as the stream delivers them."""

    def __init__(self, exec_id: str | None = None, reason: str | None = None, parts: int = 1, copies: int = 1) -> None:
        self.reports: list[ExecutionReport] = []
        self._parts = parts
        self._copies = copies
        self._exec_id = exec_id
        self._reason = reason

    def __call__(self, orders: Sequence[Order]) -> list[SendOutcome]:
        new = [replace(filled(order, self._exec_id, self._parts), reason=self._reason) for order in orders]
        self.reports += new
        return [Accepted(report.venue_order_id, reports=(report,) * self._copies) for report in new]


class Recording(Forwarding):
    """A journal that keeps the changes it was given, and fails while it is told to."""

    def __init__(self, port: object) -> None:
        super().__init__(port)
        self.changes: list[Change] = []
        self.failures = 0
        self.may_append = asyncio.Event()
        self.may_append.set()

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        await self.may_append.wait()
        if self.failures and any(change.executions for change in changes):
            self.failures -= 1
            raise JournalUnavailable("planned")
        self.changes += changes
        result: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        return result


async def test_an_answer_and_the_fills_that_it_carries_are_one_commit() -> None:
    filling = Filling()
    sending = Sending(BatchVenue("permanent", filling), journal=Recording)
    order_ids = await sending.accept(40)
    await sending.dispatcher.run_once()
    await sending.dispatcher.drain(60)
    assert {sending.state(order_id).order.status for order_id in order_ids} == {"FILLED"}
    journal = sending.sequencer.states._journal
    assert isinstance(journal, Recording)
    settled = [change for change in journal.changes if any(row.status == "sent" for row in change.outbox)]
    answered = [row.order_id for change in settled for row in change.outbox if row.status == "sent"]
    filled_there = [execution.order_id for change in settled for execution in change.executions]
    assert sorted(answered) == sorted(filled_there) == sorted(order_ids), "each once"
    assert await sending.recorder.apply(filling.reports) == 0  # the stream delivers them, too
    assert {sending.state(order_id).order.filled_qty for order_id in order_ids} == {
        sending.state(order_ids[0]).order.qty
    }


@pytest.mark.parametrize(("parts", "status"), [(1, "FILLED"), (2, "PARTIALLY_FILLED")])
async def test_the_stream_waits_for_a_fill_that_is_being_committed_with_its_answer(parts: int, status: str) -> None:
    filling = Filling(parts=parts)
    sending = Sending(BatchVenue("permanent", filling), journal=Recording)
    journal = sending.sequencer.states._journal
    assert isinstance(journal, Recording)
    [order_id] = await sending.accept()
    await sending.dispatcher.run_once()
    journal.may_append.clear()
    await until(lambda: bool(filling.reports))
    applying = asyncio.create_task(sending.recorder.apply(filling.reports))
    await asyncio.sleep(0)
    assert not applying.done()
    journal.may_append.set()
    assert await applying == 0
    assert sending.state(order_id).order.status == status
    assert sum(len(change.executions) for change in journal.changes) == 1


async def test_a_fill_that_an_answer_carries_twice_counts_once() -> None:
    filling = Filling(parts=2, copies=2)
    sending = Sending(BatchVenue("permanent", filling))
    [order_id] = await sending.accept()
    await sending.dispatcher.run_once()
    await sending.dispatcher.drain(60)
    assert await sending.recorder.apply(filling.reports) == 0
    assert sending.state(order_id).order.filled_qty == filling.reports[0].last_qty


async def test_a_fill_whose_commit_failed_is_applied_from_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "RECORD_AGAIN_SECONDS", 3600)  # the answer itself waits for the database
    filling = Filling()
    sending = Sending(BatchVenue("permanent", filling), journal=Recording)
    journal = sending.sequencer.states._journal
    assert isinstance(journal, Recording)
    journal.failures = 1
    [order_id] = await sending.accept()
    await sending.dispatcher.run_once()
    await until(lambda: not journal.failures)
    assert await sending.recorder.apply(filling.reports) == 1
    assert sending.state(order_id).order.status == "FILLED"


@pytest.mark.parametrize("filling", [Filling(exec_id="bad\x00id"), Filling(reason="bad\x00words")])
async def test_a_report_that_needs_the_recorder_is_left_to_it(filling: Filling) -> None:
    sending = Sending(BatchVenue("permanent", filling))
    [order_id] = await sending.accept()
    await sending.dispatcher.run_once()
    await sending.dispatcher.drain(60)
    assert sending.state(order_id).order.status == "WORKING"


async def test_one_execution_id_for_two_orders_is_left_to_the_recorder_the_second_time() -> None:
    filling = Filling(exec_id="the-same")
    sending = Sending(BatchVenue("permanent", filling))
    order_ids = await sending.accept(2)
    await sending.dispatcher.run_once()
    await sending.dispatcher.drain(60)
    assert sorted(sending.state(order_id).order.status for order_id in order_ids) == ["FILLED", "WORKING"]
    assert await sending.recorder.apply(filling.reports) == 1
    assert {sending.state(order_id).order.status for order_id in order_ids} == {"FILLED"}
