"""The kill switch in a worker: orders end or stay in doubt instead of being sent, and open ones are cancelled."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from switchyard.adapters.system_clock import SystemRandomness
from switchyard.domain import decisions
from switchyard.domain.errors import InvalidField, KillCleared, NotFound, TooManyKills
from switchyard.domain.ids import AccountId, KillId, VenueName
from switchyard.domain.journal.changes import Committed
from switchyard.domain.risk.kills import PROGRAMS, Kill
from switchyard.flow.kill.cancels import KillCancels
from switchyard.flow.kill.switch import KillRequest, KillSwitch
from switchyard.ports.venue import Accepted, Ambiguous, VenueUnavailable
from tests.support.build import VENUE, an_accept
from tests.support.sending import BatchVenue, Sending

EVERYTHING = KillRequest(everything=True, by="ann", reason="drill")


def accepts(orders: Any) -> list[Accepted]:
    return [Accepted(f"v-{order.order_id}") for order in orders]


def loses(orders: Any) -> list[Ambiguous]:
    return [Ambiguous("NETWORK_TIMEOUT")] * len(orders)


def the_switch(sending: Sending) -> KillSwitch:
    return KillSwitch(
        journal=sending.database.journal,
        kills=sending.database.kills,
        commit=sending.sequencer.commit,
        clock=sending.clock,
        randomness=SystemRandomness(),
        venues=[VENUE],
    )


def the_cancels(sending: Sending) -> KillCancels:
    return KillCancels(
        kills=sending.database.kills,
        active=sending.kills,
        sequencer=sending.sequencer,
        clock=sending.clock,
        metrics=sending.metrics,
    )


async def sent_all(sending: Sending) -> None:
    """Claim and send until nothing is due."""
    while await sending.dispatcher.run_once():
        await sending.dispatcher.drain(10)


async def test_a_queued_order_ends_instead_of_being_sent() -> None:
    venue = BatchVenue("permanent", accepts)
    sending = Sending(venue)
    [order_id] = await sending.accept()
    kill = await the_switch(sending).set(EVERYTHING)

    await sent_all(sending)

    state = sending.state(order_id)
    assert (state.order.status, state.order.reason) == ("CANCELED", "KILL_SWITCH")
    assert (state.outbox[0].status, state.outbox[0].error_detail) == ("dead", kill.kill_id)
    assert venue.sent == []


async def test_an_order_that_the_kill_does_not_cover_is_sent() -> None:
    venue = BatchVenue("permanent", accepts)
    sending = Sending(venue)
    [order_id] = await sending.accept()
    await the_switch(sending).set(KillRequest(symbol="EURUSD", by="ann", reason="drill"))

    await sent_all(sending)

    assert sending.state(order_id).order.status == "WORKING"


async def test_a_resend_is_blocked_and_the_order_stays_in_doubt() -> None:
    venue = BatchVenue("permanent", loses, accepts)
    sending = Sending(venue)
    [order_id] = await sending.accept()
    await sent_all(sending)
    assert sending.state(order_id).outbox[0].status == "failed"
    await the_switch(sending).set(EVERYTHING)

    sending.clock.advance(timedelta(seconds=60))
    await sending.lanes.renew()
    await sent_all(sending)

    state = sending.state(order_id)
    assert (state.order.status, state.outbox[0].status) == ("UNKNOWN", "uncertain")
    assert venue.sent == [order_id]


async def test_a_kill_between_the_claim_and_the_wire_stops_the_send() -> None:
    venue = BatchVenue("permanent", accepts)
    sending = Sending(venue)
    [order_id] = await sending.accept()
    # Noted by this process after its attempt was committed, before the request is written.
    claim = sending.dispatcher.run_once()
    kill = Kill(kill_id=KillId("kill_1"), set_by="ann", set_reason="drill", set_at=sending.clock.now(), version=1)
    original = sending.sequencer.propose

    async def propose(proposals: Any) -> Any:
        answers = await original(proposals)
        if not sending.kills.is_empty:
            return answers
        assert isinstance(await sending.sequencer.commit(decisions.set_kill(kill)), Committed)
        sending.kills.note(kill)
        return answers

    sending.sequencer.propose = propose  # type: ignore[method-assign,assignment]
    await claim
    await sending.dispatcher.drain(10)
    assert sending.state(order_id).order.status == "ACCEPTED"
    assert not sending.state(order_id).outbox[0].bytes_sent

    await sent_all(sending)

    assert sending.state(order_id).order.reason == "KILL_SWITCH"
    assert venue.sent == []


async def test_after_the_clearing_an_accepted_order_is_sent_although_the_worker_knew_the_kill() -> None:
    venue = BatchVenue("permanent", accepts)
    sending = Sending(venue)
    switch = the_switch(sending)
    kill = await switch.set(EVERYTHING)
    await sending.kills.refresh()
    # Cleared by another process: this one's copy is older.
    await sending.database.journal.append(
        0, "elsewhere", [decisions.clear_kill(kill, "bob", "over", sending.clock.now())], sending.clock.now()
    )
    [order_id] = await sending.accept()
    assert not sending.kills.is_empty

    await sent_all(sending)

    assert sending.state(order_id).order.status == "WORKING"


async def test_open_orders_are_cancelled_and_each_is_tried_once() -> None:
    venue = BatchVenue("permanent", accepts)
    sending = Sending(venue)
    working = await sending.accept(3)
    await sent_all(sending)
    kill = await the_switch(sending).set(EVERYTHING)
    cancels = the_cancels(sending)

    assert await cancels.run_once() == 3
    assert await cancels.run_once() == 0

    assert {sending.state(order_id).order.status for order_id in working} == {"CANCEL_REQUESTED"}
    state = await the_switch(sending).state(kill.kill_id)
    assert (state.counts, state.drained, state.position) == ({"PENDING": 3}, False, kill.seq)


async def test_a_rejected_cancel_makes_the_order_not_cancellable() -> None:
    sending = Sending(BatchVenue("permanent", accepts))
    [order_id] = await sending.accept()
    await sent_all(sending)
    kill = await the_switch(sending).set(EVERYTHING)
    cancels = the_cancels(sending)
    await cancels.run_once()
    state = sending.state(order_id)
    cancel = state.row("cancel", 1)
    attempt = decisions.begin_attempt(state, cancel, sending.dispatcher._worker, sending.clock.now())
    await sending.sequencer.commit(attempt)
    state = sending.state(order_id)
    rejected = decisions.record_rejected(state, state.row("cancel", 1), "BROKER_REJECTED", sending.clock.now())
    await sending.sequencer.commit(rejected)

    assert await cancels.run_once() == 0

    told = await the_switch(sending).state(kill.kill_id)
    assert ([order.fate for order in told.orders], told.drained) == (["NOT_CANCELLABLE"], False)


async def test_a_cancel_that_was_rejected_before_the_kill_is_tried_again() -> None:
    sending = Sending(BatchVenue("permanent", accepts))
    [order_id] = await sending.accept()
    await sent_all(sending)
    worker, now = sending.dispatcher._worker, sending.clock.now()
    cancel = decisions.request_cancel(sending.state(order_id), now)
    assert cancel is not None
    await sending.sequencer.commit(cancel)
    state = sending.state(order_id)
    await sending.sequencer.commit(decisions.begin_attempt(state, state.row("cancel", 1), worker, now))
    state = sending.state(order_id)
    await sending.sequencer.commit(decisions.record_rejected(state, state.row("cancel", 1), "BROKER_REJECTED", now))
    sending.clock.advance(timedelta(seconds=1))
    await the_switch(sending).set(EVERYTHING)

    assert await the_cancels(sending).run_once() == 1
    assert sending.state(order_id).order.status == "CANCEL_REQUESTED"


async def test_attempts_in_flight_are_named_and_keep_the_kill_from_being_drained() -> None:
    venue = BatchVenue("permanent", accepts)
    venue.open.clear()
    sending = Sending(venue)
    [order_id] = await sending.accept()
    await sending.dispatcher.run_once()
    kill = await the_switch(sending).set(EVERYTHING)

    state = await the_switch(sending).state(kill.kill_id)
    assert (state.in_flight, state.drained) == ((order_id,), False)

    venue.open.set()
    await sending.dispatcher.drain(10)
    state = await the_switch(sending).state(kill.kill_id)
    assert (state.in_flight, state.counts) == ((), {"PENDING": 1})


async def test_a_kill_is_drained_when_all_orders_have_ended() -> None:
    sending = Sending(BatchVenue("permanent", accepts))
    await sending.accept(2)
    kill = await the_switch(sending).set(EVERYTHING)

    await the_cancels(sending).run_once()

    state = await the_switch(sending).settled_state(kill.kill_id, 0)
    assert (state.counts, state.drained) == ({"CANCELED": 2}, True)


async def test_orders_are_listed_in_pages_and_counted_as_a_whole() -> None:
    sending = Sending(BatchVenue("permanent", accepts))
    ids = sorted(await sending.accept(5))
    switch = the_switch(sending)
    kill = await switch.set(EVERYTHING)

    first = await switch.state(kill.kill_id, limit=3)
    second = await switch.state(kill.kill_id, after=first.next_cursor, limit=3)

    assert [order.order_id for order in (*first.orders, *second.orders)] == ids
    assert (first.counts, second.next_cursor) == ({"PENDING": 5}, None)


async def test_the_same_request_finds_the_kill_that_it_set() -> None:
    switch = the_switch(Sending(BatchVenue("permanent")))
    first = await switch.set(EVERYTHING)

    assert (await switch.set(EVERYTHING)).kill_id == first.kill_id
    other = await switch.set(KillRequest(everything=True, by="bob", reason="drill"))
    assert other.kill_id != first.kill_id


async def test_the_same_request_at_the_same_time_gets_one_kill() -> None:
    switch = the_switch(Sending(BatchVenue("permanent")))

    one, other = await asyncio.gather(switch.set(EVERYTHING), switch.set(EVERYTHING))

    assert one == other


async def test_a_kill_is_cleared_once_and_only_if_it_exists() -> None:
    switch = the_switch(Sending(BatchVenue("permanent")))
    kill = await switch.set(EVERYTHING)
    await switch.clear(kill.kill_id, "bob", "over")

    with pytest.raises(KillCleared, match="bob"):
        await switch.clear(kill.kill_id, "cleo", "over")
    with pytest.raises(NotFound):
        await switch.clear(KillId("kill_0"), "cleo", "over")
    with pytest.raises(InvalidField, match="reason"):
        await switch.clear(kill.kill_id, "cleo", "")
    with pytest.raises(InvalidField, match="by"):
        await switch.clear(kill.kill_id, "", "over")


async def test_the_number_of_active_kills_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.flow.kill.switch.ACTIVE_KILLS_MAX", 2)
    switch = the_switch(Sending(BatchVenue("permanent")))
    for symbol in ("A", "B"):
        await switch.set(KillRequest(symbol=symbol, by="ann", reason="drill"))

    with pytest.raises(TooManyKills, match=r"set by people.*clear some.*a kill of everything can still be set"):
        await switch.set(KillRequest(symbol="C", by="ann", reason="drill"))
    assert (await switch.set(EVERYTHING)).is_active  # there is always room for this one
    # Nor do people take the room of programs.
    assert (await switch.set_by_program(automatic(1))).is_active


def automatic(account: int, strategy: str = "s") -> KillRequest:
    return KillRequest(
        account=AccountId(f"acc-{account}"), strategy=strategy, by="switchyard repeated executions", reason="fills"
    )


@pytest.mark.parametrize("name", sorted(PROGRAMS))
async def test_a_person_sets_no_kill_in_the_name_of_a_program(name: str) -> None:
    """It would count as one of the program: towards whole accounts, and as a restriction that is set already."""
    switch = the_switch(Sending(BatchVenue("permanent")))
    with pytest.raises(InvalidField, match=f"{name}.*person's name") as caught:
        await switch.set(msgspec.structs.replace(EVERYTHING, by=name))
    assert caught.value.field == "by"
    assert await switch.newest(before=None, limit=1) == []
    assert (await switch.set_by_program(msgspec.structs.replace(EVERYTHING, by=name))).is_active


async def test_programs_stop_whole_accounts_when_their_kills_are_many_and_leave_room_for_people(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("switchyard.flow.kill.switch.ACTIVE_KILLS_MAX", 1)
    monkeypatch.setattr("switchyard.flow.kill.switch.AUTOMATIC_STRATEGY_KILLS_MAX", 2)
    monkeypatch.setattr("switchyard.flow.kill.switch.AUTOMATIC_KILLS_MAX", 4)
    switch = the_switch(Sending(BatchVenue("permanent")))

    kills = [await switch.set_by_program(automatic(number)) for number in range(4)]

    assert [kill.strategy for kill in kills] == ["s", "s", None, None]
    assert "strategy s: fills" in kills[-1].set_reason
    assert await switch.set_by_program(automatic(3, "another")) == kills[3]  # it is stopped already
    with pytest.raises(TooManyKills, match="4 kills set by programs"):
        await switch.set_by_program(automatic(4))
    assert (await switch.set(KillRequest(account=AccountId("acc-4"), by="ann", reason="drill"))).is_active


async def test_a_program_that_stops_everything_twice_sets_one_kill() -> None:
    switch = the_switch(Sending(BatchVenue("permanent")))
    first, second = [
        await switch.set_by_program(KillRequest(everything=True, by="switchyard sent ids", reason=f"{count} ids"))
        for count in (3, 5)
    ]
    assert first == second


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("everything", KillRequest(by="ann", reason="x")),
        ("everything", KillRequest(by="ann", reason="x", everything=True, symbol="USDJPY")),
        ("venue", KillRequest(by="ann", reason="x", venue=VenueName("nowhere"))),
        ("symbol", KillRequest(by="ann", reason="x", symbol="usd jpy")),
        ("strategy", KillRequest(by="ann", reason="x", strategy="A B")),
        ("account", KillRequest(by="ann", reason="x", account=AccountId(""))),
        ("reason", KillRequest(by="ann", reason="", everything=True)),
        ("by", KillRequest(by="", reason="x", everything=True)),
    ],
)
async def test_a_malformed_kill_names_the_field(field: str, request_: KillRequest) -> None:
    with pytest.raises(InvalidField) as caught:
        await the_switch(Sending(BatchVenue("permanent"))).set(request_)
    assert caught.value.field == field


async def test_a_kill_is_committed_alone_and_before_what_waits() -> None:
    sending = Sending(BatchVenue("permanent"))
    kill = Kill(kill_id=KillId("kill_1"), set_by="ann", set_reason="drill", set_at=sending.clock.now(), version=1)
    accepts = [sending.sequencer.commit(an_accept(now=sending.clock.now())) for _ in range(20)]

    outcomes = await asyncio.gather(*accepts, sending.sequencer.commit(decisions.set_kill(kill)))

    assert outcomes[-1] == Committed(1)
    assert all(not isinstance(outcome, Committed) for outcome in outcomes[:-1])


class MassVenue:
    """A venue that can cancel all orders at once."""

    def __init__(self, *, is_available: bool = True) -> None:
        self.name = VENUE
        self.calls = 0
        self._is_available = is_available

    async def cancel_all(self) -> None:
        self.calls += 1
        if not self._is_available:
            raise VenueUnavailable("no answer")


def mass_cancels(sending: Sending, venue: MassVenue) -> KillCancels:
    return KillCancels(
        kills=sending.database.kills,
        active=sending.kills,
        sequencer=sending.sequencer,
        clock=sending.clock,
        metrics=sending.metrics,
        mass_cancels=lambda: {VENUE: venue},
    )


async def test_a_mass_cancel_goes_first_and_what_stays_open_is_cancelled_order_by_order() -> None:
    sending, venue = Sending(BatchVenue("permanent", accepts)), MassVenue()
    await sending.accept(3)
    await sent_all(sending)
    await the_switch(sending).set(KillRequest(venue=VENUE, by="ann", reason="drill"))
    cancels = mass_cancels(sending, venue)

    assert await cancels.run_once() == 0
    sending.clock.advance(timedelta(seconds=3))
    assert await cancels.run_once() == 3
    assert venue.calls == 1


async def test_without_an_answer_to_the_mass_cancel_orders_are_cancelled_at_once() -> None:
    sending, venue = Sending(BatchVenue("permanent", accepts)), MassVenue(is_available=False)
    await sending.accept(3)
    await sent_all(sending)
    await the_switch(sending).set(EVERYTHING)

    assert await mass_cancels(sending, venue).run_once() == 3
    assert venue.calls == 1


@pytest.mark.parametrize(
    "scope",
    [{"account": AccountId("acc-1")}, {"symbol": "USDJPY"}, {"venue": VENUE, "symbol": "USDJPY"}],
)
async def test_a_mass_cancel_is_not_used_where_it_would_cancel_more_than_the_kill_covers(
    scope: dict[str, Any],
) -> None:
    sending, venue = Sending(BatchVenue("permanent", accepts)), MassVenue()
    await sending.accept()
    await sent_all(sending)
    await the_switch(sending).set(KillRequest(by="ann", reason="drill", **scope))

    assert await mass_cancels(sending, venue).run_once() == 1
    assert venue.calls == 0


async def test_a_kill_of_several_processes_under_one_id_is_set_once_and_stays_cleared() -> None:
    sending = Sending(BatchVenue("permanent", accepts))
    switches = [the_switch(sending) for _ in range(3)]
    shared = KillId("kill_of_an_event")

    kills = await asyncio.gather(*(switch.set(EVERYTHING, new_id=shared) for switch in switches))

    assert {kill.kill_id for kill in kills} == {shared}
    assert len(await sending.database.kills.active()) == 1
    await switches[0].clear(shared, "bob", "looked at it")
    assert not (await switches[1].set(EVERYTHING, new_id=shared)).is_active
    assert await sending.database.kills.active() == []
