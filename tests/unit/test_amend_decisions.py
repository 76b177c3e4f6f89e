"""Amends as decisions: what each outcome, report and race makes of the order, its rows and what it reserves."""

from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.errors import (
    AmendPending,
    CancelPending,
    InvalidField,
    NotAmendable,
    OrderFinal,
    QtyFilled,
    RequestError,
    TooManyAmends,
)
from switchyard.domain.ids import VenueClientOrderId, WorkerId
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import AMENDS_MAX, Amend, AmendRequest, amend_status, checked_amend, last_id
from switchyard.domain.orders.keys import AMEND_ORDER
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.orders.reports import ExecutionReport, ReportStatus
from switchyard.domain.risk.claims import reserved
from switchyard.flow.commit.states import after
from tests.support.build import an_accept, an_entry
from tests.support.memory.clock import START

WORKER = WorkerId("worker-1")
PRICE = Decimal("150.125")


class Story:
    """One order and what happens to it."""

    def __init__(self, *, is_sent: bool = True, replaces: bool = False, is_provable: bool = False) -> None:
        accepted = an_accept()
        self.replaces, self.is_provable = replaces, is_provable
        self.state = OrderState(order=accepted.orders[0], outbox=accepted.outbox)
        self.last = accepted
        if is_sent:
            self.begin("new", 1)
            self.commit(decisions.record_sent(self.state, self.state.row("new", 1), "venue-1", START))

    @property
    def order(self) -> Any:
        return self.state.order

    @property
    def amend_row(self) -> OutboxRow:
        return [row for row in self.state.outbox if row.kind == "amend"][-1]

    @property
    def reserves(self) -> int:
        held = reserved(self.order)
        return 0 if held is None else int(held.qty)

    def commit(self, change: Change | None) -> Change:
        assert change is not None
        self.last, self.state = change, after(self.state, change.orders[-1], change)
        return change

    def amend(self, qty: int = 2000, price: Decimal = PRICE) -> "Story":
        number = sum(row.kind == "amend" for row in self.state.outbox) + 1
        amend = Amend(
            client_order_id=VenueClientOrderId(f"amend-{number}"),
            orig_client_order_id=last_id(self.state),
            qty=Decimal(qty),
            price=price,
            reserve_price=price,
            replaces=self.replaces,
            is_provable=self.is_provable,
            operation=AMEND_ORDER,
            key=f"key-{number}",
        )
        key = replace(an_entry(amend.key, self.order.order_id), operation=AMEND_ORDER)
        self.commit(decisions.request_amend(self.state, amend, key, START, reducing=True))
        return self

    def begin(self, kind: Any = "amend", number: int | None = None) -> "Story":
        row = self.amend_row if number is None else self.state.row(kind, number)
        self.commit(decisions.begin_attempt(self.state, row, WORKER, START))
        return self

    def amended(self) -> "Story":
        self.commit(decisions.record_sent(self.state, self.amend_row, "venue-2" if self.replaces else "venue-1", START))
        return self

    def refused(self) -> "Story":
        self.commit(decisions.record_rejected(self.state, self.amend_row, "ORDER_FINAL", START))
        return self

    def in_doubt(self) -> "Story":
        self.commit(decisions.record_doubt(self.state, self.amend_row, "NETWORK_TIMEOUT", None, START))
        return self

    def report(self, status: ReportStatus, qty: int = 0, total: int | None = None, leg: str | None = None) -> "Story":
        filled = self.order.filled_qty + qty
        report = ExecutionReport(
            exec_id=f"exec-{self.order.version}",
            venue=self.order.venue,
            venue_client_order_id=self.order.venue_client_order_id,
            venue_order_id="venue-1" if leg is None else "venue-2",
            status=status,
            last_qty=Decimal(qty),
            last_price=PRICE if qty else None,
            filled_qty_total=filled if total is None else Decimal(total),
            at=START,
            leg_client_order_id=None if leg is None else VenueClientOrderId(leg),
        )
        self.commit(decisions.apply_report(self.state, None, report, START))
        return self

    def shown(self) -> tuple[str, int, int, str]:
        """Status, quantity, filled quantity, and what became of the last amend."""
        return self.order.status, int(self.order.qty), int(self.order.filled_qty), amend_status(self.amend_row)


