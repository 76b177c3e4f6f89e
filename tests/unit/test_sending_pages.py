"""Pages of sends under faults: evidence wins, no slot is lost, and nothing is sent that a report has shown."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
import structlog

from switchyard.domain import decisions
from switchyard.domain.errors import GroupRejected, JournalUnavailable
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.clock import Wake
from switchyard.flow.commit.sequencer import decide
from switchyard.flow.sending import outcomes
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent
from tests.support.build import VENUE, WORKER, a_report, an_accept
from tests.support.memory.clock import START
from tests.support.polling import until
from tests.support.sending import OWN, BatchVenue, Sending
from tests.support.wrapped import Forwarding

# More than one group takes.
MANY = 40


def accepts(orders: Sequence[Order]) -> list[SendOutcome]:
    return [Accepted(f"venue-{order.order_id}") for order in orders]


@pytest.mark.parametrize(("retry_max", "is_cancelled"), [(8, True), (1, False)])
async def test_an_order_that_a_report_has_shown_is_not_ended_by_an_unsent_resend(
    retry_max: int, is_cancelled: bool
) -> None:
    """The first answer is lost; its report comes during the resend, which finds no connection."""
    venue = BatchVenue("permanent", lambda _: [Ambiguous("NETWORK_TIMEOUT")], lambda _: [Unsent("BROKER_DOWN")])
    sending = Sending(venue, retry_max=retry_max)
    [order_id] = await sending.accept()
    assert await sending.dispatcher.run_once() == 1
    await sending.dispatcher.drain(60)
    sending.clock.advance(timedelta(seconds=3))
    await sending.lanes.renew()
    venue.open.clear()
    assert await sending.dispatcher.run_once() == 1
    part = a_report(sending.state(order_id), "PARTIALLY_FILLED", qty=Decimal(1))
    await sending.recorder.apply([part])
    if is_cancelled:
        await decide(
            sending.database.journal,
            sending.sequencer.commit,
            order_id,
            lambda state: decisions.request_cancel(state, sending.clock.now()),
        )
    before = sending.state(order_id).order.status
    venue.open.set()
    await sending.dispatcher.drain(60)
    state = sending.state(order_id)
    assert state.order.status == before == ("CANCEL_REQUESTED" if is_cancelled else "PARTIALLY_FILLED")
    assert state.row("new", 1).status == "sent"
    assert not is_cancelled or state.row("cancel", 1).status == "queued"


class SecondGroupFails(Forwarding):
    """A journal that is away for the outcomes that do not fit into the first group, while `is_away`."""

    is_away = True

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        ended = sum(row.status in ("sent", "failed") for change in changes for row in change.outbox)
        if self.is_away and 0 < ended <= MANY - 32:
            raise JournalUnavailable("away")
        written: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        return written


@pytest.mark.parametrize("new_attempt_ends_first", [True, False])
async def test_a_row_is_not_claimed_again_while_its_batch_is_being_recorded(
    new_attempt_ends_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its slots would stay taken, or its live attempt would be taken for one whose sender is gone."""
    monkeypatch.setattr(outcomes, "RECORD_AGAIN_SECONDS", 0.05)
    venue = BatchVenue("none", lambda orders: [Unsent("BROKER_DOWN"), *accepts(orders[1:])], accepts)
    journals: list[SecondGroupFails] = []

    def wrapped(journal: Journal) -> SecondGroupFails:
        journals.append(SecondGroupFails(journal))
        return journals[0]

    sending = Sending(venue, wrapped)
    await sending.accept(MANY)
    assert await sending.dispatcher.run_once() == MANY
    await until(lambda: sending.row_statuses().count("sending") == MANY - 32)
    sending.clock.advance(timedelta(seconds=2.5))  # the backoff of the first row is over
    await sending.lanes.renew()
    if not new_attempt_ends_first:
        venue.open.clear()
    await sending.dispatcher.run_once()
    journals[0].is_away = False
    # The outcomes are written before the batch gives its slots back.
    await until(lambda: sending.row_statuses().count("sending") == 0 and sending.in_flight == 0)
    await sending.dispatcher.run_once()
    await sending.dispatcher.recover_once()
    venue.open.set()
    await until(lambda: set(sending.row_statuses()) == {"sent"})
    await sending.dispatcher.drain(60)
    assert sending.in_flight == 0
    assert len(venue.sent) == MANY + 1


