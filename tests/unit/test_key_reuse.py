"""A key that expires while its request is on the way: the new order counts as one under an expired key."""

from datetime import timedelta
from decimal import Decimal
from typing import cast

from switchyard.adapters.memory.clock import ManualClock
from switchyard.adapters.memory.journal import MemoryJournal
from switchyard.adapters.system_clock import SystemRandomness
from switchyard.domain.changes import Change, Outcome
from switchyard.domain.idempotency import DO_ORDER, KeyEntry
from switchyard.domain.orders import OrderRequest
from switchyard.domain.risk.limit_settings import LimitSettings
from switchyard.domain.risk.reservations import Terms
from switchyard.domain.risk.subject import Subject
from switchyard.domain.routing import Destination
from switchyard.flow.intake.writer import Intent, OrderWriter
from switchyard.flow.risk.room import Room, Rooms
from switchyard.ports.exposures import Exposures
from tests.support.build import ACCOUNT, VENUE

TTL = timedelta(seconds=1)
MOMENT = timedelta(milliseconds=1)


async def test_a_key_that_expires_while_it_is_looked_at_starts_a_new_life_then() -> None:
    clock, journal, groups = ManualClock(), MemoryJournal(), iter(range(10))

    async def commit(change: Change) -> Outcome:
        return (await journal.append(0, f"group-{next(groups)}", [change], clock.now()))[0]

    async def may_reuse_key(_intent: Intent, entry: KeyEntry) -> bool:
        clock.advance(2 * MOMENT)  # beyond the end of the key
        return clock.now() >= entry.expires_at

    writer = OrderWriter(
        journal=journal,
        rooms=Rooms(LimitSettings(), cast(Exposures, None)),
        commit=commit,
        clock=clock,
        randomness=SystemRandomness(),
        tag="test",
    )
    order = OrderRequest(symbol="USDJPY", side="BUY", type="MARKET", qty=Decimal(1), time_in_force="IOC")
    room = Room(subject=cast(Subject, None), terms=Terms())

    def intent() -> Intent:
        return Intent(account_id=ACCOUNT, operation=DO_ORDER, key="k", digest="d", created_at=clock.now(), ttl=TTL)

    first = await writer.place_once(intent(), order, Destination(VENUE, None), may_reuse_key, room)
    clock.advance(TTL - MOMENT)
    second = await writer.place_once(intent(), order, Destination(VENUE, None), may_reuse_key, room)

    assert second.order_id != first.order_id
    assert second.reuses_expired_key
    assert second.entry is not None and second.entry.expires_at == clock.now() + TTL
