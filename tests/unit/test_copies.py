"""The watch for a second installation on a copy of the database: what is evidence, and what is not."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.orders.outbox import OrderState
from switchyard.flow.commit.states import after
from switchyard.flow.health.copies import TIME_MARGIN, CopyWatch
from switchyard.ports.venue import Accepted, VenueOrder
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE, WORKER, a_report, an_accept, state_after
from tests.support.memory.clock import START, ManualClock
from tests.support.memory.database import MemoryDatabase

AHEAD = timedelta(minutes=3)
"""The venue's clock against ours."""
SECOND = timedelta(seconds=1)
QTY = Decimal(100)


class Site:
    """A watch over a memory journal; `reasons` are those for which it closed the venue."""

    def __init__(self, offset: timedelta | None = AHEAD, explained_until: datetime | None = None) -> None:
        self.journal = MemoryDatabase(ManualClock()).journal
        self.metrics = Metrics()
        self.reasons: list[str] = []
        self._offset, self._explained_until = offset, explained_until
        self.start()

    def start(self) -> None:
        """Start a new watch, as a new process would."""
        self.watch = CopyWatch(
            VENUE,
            journal=self.journal,
            commit=self.commit,
            clock=ManualClock(),
            metrics=self.metrics,
            lock=self.reasons.append,
            clock_offset=lambda: self._offset,
            explained_until=self._explained_until,
        )

    async def commit(self, change: Change) -> Outcome:
        [outcome] = await self.journal.append(0, f"group-{id(change)}", [change], START)
        return outcome

    def report(self, state: OrderState, qty: Decimal = QTY, at: datetime = START + AHEAD) -> None:
        """Apply a fill and show it to the watch."""
        report = replace(a_report(state, "FILLED", qty=qty), at=at)
        change = decisions.apply_report(state, None, report, START)
        self.watch.note_report(state, state.find("new", 1), change.orders[0], report)

    def answer(self, state: OrderState, answer: Accepted) -> None:
        self.watch.note_answer(state.order, state.row("new", 1), answer)

    def evidence(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value("venue_copy_evidence_total", {"venue": VENUE, "evidence": name})
        assert value is not None
        return value


def queued() -> OrderState:
    return state_after(an_accept(qty=QTY))


def sending(attempts: int = 1) -> OrderState:
    state = queued()
    for number in range(attempts):
        if number:
            change = decisions.record_unsent(state, state.row("new", 1), "VENUE_DOWN", START, START)
            state = after(state, change.orders[0], change)
        change = decisions.begin_attempt(state, state.row("new", 1), WORKER, START)
        state = after(state, change.orders[0], change)
    return state


def test_an_execution_of_an_order_that_was_never_sent_from_here_closes_the_venue() -> None:
    site = Site()
    site.report(queued())
    [reason] = site.reasons
    assert "never sent from here" in reason
    assert "db restored" in reason
    assert site.evidence("never_sent") == 1


def test_more_executed_than_ordered_closes_the_venue() -> None:
    site = Site()
    site.report(sending(), QTY)
    assert not site.reasons
    site.report(sending(), QTY + 1)
    [reason] = site.reasons
    assert "more of order" in reason


def test_the_larger_quantity_of_an_amend_in_doubt_is_no_overfill() -> None:
    site = Site()
    state = sending()
    state = replace(state, order=replace(state.order, amend_qty=2 * QTY))
    site.report(state, QTY + 1)
    assert not site.reasons


@pytest.mark.parametrize("early", [timedelta(), TIME_MARGIN, TIME_MARGIN + SECOND])
@pytest.mark.parametrize("source", ["fill", "answer", "lookup"])
def test_a_venue_time_before_the_acceptance_closes_the_venue(source: str, early: timedelta) -> None:
    site = Site()
    state = sending()
    at = START + AHEAD - early  # by the venue's clock
    if source == "fill":
        site.report(state, at=at)
    elif source == "answer":
        site.answer(state, Accepted("v-1", accepted_at=at))
    else:
        order = state.order
        found = VenueOrder(
            venue_client_order_id=order.venue_client_order_id,
            venue_order_id="v-1",
            status="FILLED",
            filled_qty=QTY,
            accepted_at=at,
        )
        site.watch.note_found(order, found)
    assert len(site.reasons) == (early > TIME_MARGIN)
    assert site.evidence("before_acceptance") == len(site.reasons)


@pytest.mark.parametrize("case", ["no measured clock", "accepted before the start", "no time zone"])
def test_a_time_that_cannot_be_compared_is_no_evidence(case: str) -> None:
    site = Site(offset=None if case == "no measured clock" else AHEAD)
    state = sending()
    if case == "accepted before the start":
        state = replace(state, order=replace(state.order, accepted_at=START - SECOND))
    zone = None if case == "no time zone" else UTC
    site.answer(state, Accepted("v-1", accepted_at=datetime(2020, 1, 1, tzinfo=zone)))
    assert not site.reasons


def test_already_processed_at_the_first_attempt_alarms_and_closes_nothing() -> None:
    site = Site()
    site.answer(sending(attempts=2), Accepted("v-1", already_processed=True))
    assert site.evidence("already_processed") == 0, "an earlier attempt explains it"
    site.answer(sending(), Accepted("v-1", already_processed=True))
    assert site.evidence("already_processed") == 1
    assert not site.reasons


def test_a_restore_explains_the_orders_of_lost_keys() -> None:
    site = Site(explained_until=START)
    site.report(queued())
    site.report(sending(), QTY + 1)
    site.answer(sending(), Accepted("v-1", already_processed=True))
    assert not site.reasons
    assert site.evidence("already_processed") == 0
    later = replace(queued(), order=replace(queued().order, accepted_at=START + SECOND))
    site.report(later)
    assert site.reasons


async def test_the_venue_stays_closed_in_other_processes_until_a_new_epoch() -> None:
    site = Site()
    await site.watch.look()
    assert not site.reasons
    site.report(queued())
    await site.watch.look()
    [reason] = site.reasons
    site.start()
    await site.watch.look()
    assert site.reasons == [reason, reason]

    await site.journal.open_epoch(0, 0, START)
    site.start()
    await site.watch.look()
    assert site.reasons == [reason, reason]
