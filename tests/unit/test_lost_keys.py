"""Which orders are looked up before their first send, because a restore may have lost the order of their key."""

from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any, cast

import pytest
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.decisions import request_cancel
from switchyard.domain.ids import WHOLE, IdForm, KillId, VenueClientOrderId, VenueName, narrowed, venue_client_order_id
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.keys import AMEND_ORDER, DERIVED_CLOSE, DERIVED_ORDER, DO_ORDER
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.domain.orders.reasons import DoubtCode
from switchyard.domain.risk.kills import Kill
from switchyard.flow.lost_history import LostHistory
from switchyard.flow.sending.lost_keys import LostKeys
from switchyard.flow.sending.pre_send_checks import FirstSends, PreSendChecks
from switchyard.ports.outbox import Due
from switchyard.ports.venue import Accepted, AmendMode, Dedupe, Lookup, OrderToFind, Unsent, Venue, VenueUnavailable
from tests.support.build import VENUE, WORKER, an_accept, an_entry, state_after
from tests.support.memory.clock import START, ManualClock
from tests.support.one_order import WINDOW, ScriptedVenue, Setup

TTL, SECOND = timedelta(hours=24), timedelta(seconds=1)
LAST = START + TTL - SECOND


def always(_order: Order, _row: OutboxRow) -> bool:
    """The history that was lost may have sent everything."""
    return True


def lost_keys(clock: ManualClock, dedupe: Dedupe = "while_open") -> LostKeys:
    venue = ScriptedVenue(dedupe)
    history = LostHistory(START, TTL, {venue.name: venue.capabilities}, clock)
    return LostKeys(history, {venue.name: cast(Venue, venue)})


def order_and_row(state: OrderState | None = None) -> tuple[Order, OutboxRow]:
    accepted = state or state_after(an_accept(key="k"))
    return accepted.order, accepted.outbox[0]


def test_an_order_whose_key_came_while_a_lost_key_lives_is_looked_up_however_long_it_waits() -> None:
    clock = ManualClock()
    keys = lost_keys(clock)
    late, too_late = (order_and_row(state_after(an_accept(key="k", now=at))) for at in (LAST, LAST + SECOND))
    clock.advance(2 * TTL)
    assert keys.must_ask(*order_and_row()) and keys.must_ask(*late)
    assert not keys.must_ask(*too_late)


def test_an_order_without_a_key_repeats_none() -> None:
    assert not lost_keys(ManualClock()).must_ask(*order_and_row(state_after(an_accept())))


def test_a_jump_of_the_clock_does_not_end_that_time() -> None:
    clock = ManualClock()
    keys = lost_keys(clock)
    clock.advance(TTL)
    clock.jumped_at = clock.now()
    assert keys.must_ask(*order_and_row(state_after(an_accept(key="k", now=clock.now()))))


@pytest.mark.parametrize("dedupe", ["permanent", "none"])
def test_a_venue_that_recognises_the_order_or_has_no_lookup_is_not_asked(dedupe: Dedupe) -> None:
    keys = lost_keys(ManualClock(), dedupe)
    assert not keys.must_ask(*order_and_row())
    assert keys.is_unasked(*order_and_row())


def test_an_order_from_before_the_restore_and_a_later_attempt_are_not_looked_up() -> None:
    keys, state = lost_keys(ManualClock()), state_after(an_accept(key="k"))
    earlier = state_after(an_accept(key="k", now=START - SECOND))
    assert not keys.must_ask(*order_and_row(earlier))
    assert not keys.must_ask(*order_and_row(replace(state, outbox=(replace(state.outbox[0], attempt=1),))))


@pytest.mark.parametrize(
    ("dedupe", "amend", "may_be"),
    [
        ("permanent", "cancel_replace", True),
        ("permanent", "in_place", True),
        ("permanent", "none", False),
        ("while_open", "in_place", False),
    ],
)
def test_an_order_that_its_venue_recognised_may_have_a_lost_amend(
    dedupe: Dedupe, amend: AmendMode, may_be: bool
) -> None:
    """A venue that is asked before the first send has shown its amends then."""
    capabilities = replace(ScriptedVenue(dedupe).capabilities, amend=amend)
    history = LostHistory(START, TTL, {VENUE: capabilities}, ManualClock())
    order, row = order_and_row()
    assert history.may_have_amended(order, replace(row, status="sent", attempt=1)) is may_be