def test_an_amend_reserves_the_larger_amounts_until_it_is_settled() -> None:
    for qty, pending, after_amend in ((2000, 2000, 2000), (400, 1000, 400)):
        story = Story().amend(qty)
        assert (story.reserves, story.order.qty) == (pending, 1000)
        assert story.begin().amended().reserves == after_amend
        assert Story().amend(qty).begin().refused().reserves == 1000
    dearer = Story().amend(500, Decimal(400))
    held = reserved(dearer.order)
    assert held is not None
    assert held.notional == 500 * 400  # of the amend: more than 1000 at 150.125
    assert held.qty == 1000


def test_an_order_that_was_never_sent_is_amended_on_the_spot_in_one_commit() -> None:
    story = Story(is_sent=False).amend(2000)
    assert [event.type for event in story.last.events] == ["AmendRequested", "Amended"]
    assert story.shown() == ("ACCEPTED", 2000, 0, "AMENDED")
    assert story.amend_row.last_error == "AMENDED_BEFORE_SENDING"
    assert [(result.operation, result.status) for result in story.last.results] == [(AMEND_ORDER, "succeeded")]
    assert last_id(story.state) == story.order.venue_client_order_id, "the venue has never heard of this amend"


def test_an_order_whose_bytes_left_once_is_not_changed_under_its_id() -> None:
    story = Story(is_sent=False).begin("new", 1)
    unsent = decisions.record_unsent(
        story.state, story.state.row("new", 1), "RATE_LIMITED", START, START, bytes_sent=True
    )
    story.commit(unsent)
    assert story.order.status == "ACCEPTED"
    assert story.amend(2000).shown() == ("ACCEPTED", 1000, 0, "PENDING")


@pytest.mark.parametrize("replaces", [False, True])
def test_ids_are_chained_and_a_replaced_order_has_the_id_of_its_amend(replaces: bool) -> None:
    story = Story(replaces=replaces).amend(2000).begin().amended()
    assert story.shown() == ("WORKING", 2000, 0, "AMENDED")
    assert story.order.leg_client_order_id == ("amend-1" if replaces else None)
    assert last_id(story.state) == "amend-1"
    story.amend(3000)
    assert '"origClientOrderId":"amend-1"' in (story.amend_row.payload or "")


@pytest.mark.parametrize(
    ("settle", "filled", "expected"),
    [
        (Story.amended, 600, ("PARTIALLY_FILLED", 2000, 600, "AMENDED")),
        (Story.refused, 600, ("PARTIALLY_FILLED", 1000, 600, "REFUSED")),
        # The venue reports in parts: only the outcome tells whether 1000 is all.
        (Story.refused, 1000, ("FILLED", 1000, 1000, "REFUSED")),
        (Story.amended, 1000, ("PARTIALLY_FILLED", 2000, 1000, "AMENDED")),
    ],
)
def test_a_fill_during_an_amend_counts_and_the_outcome_tells_what_is_filled(
    settle: Any, filled: int, expected: tuple[str, int, int, str]
) -> None:
    story = Story().amend(2000).begin().report("PARTIALLY_FILLED", filled)
    assert story.shown() == ("PARTIALLY_FILLED", 1000, filled, "PENDING")
    settle(story)
    assert story.shown() == expected


def test_reports_show_that_an_amend_was_carried_out() -> None:
    raised = Story().amend(2000).begin().in_doubt().report("PARTIALLY_FILLED", 1500)
    assert raised.shown() == ("PARTIALLY_FILLED", 2000, 1500, "AMENDED")
    lowered = Story().amend(400).begin().in_doubt().report("FILLED", 400)
    assert lowered.shown() == ("FILLED", 400, 400, "AMENDED")
    replaced = Story(replaces=True).amend(2000).begin().in_doubt().report("WORKING", leg="amend-1")
    assert replaced.shown() == ("WORKING", 2000, 0, "AMENDED")
    assert (replaced.order.venue_order_id, replaced.order.leg_client_order_id) == ("venue-2", "amend-1")
    # Against an amend that was never sent, the same fill is an overfill.
    assert Story().amend(2000).report("PARTIALLY_FILLED", 1500).shown() == ("FILLED", 1000, 1500, "REFUSED")


