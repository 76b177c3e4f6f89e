"""A key that expires while its request is on the way: the new order counts as one under an expired key."""

from datetime import timedelta
from decimal import Decimal
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from switchyard.adapters.system_clock import SystemRandomness
from switchyard.domain.ids import WHOLE, IdForm, to_venue
from switchyard.domain.journal.changes import Change, Outcome
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.keys import DO_ORDER, KeyEntry
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.risk.checks import OrderContext
from switchyard.domain.risk.claims import LimitSettings, Terms
from switchyard.flow.intake.order_intake import IdempotentRequest, OrderIntake
from switchyard.flow.risk.limit_claims import LimitClaim, LimitClaims
from switchyard.ports.cache import CacheEntry
from switchyard.ports.queries import Exposures
from tests.support.build import ACCOUNT, VENUE
from tests.support.memory.clock import ManualClock
from tests.support.memory.journal import MemoryJournal

TTL = timedelta(seconds=1)
MOMENT = timedelta(milliseconds=1)


class Rules:
    """Let a key be used again once it has expired, which it does while it is looked at."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def may_answer_from_cache(self, request: IdempotentRequest, cached: CacheEntry) -> bool:
        return False

    async def may_reuse_key(self, request: IdempotentRequest, entry: KeyEntry) -> bool:
        self._clock.advance(2 * MOMENT)  # beyond the end of the key
        return self._clock.now() >= entry.expires_at


def an_intake(clock: ManualClock, form: IdForm = WHOLE) -> tuple[OrderIntake, MemoryJournal]:
    """The intake of orders over a journal in memory; `form`: of the venue's client order ids."""
    journal, groups = MemoryJournal(), count()

    async def offer(change: Change) -> Outcome:
        return (await journal.append(0, f"group-{next(groups)}", [change], clock.now()))[0]

    unused = cast(Any, None)
    return OrderIntake(
        limits=LimitClaims(LimitSettings(), cast(Exposures, None)),
        journal=journal,
        offer=offer,
        clock=clock,
        randomness=SystemRandomness(),
        tag="test",
        catalogue=unused,
        choice=cast(Any, SimpleNamespace(id_form=lambda _symbol, _venue, _account: form)),
        quotes=unused,
        risk=unused,
        rate=unused,
        contents=unused,
        kills=unused,
        window=unused,
        keys=unused,
        key_cache=unused,
        duplicates=unused,
    ), journal


def a_claim() -> LimitClaim:
    order = OrderRequest(symbol="USDJPY", side="BUY", type="MARKET", qty=Decimal(1), time_in_force="IOC")
    instrument = Instrument(symbol="USDJPY", settle="JPY")
    context = OrderContext(account_id=ACCOUNT, order=order, instrument=instrument, venue=VENUE, quote=None)
    return LimitClaim(context=context, terms=Terms())


async def test_keys_and_orders_with_an_equal_digest_get_ids_of_their_own() -> None:
    """The form has room for one digit, so that 40 keys cannot have 40 digests; real ones have 48 bits."""
    clock, form = ManualClock(), IdForm(length_max=9)
    intake, journal = an_intake(clock, form)
    orders = []
    for number in range(40):
        key = f"key-{number}" if number >= 4 else ""
        request = IdempotentRequest(
            account_id=ACCOUNT, operation=DO_ORDER, key=key, digest="d", created_at=clock.now(), ttl=TTL
        )
        placement = await intake._store(request, a_claim(), Rules(clock))
        orders.append(journal.state(placement.order_id).order)
    assert len({to_venue(order.venue_client_order_id, form) for order in orders}) == len(orders) == 40


async def test_a_key_that_expires_while_it_is_looked_at_starts_a_new_life_then() -> None:
    clock = ManualClock()
    intake, _ = an_intake(clock)
    claim = a_claim()

    def request() -> IdempotentRequest:
        return IdempotentRequest(
            account_id=ACCOUNT, operation=DO_ORDER, key="k", digest="d", created_at=clock.now(), ttl=TTL
        )

    first = await intake._store(request(), claim, Rules(clock))
    clock.advance(TTL - MOMENT)
    second = await intake._store(request(), claim, Rules(clock))

    assert second.order_id != first.order_id
    assert second.reuses_expired_key
    assert second.entry is not None and second.entry.expires_at == clock.now() + TTL