@pytest.mark.parametrize(("dedupe", "may_be_there"), [("while_open", False), ("permanent", True), ("none", True)])
def test_an_attempt_shows_that_an_order_was_absent_only_where_the_venue_is_asked_first(
    dedupe: Dedupe, may_be_there: bool
) -> None:
    state = state_after(an_accept(key="k"))
    history, row = lost_keys(ManualClock(), dedupe).history, replace(state.outbox[0], attempt=1)
    assert history.may_have_sent(state.order, state.outbox[0])
    assert history.may_have_sent(state.order, row) is may_be_there
    assert not history.may_have_sent(state.order, replace(row, last_error="ABSENT_AT_VENUE"))


def keyed(operation: str) -> Order:
    return replace(state_after(an_accept(key="k")).order, operation=operation)


@pytest.mark.parametrize(("operation", "later"), [(DO_ORDER, [3, 2, 1]), (DERIVED_ORDER, [3, 2, 1]), (AMEND_ORDER, [])])
async def test_an_order_is_looked_for_under_the_next_ids_of_a_key_that_is_used_again_soon(
    operation: str, later: list[int]
) -> None:
    venue, order = ScriptedVenue("while_open"), keyed(operation)
    asked: list[str] = []

    async def find(order: OrderToFind) -> None:
        asked.append(order.client_order_id)

    venue.find = find  # type: ignore[method-assign]
    keys = LostKeys(lost_keys(ManualClock()).history, {venue.name: cast(Venue, venue)})
    assert await keys.find(order) is None
    assert [int(client_id[27:], 16) for client_id in asked] == [0, *later]


async def test_an_order_is_found_under_its_own_id_first_and_then_under_the_last() -> None:
    venue, order = ScriptedVenue("while_open"), keyed(DO_ORDER)
    keys = LostKeys(lost_keys(ManualClock()).history, {venue.name: cast(Venue, venue)})
    own = order.venue_client_order_id
    for client_id in (own[:27] + "00001", own[:27] + "00003", own):
        venue.orders[VenueClientOrderId(client_id)] = 1
        found = await keys.find(order)
        assert found is not None and found.client_id == client_id


@pytest.mark.parametrize("operation", [DO_ORDER, "orders"])
async def test_at_a_venue_that_recognises_an_id_the_later_ids_of_its_key_are_asked_for(operation: str) -> None:
    keys = lost_keys(ManualClock(), "permanent")
    assert keys.must_ask(keyed(operation), order_and_row()[1]) is (operation == DO_ORDER)


async def test_an_order_waits_until_a_venue_of_its_route_without_a_lookup_was_read() -> None:
    keys, other = lost_keys(ManualClock(), "permanent"), VenueName("other")
    silent = ScriptedVenue("none")
    keys = LostKeys(keys.history, {**keys._venues, other: cast(Venue, silent)}, lambda _symbol: (VENUE, other))
    state = state_after(an_accept(key="k"))
    page = [Due(state.outbox[0], state)]

    doubts: list[DoubtCode] = []

    async def note_doubt(_due: Due, code: DoubtCode) -> None:
        doubts.append(code)

    assert keys.must_ask(state.order, state.outbox[0])
    assert (await keys.absent(page, {VENUE}, note_doubt), doubts) == ([], [])
    # Its reports do not show an order that rests there.
    assert (await keys.absent(page, {VENUE, other}, note_doubt), doubts) == ([], ["RESTORED"])
    silent.capabilities = replace(silent.capabilities, dedupe="ttl", lookup="all")
    assert await keys.absent(page, {VENUE, other}, note_doubt) == page


@pytest.mark.parametrize("lookup", ["none", "open"])
async def test_an_order_is_not_called_absent_while_a_venue_of_its_route_cannot_prove_that(lookup: Lookup) -> None:
    keys, other = lost_keys(ManualClock()), VenueName("other")
    second, order = ScriptedVenue("permanent"), keyed("orders")
    keys = LostKeys(keys.history, {**keys._venues, other: cast(Venue, second)}, lambda _symbol: (VENUE, other))
    assert await keys.find(order) is None
    second.capabilities = replace(second.capabilities, lookup=lookup)
    with pytest.raises(VenueUnavailable):
        await keys.find(order)


@pytest.mark.parametrize("operation", [DO_ORDER, DERIVED_ORDER, DERIVED_CLOSE])
async def test_an_order_is_not_called_absent_while_its_venue_cannot_prove_that_it_lacks_the_later_ids_of_its_key(
    operation: str,
) -> None:
    venue = ScriptedVenue("permanent")
    keys = LostKeys(lost_keys(ManualClock()).history, {venue.name: cast(Venue, venue)})
    assert await keys.find(keyed(operation)) is None
    venue.capabilities = replace(venue.capabilities, lookup="open")
    with pytest.raises(VenueUnavailable):
        await keys.find(keyed(operation))
    assert await keys.find(keyed("orders")) is None