def test_a_completely_filled_order_ends_whatever_its_amend_asks_for() -> None:
    story = Story().amend(2000).begin().report("FILLED", 1000)
    assert story.shown() == ("FILLED", 1000, 1000, "PENDING")  # its attempt is still under way
    assert story.refused().shown() == ("FILLED", 1000, 1000, "REFUSED")
    assert story.order.amend_qty is None
    queued = Story().amend(2000).report("FILLED", 1000)
    assert (queued.shown(), queued.order.amend_qty) == (("FILLED", 1000, 1000, "REFUSED"), None)


@pytest.mark.parametrize("has_fill", [False, True])
def test_the_end_of_a_replaced_leg_ends_nothing(has_fill: bool) -> None:
    story = Story(replaces=True).amend(2000).begin()
    if has_fill:
        story.report("PARTIALLY_FILLED", 300)
    status, filled = ("PARTIALLY_FILLED", 300) if has_fill else ("WORKING", 0)
    story.report("CANCELED")
    assert (story.shown(), story.order.leg_end) == ((status, 1000, filled, "PENDING"), "CANCELED")
    story.amended()
    assert (story.shown(), story.order.leg_end) == ((status, 2000, filled, "AMENDED"), None)
    late = story.report("CANCELED")  # of the old leg, once more
    assert (late.order.status, late.order.venue_order_id) == (status, "venue-2")
    assert story.report("CANCELED", leg="amend-1").order.status == "CANCELED"


def test_an_end_that_no_amend_explains_ends_the_order() -> None:
    in_place = Story().amend(2000).begin().report("CANCELED")
    assert in_place.order.status == "CANCELED"
    ended = Story(replaces=True).amend(2000).begin().report("PARTIALLY_FILLED", 300).report("CANCELED")
    assert ended.refused().shown() == ("CANCELED", 1000, 300, "REFUSED")
    unsent = Story(replaces=True).amend(2000).report("CANCELED")
    assert unsent.shown() == ("CANCELED", 1000, 0, "REFUSED")


def test_an_amend_that_the_backup_had_queued_may_have_been_sent_by_the_lost_history() -> None:
    """Its row is in doubt without an attempt of this database."""
    story = Story(replaces=True, is_provable=True).amend(2000).in_doubt()
    assert not story.amend_row.attempt
    story.report("CANCELED")
    assert (story.shown(), story.order.leg_end) == (("WORKING", 1000, 0, "PENDING"), "CANCELED")
    story.report("PARTIALLY_FILLED", 300, leg="amend-1")
    assert (story.shown(), story.order.leg_end) == (("PARTIALLY_FILLED", 2000, 300, "AMENDED"), None)
    raised = Story(is_provable=True).amend(2000).in_doubt().report("PARTIALLY_FILLED", 1000)
    assert raised.shown() == ("PARTIALLY_FILLED", 1000, 1000, "PENDING")


def test_an_amend_that_was_taken_for_refused_is_adopted_when_the_venue_shows_it() -> None:
    story = Story(replaces=True).amend(2000).begin().refused().amend(3000)
    story.report("PARTIALLY_FILLED", 100, leg="amend-1")
    assert (story.order.qty, story.order.leg_client_order_id, story.order.amend_qty) == (2000, "amend-1", 3000)
    assert story.state.row("amend", 1).last_error == "CONTRADICTED"
    assert '"qty":2000' in story.last.events[1].tail


def test_a_cancel_drops_an_amend_that_was_not_sent_and_leaves_one_that_may_be_at_the_venue() -> None:
    story = Story().amend(2000)
    story.commit(decisions.request_cancel(story.state, START))
    assert (story.shown(), story.order.amend_qty) == (("CANCEL_REQUESTED", 1000, 0, "REFUSED"), None)
    doubtful = Story().amend(2000).begin().in_doubt()
    doubtful.commit(decisions.request_cancel(doubtful.state, START))
    assert (doubtful.shown(), doubtful.reserves) == (("CANCEL_REQUESTED", 1000, 0, "PENDING"), 2000)
    assert doubtful.report("CANCELED").shown() == ("CANCELED", 1000, 0, "REFUSED")