class Gated(Forwarding):
    """A journal whose appends wait for the gate."""

    gate = asyncio.Event()

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        await self.gate.wait()
        written: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        return written


async def test_an_order_whose_claim_and_report_are_one_commit_is_not_sent() -> None:
    venue = BatchVenue("none", accepts)
    Gated.gate = asyncio.Event()
    Gated.gate.set()
    sending = Sending(venue, Gated)
    [order_id] = await sending.accept()
    steps: list[Callable[[OrderState], Change]] = [
        lambda state: decisions.begin_attempt(state, state.row("new", 1), WORKER, START),
        lambda state: decisions.record_doubt(state, state.row("new", 1), "NETWORK_TIMEOUT", None, START),
        lambda state: decisions.record_absent(state, state.row("new", 1), START),  # it may be sent again
    ]
    for step in steps:
        await sending.sequencer.commit(step(sending.state(order_id)))
    Gated.gate.clear()
    other = sending.sequencer.commit(an_accept(client_id="other"))
    await until(lambda: sending.sequencer.depth == 0)
    claim = asyncio.create_task(sending.dispatcher.run_once())
    await until(lambda: sending.sequencer.depth == 1)
    report = asyncio.create_task(sending.recorder.apply([a_report(sending.state(order_id))]))
    await until(lambda: sending.sequencer.depth == 2)
    Gated.gate.set()
    await asyncio.gather(other, claim, report)
    await sending.dispatcher.drain(60)
    state = sending.state(order_id)
    assert order_id not in venue.sent
    assert (state.order.status, state.row("new", 1).status) == ("FILLED", "sent")


async def test_an_answer_that_cannot_be_stored_does_not_hold_up_its_batch() -> None:
    venue = BatchVenue("none", lambda orders: [Accepted("bad\x00id"), *accepts(orders[1:])])
    sending = Sending(venue)
    bad, *others = await sending.accept(8)
    assert await sending.dispatcher.run_once() == 8
    await sending.dispatcher.drain(60)
    assert sending.in_flight == 0
    assert {sending.state(order_id).row("new", 1).status for order_id in others} == {"sent"}
    assert await sending.dispatcher.recover_once() == 1
    assert sending.state(bad).order.status == "UNKNOWN"


class RejectsDoubts(Forwarding):
    """A journal that rejects the doubt about a dead sender."""

    rejected = 0

    async def append(self, shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        if any(row.last_error == "SENDER_DIED" for change in changes for row in change.outbox):
            RejectsDoubts.rejected += 1
            raise GroupRejected("a doubt")
        written: list[Outcome] = await self.port.append(shard, group_id, changes, now)
        return written


async def test_a_doubt_that_cannot_be_stored_does_not_keep_the_others_from_being_sent() -> None:
    venue = BatchVenue("none", accepts)
    sending = Sending(venue, RejectsDoubts)
    [orphan] = await sending.accept()
    state = sending.state(orphan)
    await sending.sequencer.commit(decisions.begin_attempt(state, state.row("new", 1), OWN, START))
    [other] = await sending.accept()
    RejectsDoubts.rejected = 0
    running = asyncio.create_task(sending.dispatcher.run(Wake()))
    await until(lambda: sending.state(other).row("new", 1).status == "sent")
    running.cancel()
    assert RejectsDoubts.rejected == 1


async def test_a_send_is_logged_with_the_fields_of_the_specification() -> None:
    sending = Sending(BatchVenue("permanent", accepts))
    [order_id] = await sending.accept(key="key of one")
    with structlog.testing.capture_logs() as lines:
        await sending.dispatcher.run_once()
        await sending.dispatcher.drain(60)
    [line] = [line for line in lines if line["event"] == "outbox_row_moved"]
    assert line == {
        "event": "outbox_row_moved",
        "log_level": "info",
        "outbox_id": f"{order_id}:new:1",
        "status_from": "sending",
        "status_to": "sent",
        "retry_count": 0,
        "last_error": None,
        "order_id": order_id,
        "venue": VENUE,
        "idempotency_key": "key of one",
        "trace_id": None,
        "broker_order_id": f"venue-{order_id}",
    }
