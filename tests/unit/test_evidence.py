"""What proves that an order is absent, what may be sent again then, and which orders free their key."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from switchyard.domain import decisions
from switchyard.domain.ids import VenueName, WorkerId
from switchyard.domain.journal.lines import decode_order_fact
from switchyard.domain.orders.outbox import OrderState, OutboxRow, is_proven_unsent
from switchyard.flow.sending.resolve import PAGE
from switchyard.ports.venue import Accepted, Ambiguous, Dedupe, SendOutcome, Unsent, VenueRejected
from tests.support.build import VENUE, a_report, an_accept
from tests.support.one_order import SECOND, WINDOW, Setup

LOST = Ambiguous("NETWORK_TIMEOUT")


async def in_doubt(dedupe: Dedupe = "while_open", time_in_force: str = "GTC", **capabilities: Any) -> Setup:
    """An order whose send was lost, at a venue that never got it."""
    setup = Setup(dedupe)
    setup.promise(lookup="all", **capabilities)
    setup.venue.answer, setup.venue.takes_orders = LOST, False
    await setup.accept(time_in_force)
    assert (await setup.send()).order.status == "UNKNOWN"
    return setup


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
async def test_a_step_of_the_wall_clock_neither_ends_nor_prolongs_the_waiting_time(step: timedelta) -> None:
    setup = await in_doubt()
    assert await setup.resolve(after=WINDOW / 2) == 0
    setup.clock.step(step)
    assert await setup.resolve(after=WINDOW / 2 - SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1


async def test_the_waiting_time_counts_only_while_the_venue_answers() -> None:
    setup = await in_doubt()
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    setup.venue.can_be_asked = False
    assert await setup.resolve(after=25 * SECOND) == 0
    setup.venue.can_be_asked = True  # it works through its input now
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1


async def test_a_restart_starts_the_waiting_time_anew() -> None:
    setup = await in_doubt()
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    setup.restart()
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1


async def test_the_hold_of_a_proxy_is_added_to_the_waiting_time() -> None:
    setup = await in_doubt(hop_hold=20 * SECOND)
    assert await setup.resolve(after=WINDOW + 19 * SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1


@pytest.mark.parametrize(
    ("dedupe", "capabilities"),
    [("while_open", {"acceptance_window": None}), ("ttl", {"acceptance_window": None}), ("none", {})],
)
async def test_without_a_documented_window_or_deduplication_absent_never_resends_but_found_settles(
    dedupe: Dedupe, capabilities: dict[str, Any]
) -> None:
    setup = await in_doubt(dedupe, **capabilities)
    assert await setup.resolve(after=timedelta(minutes=10)) == 0
    state = await setup.send()
    assert (state.order.status, state.row("new", 1).attempt) == ("UNKNOWN", 1)
    setup.venue.orders[state.order.venue_client_order_id] = 1
    assert await setup.resolve(after=timedelta(minutes=1)) == 1
    assert (await setup.state()).order.status == "WORKING"


async def test_a_sender_that_takes_its_lock_again_stops_the_waiting_time() -> None:
    setup = Setup("while_open", worker="two")
    setup.venue.takes_orders = False
    state = await setup.accept()
    paused = WorkerId("paused")
    await setup.commit(decisions.begin_attempt(state, state.row("new", 1), paused, setup.clock.now()))
    state = await setup.state()
    await setup.commit(
        decisions.record_doubt(state, state.row("new", 1), "STUCK", None, setup.clock.now(), suspect=paused)
    )
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    setup.liveness.living.add(paused)
    assert await setup.resolve(after=WINDOW) == 0
    setup.liveness.living.discard(paused)
    assert await setup.resolve(after=WINDOW - SECOND) == 0
    assert await setup.resolve(after=SECOND) == 1


async def test_an_absent_order_is_sent_again_under_its_id_and_a_rejection_is_then_final() -> None:
    setup = await in_doubt()
    assert await setup.resolve(after=WINDOW) == 1
    state = await setup.state()
    assert (state.order.status, state.row("new", 1).last_error) == ("ACCEPTED", "ABSENT_AT_VENUE")
    assert state.row("new", 1).bytes_sent
    setup.venue.answer = VenueRejected("BAD_REQUEST", "INVALID_QTY")
    assert (await setup.send()).order.status == "REJECTED", "as on a first attempt: nothing is in doubt any more"


async def test_a_lookup_that_misses_an_order_with_a_fill_contradicts_nothing() -> None:
    setup = await in_doubt()
    state = await setup.state()
    row = state.row("new", 1)
    filled = decisions.apply_report(state, None, a_report(state, "PARTIALLY_FILLED", exec_id="1"), setup.clock.now())
    state = msgspec.structs.replace(state, order=filled.orders[0])
    change = decisions.record_absent(state, row, setup.clock.now())
    assert (change.outbox[0].status, change.orders[0].filled_qty) == ("sent", filled.orders[0].filled_qty)


@pytest.mark.parametrize(
    ("outcome", "bytes_sent"),
    [
        (Unsent("BROKER_DOWN"), False),
        (Unsent("RATE_LIMITED", bytes_sent=True), True),
        (Accepted("venue-1"), True),
        (VenueRejected("BAD_REQUEST"), True),
        (LOST, True),
    ],
)
async def test_a_row_remembers_whether_a_byte_was_written(outcome: SendOutcome, bytes_sent: bool) -> None:
    setup = Setup("while_open")
    setup.venue.answer = outcome
    await setup.accept()
    assert (await setup.send()).row("new", 1).bytes_sent is bytes_sent


async def test_the_attempt_of_a_dead_sender_may_have_written_bytes() -> None:
    setup = Setup("while_open")
    state = await setup.accept()
    await setup.commit(decisions.begin_attempt(state, state.row("new", 1), WorkerId("gone"), setup.clock.now()))
    await setup.dispatcher.recover_once()
    assert (await setup.state()).row("new", 1).bytes_sent


@pytest.mark.parametrize(
    ("first", "frees"), [(Unsent("BROKER_DOWN"), True), (Unsent("RATE_LIMITED", bytes_sent=True), False)]
)
async def test_an_expired_order_frees_its_key_only_if_no_byte_was_written(first: SendOutcome, frees: bool) -> None:
    setup = Setup("permanent")
    setup.venue.answer = first
    await setup.accept("IOC")
    await setup.send()
    setup.clock.advance(5 * SECOND)
    state = await setup.send()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "BROKER_DOWN" if frees else "NOT_PROCESSED")
    assert is_proven_unsent(state) is frees


async def test_an_order_that_was_never_attempted_frees_its_key() -> None:
    setup = Setup("permanent")
    await setup.accept("IOC")
    setup.clock.advance(5 * SECOND)
    assert is_proven_unsent(await setup.send())


@pytest.mark.parametrize("dedupe", ["permanent", "while_open", "ttl"])
async def test_an_absent_order_that_ends_never_frees_its_key(dedupe: Dedupe) -> None:
    setup = await in_doubt(dedupe, "IOC")
    setup.clock.advance(3 * SECOND)
    await setup.send()  # permanent: too late for the resend
    assert await setup.resolve(after=WINDOW) == 1
    state = await setup.state()
    assert (state.order.status, state.order.reason) == ("EXPIRED", "ABSENT_AT_VENUE")
    assert not is_proven_unsent(state)


def altered(state: OrderState, **order: Any) -> OrderState:
    return msgspec.structs.replace(state, order=msgspec.structs.replace(state.order, **order))


async def test_a_venue_order_id_or_a_fill_keeps_the_key() -> None:
    setup = Setup("permanent")
    await setup.accept("IOC")
    setup.clock.advance(5 * SECOND)
    state = await setup.send()
    assert not is_proven_unsent(altered(state, venue_order_id="v1"))
    assert not is_proven_unsent(altered(state, filled_qty=Decimal(1)))


async def test_within_the_time_to_live_a_resend_needs_no_lookup_and_after_it_a_proof() -> None:
    setup = await in_doubt("ttl", dedupe_ttl=60 * SECOND)
    assert (await setup.state()).row("new", 1).status == "failed"
    setup.clock.advance(3 * SECOND)
    state = await setup.send()
    assert (state.row("new", 1).attempt, state.row("new", 1).status) == (2, "failed")
    # 60 s less a tenth, less the 9 s in which a resend may still be on its way.
    setup.clock.advance(42 * SECOND)
    state = await setup.send()
    assert (state.row("new", 1).attempt, state.row("new", 1).status) == (2, "uncertain")
    assert await setup.resolve(after=WINDOW) == 1
    state = await setup.send()
    assert (state.row("new", 1).attempt, state.row("new", 1).status) == (3, "failed"), "a new first attempt"


async def test_the_hold_of_a_proxy_shortens_the_time_for_resends() -> None:
    setup = await in_doubt("ttl", dedupe_ttl=60 * SECOND, hop_hold=20 * SECOND)
    # 60 s less a tenth, less the 9 s in which a resend may still be on its way, less the hold.
    setup.clock.advance(24 * SECOND)
    state = await setup.send()
    assert (state.row("new", 1).attempt, state.row("new", 1).status) == (2, "failed")
    setup.clock.advance(5 * SECOND)
    state = await setup.send()
    assert (state.row("new", 1).attempt, state.row("new", 1).status) == (2, "uncertain")


async def test_another_process_does_not_know_the_time_of_the_first_send() -> None:
    setup = await in_doubt("ttl", dedupe_ttl=60 * SECOND)
    setup.restart()
    setup.clock.advance(3 * SECOND)
    state = await setup.send()
    assert (state.row("new", 1).attempt, state.row("new", 1).status) == (1, "uncertain")


async def test_a_venue_that_no_longer_promises_permanent_deduplication_gets_no_resend() -> None:
    setup = await in_doubt("permanent")
    setup.promise(dedupe="while_open")
    setup.clock.advance(5 * SECOND)
    state = await setup.send()
    assert (state.row("new", 1).attempt, state.row("new", 1).status) == (1, "uncertain")


async def test_doubts_that_cannot_be_settled_do_not_keep_the_others_waiting() -> None:
    setup = Setup("while_open")
    setup.promise(acceptance_window=None)
    rows = [await doubtful(setup) for _ in range(2 * PAGE)]
    newest = await doubtful(setup)
    setup.venue.orders[newest.venue_client_order_id] = 1
    await setup.watch.probe_once()
    assert [await setup.resolver.run_once() for _ in range(3)] == [0, 0, 1]
    asked_twice = [await setup.resolver.run_once() for _ in range(3)]
    assert (asked_twice, len(rows)) == ([0, 0, 0], 2 * PAGE)


async def test_doubts_at_one_venue_do_not_keep_another_waiting() -> None:
    setup = Setup("while_open")
    for _ in range(PAGE):
        await doubtful(setup, VenueName("elsewhere"))
    newest = await doubtful(setup)
    setup.venue.orders[newest.venue_client_order_id] = 1
    await setup.watch.probe_once()
    assert await setup.resolver.run_once() == 1


async def doubtful(setup: Setup, venue: VenueName = VENUE) -> OutboxRow:
    """Another order in doubt."""
    accepted = an_accept(now=setup.clock.now(), time_in_force="GTC")
    accepted = msgspec.structs.replace(
        accepted,
        orders=(msgspec.structs.replace(accepted.orders[0], venue=venue),),
        outbox=(msgspec.structs.replace(accepted.outbox[0], venue=venue),),
    )
    state = OrderState(order=accepted.orders[0], outbox=accepted.outbox)
    await setup.commit(accepted)
    doubt = decisions.record_doubt(state, accepted.outbox[0], "NETWORK_TIMEOUT", None, setup.clock.now())
    await setup.commit(doubt)
    return doubt.outbox[0]


async def test_the_event_tells_what_is_known_about_the_doubt() -> None:
    setup = Setup("while_open")
    setup.venue.answer = Ambiguous("NETWORK_TIMEOUT", "no answer in 5 s", "192.0.2.1:443")
    await setup.accept()
    begun_at = setup.clock.now()
    await setup.send()
    [line] = [event for event in setup.journal.events[0] if event.type == "OrderUncertain"]
    data = msgspec.json.decode(line.line, type=dict[str, msgspec.Raw])["data"]
    doubt = decode_order_fact(data).doubt
    assert doubt is not None
    assert (doubt.bytes_sent, doubt.code, doubt.detail) == (True, "NETWORK_TIMEOUT", "no answer in 5 s")
    assert (doubt.address, doubt.since) == ("192.0.2.1:443", begun_at)