def test_an_amend_in_doubt_is_looked_up_after_the_end_of_its_order() -> None:
    ended = Story(is_provable=True).amend(2000).begin().in_doubt().report("CANCELED")
    assert (ended.shown(), ended.order.amend_qty) == (("CANCELED", 1000, 0, "PENDING"), 2000)
    assert ended.reserves == 0
    assert (ended.amended().shown(), ended.order.amend_qty) == (("CANCELED", 2000, 0, "AMENDED"), None)
    late = Story(is_provable=True).amend(2000).begin().report("CANCELED").in_doubt()
    assert late.shown() == ("CANCELED", 1000, 0, "PENDING")
    late.commit(decisions.record_absent(late.state, late.amend_row, START))
    assert late.shown() == ("CANCELED", 1000, 0, "REFUSED")


def test_an_absent_amend_and_an_operators_verdict_settle_a_doubt() -> None:
    absent = Story().amend(2000).begin().in_doubt()
    absent.commit(decisions.record_absent(absent.state, absent.amend_row, START))
    assert (absent.shown(), absent.amend_row.last_error) == (("WORKING", 1000, 0, "REFUSED"), "ABSENT_AT_VENUE")
    for verdict, expected in (("sent", 2000), ("not-sent", 1000)):
        story = Story().amend(2000).begin().in_doubt()
        said = DecisionFact(verdict=verdict, by="ann", reason="seen")  # type: ignore[arg-type]
        story.commit(decisions.decide_by_hand(story.state, story.amend_row, said, START))
        assert (story.order.qty, story.order.amend_qty, story.last.events[0].type) == (
            expected,
            None,
            "OperatorDecision",
        )


def _filled(story: Story) -> Story:
    return story.report("FILLED", 1000)


def _canceling(story: Story) -> Story:
    story.commit(decisions.request_cancel(story.state, START))
    return story


def _often_amended(story: Story) -> Story:
    for number in range(AMENDS_MAX):
        story.amend(2000 + number).begin().amended()
    return story


@pytest.mark.parametrize(
    ("prepare", "qty", "error"),
    [
        (_filled, 2000, OrderFinal),
        (_canceling, 2000, CancelPending),
        (lambda story: story.amend(3000), 2000, AmendPending),
        (lambda story: story.amend(3000).begin().in_doubt(), 2000, AmendPending),
        (lambda story: story.report("PARTIALLY_FILLED", 400), 400, QtyFilled),
        (_often_amended, 5000, TooManyAmends),
    ],
)
def test_an_order_that_cannot_be_amended_says_why(prepare: Any, qty: int, error: type[RequestError]) -> None:
    story = prepare(Story())
    with pytest.raises(error):
        story.amend(qty)


@pytest.mark.parametrize(
    ("request_fields", "order_fields", "field"),
    [
        ({}, {}, "qty"),
        ({"qty": Decimal("0.5")}, {}, "qty"),
        ({"qty": Decimal(-1)}, {}, "qty"),
        ({"price": Decimal("150.12345")}, {}, "price"),
        ({"price": Decimal(1)}, {"type": "MARKET", "price": None}, "price"),
        ({"stop_price": Decimal(1)}, {}, "stopPrice"),
    ],
)
def test_a_wrong_field_is_named(request_fields: Any, order_fields: Any, field: str) -> None:
    order = replace(Story().order, **order_fields)
    with pytest.raises(InvalidField) as raised:
        checked_amend(AmendRequest(**request_fields), order, Catalogue())
    assert raised.value.field == field


def test_an_order_that_is_executed_at_once_cannot_be_amended() -> None:
    with pytest.raises(NotAmendable, match="IOC"):
        checked_amend(AmendRequest(qty=Decimal(1)), replace(Story().order, time_in_force="IOC"), Catalogue())