def test_a_close_is_looked_up_also_where_the_venue_recognises_its_id() -> None:
    order, row = order_and_row()
    assert lost_keys(ManualClock(), "permanent").must_ask(replace(order, reduce_only=True), row)
    assert not lost_keys(ManualClock(), "none").must_ask(replace(order, reduce_only=True), row)


class Restored(Setup):
    """One worker on a restored database, and an order whose key may be one of the lost history."""

    def __init__(self, dedupe: Dedupe = "permanent", **promises: Any) -> None:
        self.history: LostHistory | None = None
        super().__init__(dedupe)
        self.promise(**promises)
        self.history = LostHistory(START, TTL, {VENUE: self.venue.capabilities}, self.clock)
        self.restart()

    def lost_keys(self) -> LostKeys | None:
        return None if self.history is None else LostKeys(self.history, {VENUE: cast(Venue, self.venue)})

    async def cancel(self) -> OrderState:
        assert self.history is not None
        await self.commit(request_cancel(await self.state(), self.clock.now(), self.history.may_have_sent))  # type: ignore[arg-type]
        return await self.state()

    async def kill(self) -> Kill:
        kill = Kill(kill_id=KillId("kill_1"), set_by="ann", set_reason="drill", set_at=self.clock.now(), version=1)
        await self.commit(decisions.set_kill(kill))
        self.kills.note(kill)
        return kill


PROVES_NOTHING: list[tuple[Dedupe, dict[str, Any]]] = [
    ("none", {}),
    ("none", {"lookup": "all"}),
    ("while_open", {"lookup": "none"}),
    ("while_open", {"lookup": "open"}),
    ("while_open", {"acceptance_window": None}),
    ("ttl", {"lookup": "open"}),
]
PROVES: list[tuple[Dedupe, dict[str, Any]]] = [
    ("permanent", {"lookup": "none"}),
    ("permanent", {}),
    ("while_open", {}),
    ("ttl", {}),
]


@pytest.mark.parametrize("begins_inline", [False, True])
@pytest.mark.parametrize(
    ("dedupe", "promises", "is_sent"),
    [*((*case, False) for case in PROVES_NOTHING), *((*case, True) for case in PROVES)],
)
async def test_a_repeated_key_is_sent_only_where_its_venue_recognises_it_or_proves_its_absence(
    dedupe: Dedupe, promises: dict[str, Any], is_sent: bool, begins_inline: bool
) -> None:
    setup = Restored(dedupe, **promises)
    await setup.lanes.renew()
    if begins_inline:
        setup.dispatcher.inline_first_send.start()
    await setup.accept(key="k")
    state = await setup.send()
    assert setup.sent_count() == is_sent
    expected = ("WORKING", "sent", None) if is_sent else ("UNKNOWN", "uncertain", "RESTORED")
    assert (state.order.status, state.row("new", 1).status, state.row("new", 1).last_error) == expected
    if not is_sent:
        await setup.resolve(after=WINDOW * 2)
        assert (await setup.send()).order.status == "UNKNOWN" and setup.sent_count() == 0


@pytest.mark.parametrize("operation", [DO_ORDER, DERIVED_ORDER, DERIVED_CLOSE])
@pytest.mark.parametrize("lookup", ["none", "open", "all"])
async def test_a_venue_that_recognises_an_id_must_prove_that_it_lacks_the_later_ids_of_a_key_that_is_used_again_soon(
    operation: str, lookup: Lookup
) -> None:
    setup = Restored("permanent", lookup=lookup)
    change = an_accept(key="k", now=setup.clock.now())
    [order] = change.orders
    await setup.commit(replace(change, orders=(replace(order, operation=operation),)))
    setup._order_id = order.order_id
    state = await setup.send()
    assert setup.sent_count() == (lookup == "all")
    assert state.order.status == ("WORKING" if lookup == "all" else "UNKNOWN")
    await setup.resolve(after=WINDOW * 2)
    await setup.send()
    assert setup.sent_count() == (lookup == "all")


async def test_an_order_that_a_lookup_of_open_orders_finds_goes_on_there() -> None:
    setup = Restored("while_open", lookup="open")
    await setup.accept(key="k")
    await is_at_venue(setup)
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).last_error) == ("UNKNOWN", "EXECUTED_BEFORE")
    assert await setup.resolve() == 1
    assert ((await setup.state()).order.status, setup.sent_count()) == ("WORKING", 1)


