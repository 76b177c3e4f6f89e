"""Replay: the lines of the journal fold back into the same rows, and a line that does not follow is named."""

import asyncio
import json
from datetime import timedelta, timezone
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.domain import decisions
from switchyard.domain.accounts.positions import Position
from switchyard.domain.errors import OrderFinal
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName, WorkerId
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.events import Event
from switchyard.domain.journal.facts import Quote
from switchyard.domain.journal.lines import AuditLine, state_digest
from switchyard.domain.journal.replay import Replay, ReplayMismatch
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.lifecycle import ImpossibleStep
from switchyard.domain.orders.order import Order, OrderRequest
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport
from tests.support.memory.clock import START
from tests.support.memory.journal import MemoryJournal

ACCOUNT = AccountId("acct-1")
VENUE = VenueName("sim")
WORKER = WorkerId("worker-1")
POSITION = (ACCOUNT, "USDJPY")
ORDER_ID = OrderId("ord_01JGTESTORDER0000000000001")

quantities = st.decimals("0.00000001", "3", places=8) | st.decimals("1", "12", places=0)
prices = st.none() | st.decimals("0.001", "99999", places=3)
reports = st.builds(
    ExecutionReport,
    exec_id=st.integers(0, 40).map(str),  # few enough that some come twice
    venue=st.just(VENUE),
    venue_client_order_id=st.just(VenueClientOrderId("")),
    venue_order_id=st.sampled_from(["v-1", "v-2"]),
    # The first two more often than the others, which end the order.
    status=st.sampled_from(["WORKING", "PARTIALLY_FILLED"] * 4 + ["FILLED", "CANCELED", "REJECTED", "EXPIRED"]),
    last_qty=st.just(Decimal(0)) | quantities,
    last_price=prices,
    filled_qty_total=quantities,
    reason=st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
    at=st.just(START),
)
# Weighted so that orders get through several states; an outcome without an attempt is skipped.
happenings = st.sampled_from(
    ["attempt"] * 5 + ["sent"] * 3 + ["report"] * 3 + ["cancel"] * 2 + ["unsent", "rejected", "doubt", "resend"]
)
# The clock goes back sometimes: a row keeps the later of two times, and so must the replay.
steps = st.tuples(st.integers(0, 2), happenings, st.integers(-30, 90), reports)


