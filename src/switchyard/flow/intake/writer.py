"""Write accepted orders to the journal, at most one for each intent.

Reads idempotency keys and orders where a key is taken; writes orders with their keys through `commit`. The commit
decides which request owns a key, so two requests with one key cannot both place an order.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from switchyard.domain import decisions
from switchyard.domain.changes import Committed
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import (
    ULID_RANDOM_BITS,
    AccountId,
    OrderId,
    VenueClientOrderId,
    order_id,
    venue_client_order_id,
)
from switchyard.domain.orders import OrderRequest
from switchyard.domain.risk.killed import killed
from switchyard.domain.risk.reasons import Violation
from switchyard.domain.routing import Destination
from switchyard.flow.decide import Commit
from switchyard.flow.risk.room import Room, Rooms
from switchyard.ports.cache import CacheEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.randomness import Randomness

# The first attempt, and one more for each concurrent request that changed the key in between.
ATTEMPTS_MAX = 8
# Generations of a key that are looked up in one query after the key's row was removed.
GENERATIONS_PAGE = 64
# A search of this many generations takes about 1,600 queries; no client reuses a key that often.
GENERATIONS_MAX = 100_000


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a request: the same account, operation and key mean the same order."""

    account_id: AccountId
    operation: str
    key: str
    digest: str
    """Of the request's content: the same key with another digest is a conflict."""
    created_at: datetime
    ttl: timedelta
    trace_id: str | None = None
    requested_at: datetime | None = None


class Placement(msgspec.Struct, frozen=True):
    """The order that belongs to a request."""

    order_id: OrderId
    entry: KeyEntry | None = None
    """The key's row; none for a request without a key and for an answer from the cache."""
    replayed: bool = False
    """Whether an earlier request placed the order; that request's digest may differ."""
    previous: KeyEntry | None = None
    """The row that this placement replaced, if the key is reused and its row still existed."""
    cached: CacheEntry | None = None
    """The cache entry that answered the request; none where the key store was asked."""
    violation: Violation | None = None
    """Why the new order was rejected; of an earlier order `OrderIntake.rejection` tells."""

    @property
    def reuses_expired_key(self) -> bool:
        """Whether this is a new order under a key whose earlier order was older than the key's time to live."""
        if self.replayed or self.entry is None or self.entry.generation == 0:
            return False
        return self.previous is None or self.previous.expires_at <= self.entry.created_at


MayReuseKey = Callable[[Intent, KeyEntry], Awaitable[bool]]
"""Whether a key that already has an entry may start a new generation for this intent."""


class OrderWriter:
    """Writes new orders; an intent that already has an order gets that one."""

    def __init__(
        self, *, journal: Journal, rooms: Rooms, commit: Commit, clock: Clock, randomness: Randomness, tag: str
    ) -> None:
        self._journal = journal
        self._rooms = rooms
        self._commit = commit
        self._clock = clock
        self._randomness = randomness
        self._tag = tag

    async def place(self, account: AccountId, order: OrderRequest, destination: Destination, room: Room) -> Placement:
        """Write an order without a key, rejected if there is no room for it; each call writes a new one."""
        for _ in range(ATTEMPTS_MAX):
            now = self._clock.now()
            new_id = self._new_order_id(now)
            change = decisions.accept(
                order,
                account=account,
                order_id=new_id,
                venue=destination.venue,
                venue_client_order_id=venue_client_order_id(self._tag, account, "", None, 0, new_id),
                key=None,
                quote=destination.quote,
                now=now,
                violation=room.violation,
                terms=room.terms,
                claim=self._rooms.claim(room, new_id, now),
                expires_at=self._rooms.day_end(now) if order.time_in_force == "DAY" else None,
                route=destination.route,
            )
            outcome = await self._commit(change)
            if isinstance(outcome, Committed):
                return Placement(new_id, violation=room.violation)
            if outcome.kill is not None:
                room = room.rejected(killed(outcome.kill))
            elif outcome.breach is not None:
                room = await self._rooms.revised(room, outcome.breach)
        raise JournalUnavailable(f"the order was not written in {ATTEMPTS_MAX} attempts: repeat the request")

    async def place_once(
        self,
        intent: Intent,
        order: OrderRequest,
        destination: Destination,
        may_reuse_key: MayReuseKey,
        room: Room,
    ) -> Placement:
        """Write the intent's order, rejected if there is no room for it, or return the one that the intent has."""
        generation, version = 0, 1
        previous: KeyEntry | None = None
        now = intent.created_at
        for _ in range(ATTEMPTS_MAX):
            entry = _new_entry(intent, generation, version, self._new_order_id(now), now)
            change = decisions.accept(
                order,
                account=intent.account_id,
                order_id=entry.order_id,
                venue=destination.venue,
                venue_client_order_id=self._client_order_id(intent, generation, entry.order_id),
                key=entry,
                quote=destination.quote,
                now=now,
                trace_id=intent.trace_id,
                requested_at=intent.requested_at,
                violation=room.violation,
                terms=room.terms,
                claim=self._rooms.claim(room, entry.order_id, now),
                expires_at=self._rooms.day_end(now) if order.time_in_force == "DAY" else None,
                route=destination.route,
            )
            outcome = await self._commit(change)
            if isinstance(outcome, Committed):
                return Placement(entry.order_id, entry, previous=previous, violation=room.violation)
            existing = outcome.key
            if outcome.kill is not None:
                room = room.rejected(killed(outcome.kill))
            elif outcome.breach is not None:
                room = await self._rooms.revised(room, outcome.breach)
            elif existing is None:
                # The key's row was removed, but the client order ids of its earlier orders are taken for good.
                generation, version = await self._first_free_generation(intent, generation + 1), 1
            elif await may_reuse_key(intent, existing):
                generation, version, previous = existing.generation + 1, existing.version + 1, existing
            else:
                return Placement(existing.order_id, existing, replayed=True)
            now = self._clock.now()
        raise JournalUnavailable(f"the order was not written in {ATTEMPTS_MAX} attempts: repeat the request")

    def _new_order_id(self, now: datetime) -> OrderId:
        return order_id(int(now.timestamp() * 1000), self._randomness.bits(ULID_RANDOM_BITS))

    def _client_order_id(self, intent: Intent, generation: int, new_id: OrderId) -> VenueClientOrderId:
        return venue_client_order_id(self._tag, intent.account_id, intent.operation, intent.key, generation, new_id)

    async def _first_free_generation(self, intent: Intent, first: int) -> int:
        for start in range(first, GENERATIONS_MAX, GENERATIONS_PAGE):
            ids = {
                self._client_order_id(intent, number, OrderId("")): number
                for number in range(start, start + GENERATIONS_PAGE)
            }
            free = set(ids) - set(await self._journal.load_by_client_order_id(list(ids)))
            if free:
                return min(ids[client_order_id] for client_order_id in free)
        raise JournalUnavailable(f"the key was used {GENERATIONS_MAX} times: send another key")


def _new_entry(intent: Intent, generation: int, version: int, new_id: OrderId, now: datetime) -> KeyEntry:
    return KeyEntry(
        account_id=intent.account_id,
        operation=intent.operation,
        idempotency_key=intent.key,
        generation=generation,
        order_id=new_id,
        request_digest=intent.digest,
        created_at=now,
        expires_at=now + intent.ttl,
        version=version,
    )