async def test_an_order_without_a_key_and_one_that_a_person_has_cleared_are_sent() -> None:
    setup = Restored("none")
    await setup.accept()
    assert (await setup.send()).order.status == "WORKING"
    setup = Restored("none")
    await setup.accept(key="k")
    state = await setup.send()
    cleared = decisions.record_unsent(
        state, state.row("new", 1), "NOT_SENT_BY_DECISION", setup.clock.now(), setup.clock.now()
    )
    await setup.commit(cleared)
    assert ((await setup.send()).order.status, setup.sent_count()) == ("WORKING", 1)


async def is_at_venue(setup: Restored) -> None:
    """Have the order at the venue, from the lost history."""
    setup.venue.orders[(await setup.state()).order.venue_client_order_id] = 1


@pytest.mark.parametrize("by", ["cancel", "kill"])
@pytest.mark.parametrize("is_there", [True, False])
async def test_an_order_that_the_lost_history_may_have_sent_is_cancelled_at_its_venue(by: str, is_there: bool) -> None:
    setup = Restored()
    state = await setup.accept(key="k")
    if by == "cancel":
        state = await setup.cancel()
    else:
        change = decisions.cancel_killed(state, await setup.kill(), setup.clock.now(), always)
        assert change is not None
        await setup.commit(change)
        state = await setup.state()
    assert (state.order.status, [row.status for row in state.outbox]) == ("UNKNOWN", ["uncertain", "queued"])
    if is_there:
        await is_at_venue(setup)
    await setup.resolve(after=WINDOW * 2)
    state = await setup.state()
    assert state.order.status == ("CANCEL_REQUESTED" if is_there else "CANCELED")
    assert state.outbox[1].status == ("queued" if is_there else "dead")


@pytest.mark.parametrize("cause", ["kill", "deadline", "waited too long", "retries"])
@pytest.mark.parametrize("is_there", [True, False])
async def test_an_order_that_the_lost_history_may_have_sent_does_not_end_before_its_venue_was_asked(
    cause: str, is_there: bool
) -> None:
    setup = Restored()
    await setup.accept("IOC" if cause == "deadline" else "GTC", key="k")
    if is_there:
        await is_at_venue(setup)
    match cause:
        case "kill":
            await setup.kill()
        case "deadline" | "waited too long":
            setup.clock.advance(WINDOW if cause == "deadline" else timedelta(hours=1))
        case "retries":
            setup.venue.takes_orders, setup.venue.answer = False, Unsent("VENUE_DOWN")
            while (await setup.send()).order.status == "ACCEPTED":
                setup.clock.advance(timedelta(seconds=5))
            assert (await setup.state()).outbox[0].attempt == 9
    state = await setup.send()
    assert (state.order.status, state.outbox[0].status, state.outbox[0].last_error) == (
        "UNKNOWN",
        "uncertain",
        "RESTORED",
    )
    await setup.resolve(after=WINDOW * 2)
    setup.venue.takes_orders, setup.venue.answer = True, Accepted("venue-1")
    # What waited for too long counts from the end of the doubt.
    absent = {"kill": "CANCELED", "deadline": "EXPIRED"}.get(cause, "WORKING")
    status = (await setup.state() if is_there or cause == "deadline" else await setup.send()).order.status
    assert status == ("WORKING" if is_there else absent)


async def test_an_order_that_the_lost_history_may_have_sent_does_not_end_while_its_venue_is_closed() -> None:
    setup = Restored("while_open")
    await setup.accept("IOC", key="k")
    setup.dispatcher.close_venue(VENUE)
    setup.clock.advance(WINDOW)
    await setup.lanes.renew()
    await setup.dispatcher.recover_once()
    assert (await setup.state()).order.status == "ACCEPTED"


def amending(qty: int, *, is_sent: bool) -> OrderState:
    """An order of 1,000, filled to 600 if it was sent, with a repeated amend."""
    accepted = an_accept(key="k")
    state = state_after(accepted)
    if is_sent:
        sending = decisions.begin_attempt(state, state.outbox[0], WORKER, START)
        sent = decisions.record_sent(state_after(accepted, sending), sending.outbox[0], "venue-1", START)
        state = state_after(accepted, sending, sent)
    amend = Amend(
        client_order_id=VenueClientOrderId("amend"),
        orig_client_order_id=state.order.venue_client_order_id,
        qty=Decimal(qty),
        price=state.order.price,
        operation=AMEND_ORDER,
        key="amend",
    )
    key = an_entry("amend", state.order.order_id)
    change = decisions.request_amend(state, amend, key, START, reducing=True, may_be_lost=always)
    filled = Decimal(600 if is_sent else 0)
    return OrderState(order=replace(change.orders[-1], filled_qty=filled), outbox=(*state.outbox, *change.outbox))