class History:
    """Orders with a random history, in a journal that keeps their rows."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self._now = START
        self._groups = 0

    async def live_through(self, number: int, happening: str, seconds: int, report: ExecutionReport) -> None:
        self._now += timedelta(seconds=seconds)
        order_id = OrderId(f"{ORDER_ID[:-1]}{number}")
        state = (await self.journal.load([order_id])).get(order_id)
        held = (await self.journal.load_positions([POSITION])).get(POSITION)
        change = self._accept(order_id, number) if state is None else self._decide(state, held, happening, report)
        if change is not None:
            self._groups += 1
            await self.journal.append(0, str(self._groups), [change], self._now)

    def _accept(self, order_id: OrderId, number: int) -> Change:
        request = OrderRequest(
            symbol="USDJPY",
            side="SELL" if number == 2 else "BUY",
            type="LIMIT",
            qty=Decimal(10 + number),
            price=Decimal("151.235"),
            time_in_force="GTD" if number == 2 else "GTC",
            client_order_id="mine",
            tags=("a", "b") if number else (),
            post_only=number == 1,
            reduce_only=number == 2,
            display_qty=Decimal(number) if number else None,
        )
        entry = KeyEntry(
            account_id=ACCOUNT,
            operation="orders",
            idempotency_key=f"key-{number}",
            generation=0,
            order_id=order_id,
            request_digest="sha256:00",
            created_at=self._now,
            expires_at=self._now + timedelta(hours=24),
        )
        return decisions.accept(
            request,
            account=ACCOUNT,
            order_id=order_id,
            venue=VENUE,
            venue_client_order_id=VenueClientOrderId(f"client-{number}"),
            key=entry if number else None,
            quote=Quote(bid=Decimal("151.1"), ask=Decimal("151.3")),
            now=self._now,
            expires_at=self._now + timedelta(hours=1) if number == 2 else None,
        )

    def _decide(
        self, state: OrderState, held: Position | None, happening: str, report: ExecutionReport
    ) -> Change | None:
        try:
            if happening == "report":
                return decisions.apply_report(state, held, report, self._now)
            if happening == "cancel":
                return decisions.request_cancel(state, self._now)
            if happening == "attempt":
                due = [row for row in state.outbox if row.status in ("queued", "failed")]
                return decisions.begin_attempt(state, due[0], WORKER, self._now) if due else None
            return self._outcome(state, happening)
        except (ImpossibleStep, OrderFinal):
            return None

    def _outcome(self, state: OrderState, happening: str) -> Change | None:
        row = next((row for row in state.outbox if row.status == "sending"), None)
        later = self._now + timedelta(seconds=4)
        if row is None:
            return None
        match happening:
            case "sent":
                return decisions.record_sent(state, row, "v-1", self._now)
            case "unsent":
                return decisions.record_unsent(state, row, "BROKER_DOWN", later, self._now, detail="connection refused")
            case "rejected":
                return decisions.record_rejected(state, row, "BROKER_REJECTED", self._now, detail="no margin")
            case _:
                resend_at = later if happening == "resend" else None
                return decisions.record_doubt(state, row, "NETWORK_TIMEOUT", resend_at, self._now)


def lines(journal: MemoryJournal) -> list[AuditLine]:
    return [msgspec.json.decode(event.line, type=AuditLine) for event in journal.events.get(0, [])]


def as_line(event: Event, seq: int) -> AuditLine:
    text = f'{{"epoch":1,"shard":0,"seq":{seq},"at":"2026-01-05T09:00:09.000000Z",{event.tail},"hash":""}}'
    return msgspec.json.decode(text, type=AuditLine)


def replayed(audit_lines: list[AuditLine]) -> Replay:
    replay = Replay()
    for line in audit_lines:
        replay.apply(line)
    return replay


def sorted_orders(journal: MemoryJournal) -> list[Order]:
    return [order for _, order in sorted(journal.orders.items())]


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=20, max_size=80))
def test_folding_the_lines_makes_the_same_rows(path: list[tuple[int, str, int, ExecutionReport]]) -> None:
    history = History()

    async def live() -> None:
        for step in path:
            await history.live_through(*step)

    asyncio.run(live())
    journal = history.journal
    replay = replayed(lines(journal))
    assert replay.orders == journal.orders
    assert replay.outbox == journal.outbox
    assert replay.keys == journal.keys
    assert replay.positions == journal.positions
    assert replay.executions == journal.executions
    assert not replay.within_change
    assert state_digest(replay.sorted_orders()) == state_digest(sorted_orders(journal))


def report(exec_id: str, qty: str = "4", price: str | None = "151.2") -> ExecutionReport:
    return ExecutionReport(
        exec_id=exec_id,
        venue=VENUE,
        venue_client_order_id=VenueClientOrderId("client-1"),
        venue_order_id="v-1",
        status="PARTIALLY_FILLED",
        last_qty=Decimal(qty),
        last_price=None if price is None else Decimal(price),
        at=START,
    )


async def filled_history() -> MemoryJournal:
    """Accepted, sending, sent, then two partial fills of two events each: seven lines."""
    history = History()
    for happening in ("accept", "attempt", "sent", "report"):
        await history.live_through(1, happening, 1, report("e-1"))
    await history.live_through(1, "report", 1, report("e-2", "3"))
    return history.journal


async def test_the_event_of_an_order_without_the_members_that_only_some_venues_have_shows_none_of_them() -> None:
    history = History()
    for number in range(3):
        await history.live_through(number, "accept", 1, report("e-1"))
    plain, one, other = (json.loads(bytes(line.data))["order"] for line in lines(history.journal))
    wishes = {"postOnly", "venueReduceOnly", "displayQty", "expiresAt"}
    assert wishes.isdisjoint(plain)
    assert wishes & set(one) == {"postOnly", "displayQty"}
    assert wishes & set(other) == {"venueReduceOnly", "displayQty", "expiresAt"}


async def test_a_rejected_cancel_leads_back_to_partially_filled() -> None:
    history = History()
    for happening in ("accept", "attempt", "sent", "report", "cancel", "attempt", "rejected"):
        await history.live_through(1, happening, 1, report("e-1"))
    replay = replayed(lines(history.journal))
    assert [order.status for order in replay.orders.values()] == ["PARTIALLY_FILLED"]
    assert replay.orders == history.journal.orders


def altered(line: AuditLine, before: str, after: str) -> AuditLine:
    data = bytes(line.data).decode()
    assert before in data
    return msgspec.structs.replace(line, data=msgspec.Raw(data.replace(before, after).encode()))


@pytest.mark.parametrize(
    ("seq", "before", "after", "why"),
    [
        (1, '"venueClientOrderId":"client-1"', '"venueClientOrderId":null', "cannot be read"),
        (2, '"version":2', '"version":3', "version 3 follows version 1"),
        (3, '"updatedAt":"2026-01-05T09:00:03Z"', '"updatedAt":"2026-01-05T09:00:01Z"', "before that of version 2"),
        (3, '"status":"WORKING"', '"status":"NEVER_HEARD_OF"', "cannot be read"),
        (3, '"status":"sent"', '"kind":"cancel","status":"sent"', "cancel:1 is sent and was never queued"),
        (5, '"status":"PARTIALLY_FILLED"', '"status":"ACCEPTED"', "no step leads from WORKING to ACCEPTED"),
        (5, '"filledQty":4', '"filledQty":5', "filledQty is 5, the fills add up to 4"),
        (5, '"filledQty":4', '"filled":4', "filledQty is 0, the fills add up to 4"),
        (4, '"execId":"e-1"', '"execId":"e-1","venueOrderId":"v-9"', "venueOrderId is not that of report e-1"),
        (5, '"filledQty":4', '"filledQty":4,"venueOrderId":"v-9"', "venueOrderId is not that of report e-1"),
        (5, '"costBasis":604.8', '"costBasis":604.7', "the position does not follow from the fills"),
        (5, '"position":', '"elsewhere":', "the position is missing after fill e-1"),
        (7, '"costBasis":1058.4', '"costBasis":1058.4,"realisedPnl":1', "the position does not follow from the fills"),
        (7, '"position":{"version":2', '"position":{"version":3', "the position does not follow from the fills"),
        (4, '"lastPrice":151.2', '"lastPrice":151.3', "the position does not follow from the fills"),
        (4, '"lastQty":4', '"lastQty":5', "filledQty is 4, the fills add up to 5"),
        (6, '"execId":"e-2"', '"execId":"e-1"', "was applied before"),
    ],
)
async def test_a_line_that_does_not_follow_is_named(seq: int, before: str, after: str, why: str) -> None:
    history = lines(await filled_history())
    history[seq - 1] = altered(history[seq - 1], before, after)
    with pytest.raises(ReplayMismatch, match=why) as caught:
        replayed(history)
    # A report takes effect with the order's update, which is the next line.
    assert caught.value.seq == seq + (seq in (4, 6))


async def test_an_order_that_was_never_accepted_or_is_accepted_twice_is_named() -> None:
    history = lines(await filled_history())
    with pytest.raises(ReplayMismatch, match="never accepted"):
        replayed(history[1:])
    with pytest.raises(ReplayMismatch, match="was accepted before"):
        replayed([*history[:2], history[0]])


async def test_a_line_that_names_another_account_than_its_order_is_named() -> None:
    history = lines(await filled_history())
    history[1] = msgspec.structs.replace(history[1], account_id=AccountId("acct-2"))
    with pytest.raises(ReplayMismatch, match="belongs to another account"):
        replayed(history)


async def test_a_row_that_may_have_been_sent_stays_so() -> None:
    history = History()
    for happening in ("accept", "attempt", "resend", "attempt"):
        await history.live_through(1, happening, 1, report("e-1"))
    audit_lines = lines(history.journal)
    audit_lines[3] = altered(audit_lines[3], ',"bytesSent":true', "")
    with pytest.raises(ReplayMismatch, match=r"bytesSent of outbox row .* was reset"):
        replayed(audit_lines)


async def test_several_decisions_on_an_order_may_share_a_commit() -> None:
    history = History()
    await history.live_through(1, "accept", 1, report("e-1"))
    [state] = (await history.journal.load([OrderId(f"{ORDER_ID[:-1]}1")])).values()
    begun = decisions.begin_attempt(state, state.outbox[0], WORKER, START)
    sending = OrderState(order=begun.orders[0], outbox=begun.outbox)
    sent = decisions.record_sent(sending, sending.outbox[0], "v-1", START)
    both = msgspec.structs.replace(sent, events=begun.events + sent.events)
    replay = replayed(lines(history.journal) + [as_line(event, 2 + n) for n, event in enumerate(both.events)])
    assert replay.orders == {order.order_id: order for order in both.orders}
    assert {row.version for row in replay.outbox.values()} == {3}


async def test_a_missing_line_is_named() -> None:
    history = lines(await filled_history())
    with pytest.raises(ReplayMismatch) as caught:
        replayed(history[:2] + history[3:])
    assert caught.value.seq == 5


async def test_a_report_without_the_update_of_its_order_is_named() -> None:
    history = lines(await filled_history())
    with pytest.raises(ReplayMismatch, match="update is missing after report e-1"):
        replayed(history[:4] + history[5:])


async def test_a_history_that_ends_between_report_and_update_says_so() -> None:
    replay = replayed(lines(await filled_history())[:4])
    assert replay.within_change
    assert replay.executions == {}


async def test_a_report_on_an_unknown_order_is_kept_so_that_its_repeat_is_recognised() -> None:
    journal = MemoryJournal()
    await journal.append(0, "1", [decisions.unmatched_report(report("stray"))], START)
    assert replayed(lines(journal)).executions == journal.executions


async def test_a_type_from_the_future_is_rejected() -> None:
    line = msgspec.structs.replace(lines(await filled_history())[0], type="OrderTeleported")
    with pytest.raises(ReplayMismatch, match="newer Switchyard"):
        replayed([line])


async def test_the_digest_covers_every_field_but_not_its_notation() -> None:
    [order] = (await filled_history()).orders.values()
    elsewhere = timezone(timedelta(hours=9))
    rewritten = msgspec.structs.replace(
        order,
        qty=Decimal("11.000"),
        accepted_at=order.accepted_at.astimezone(elsewhere),
        updated_at=order.updated_at.astimezone(elsewhere),
    )
    assert state_digest([rewritten]) == state_digest([order])
    for name in Order.__struct_fields__:
        changed = msgspec.structs.replace(order, **{name: "something else"})
        assert state_digest([changed]) != state_digest([order]), name


async def test_the_digest_is_the_same_on_every_machine() -> None:
    [order] = (await filled_history()).orders.values()
    # Computed once: the machine, the hash seed and the time zone must not change it.
    assert state_digest([order]) == "15ee1640a17f5b0d8442fc8deee8f692d67bdcc280c7ef63f6288877a1bfc9b0"


async def test_the_digest_rejects_orders_that_are_not_sorted() -> None:
    [order] = (await filled_history()).orders.values()
    with pytest.raises(ValueError, match="sorted"):
        state_digest([order, order])