def test_an_order_that_the_lost_history_may_have_sent_is_not_amended_on_the_spot() -> None:
    state = amending(400, is_sent=False)
    assert (state.order.qty, state.order.amend_qty) == (Decimal(1000), Decimal(400))
    assert (state.outbox[1].status, state.outbox[1].bytes_sent) == ("queued", True)


async def test_an_amend_that_the_lost_history_may_have_sent_is_not_refused_before_its_venue_was_asked() -> None:
    setup, state = Restored(), amending(600, is_sent=True)
    keys = setup.lost_keys()
    assert keys is not None
    retries = decisions.retry_limits(8)
    instead = PreSendChecks(
        FirstSends({VENUE: cast(Venue, setup.venue)}, setup.clock), setup.kills, retries, keys.is_unasked
    )
    change = instead.of_message(state, state.row("amend", 1), {}, START)
    assert change is not None
    assert (change.outbox[0].status, change.outbox[0].last_error) == ("uncertain", "RESTORED")


def named(order: Order) -> Order:
    """The order under the id that is derived from its key."""
    assert order.operation is not None
    names = order.account_id, order.operation, order.idempotency_key
    return replace(order, venue_client_order_id=venue_client_order_id("abcd", *names, 0, order.order_id))


async def noting(asked: list[str], order: OrderToFind) -> None:
    asked.append(order.client_order_id)


async def test_a_key_is_looked_up_under_the_ids_that_it_had_with_other_routes() -> None:
    """The settings have changed with the restore: a venue that takes shorter ids has joined the route, or left it."""
    narrow, other = IdForm(length_max=18), VenueName("other")
    wide, short = ScriptedVenue("while_open"), ScriptedVenue("while_open")
    asked: dict[str, list[str]] = {}
    for name, venue in ((VENUE, wide), (other, short)):
        venue.find = partial(noting, asked.setdefault(name, []))  # type: ignore[method-assign]
    forms = {VENUE: WHOLE, other: narrow}
    history = lost_keys(ManualClock()).history
    venues = {VENUE: cast(Venue, wide), other: cast(Venue, short)}
    order = named(keyed("orders"))
    whole = order.venue_client_order_id
    cut = narrowed(whole, narrow)
    for own_id in (whole, cut):
        asked[VENUE].clear()
        keys = LostKeys(history, venues, lambda _symbol: (VENUE,), id_forms=forms)
        assert await keys.find(replace(order, venue_client_order_id=own_id)) is None
        assert sorted(asked[VENUE]) == sorted([whole, cut])
    keys = LostKeys(history, venues, lambda _symbol: (VENUE, other), id_forms=forms)
    assert await keys.find(replace(order, venue_client_order_id=cut)) is None
    assert asked[other] == [cut], "it never had the longer one"


async def test_a_venue_that_recognises_ids_is_asked_if_a_key_may_have_had_another_one() -> None:
    keys = lost_keys(ManualClock(), "permanent")
    forms = {VENUE: WHOLE, VenueName("other"): IdForm(length_max=18)}
    keys = LostKeys(keys.history, keys._venues, id_forms=forms)
    assert keys.must_ask(named(keyed("orders")), order_and_row()[1])


@pytest.mark.parametrize(("keeps", "lost", "told"), [(None, 0, True), (100, 0, True), (25, 0, False), (30, 4, False)])
async def test_a_key_of_the_lost_history_is_absent_only_if_the_venue_keeps_orders_for_longer_than_keys_live(
    keeps: int | None, lost: int, told: bool
) -> None:
    """Its order may have been sent up to the lifetime of a key before the restore."""
    clock, hour = ManualClock(), timedelta(hours=1)
    keys, venue = lost_keys(clock), ScriptedVenue("while_open")
    venue.capabilities = replace(venue.capabilities, lookup_keeps=None if keeps is None else keeps * hour)
    keys = LostKeys(keys.history, {VENUE: cast(Venue, venue)})
    clock.advance(lost * hour)
    state = state_after(an_accept(key="k", now=clock.now()))
    page, doubts = [Due(state.outbox[0], state)], list[DoubtCode]()

    async def note_doubt(_due: Due, code: DoubtCode) -> None:
        doubts.append(code)

    assert bool(await keys.absent(page, {VENUE}, note_doubt)) is told
    assert doubts == ([] if told else ["RESTORED"])
