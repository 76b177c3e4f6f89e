"""One intent, one order: what a key stands for is decided by the commit, never by a look before it."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from switchyard.domain import decisions
from switchyard.domain.changes import Committed
from switchyard.domain.errors import JournalUnavailable, QueueDelayed
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
from switchyard.domain.routing import Destination
from switchyard.flow.decide import Commit
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.keys import KeyStore
from switchyard.ports.randomness import Randomness

# A first try, and one more each time somebody was faster or the key had begun anew.
TRIES_MAX = 8
# Generations of a key that are looked up at once, where the key store has forgotten how many there were.
GENERATIONS_PAGE = 64
GENERATIONS_MAX = 100_000


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What a request stands for: the same account, operation and key mean the same order."""

    account_id: AccountId
    operation: str
    key: str
    digest: str
    created_at: datetime
    ttl: timedelta


class Placed(msgspec.Struct, frozen=True):
    """The order that a request stands for."""

    order_id: OrderId
    entry: KeyEntry | None = None
    """What the key store has of the intent; none for a request without a key."""
    replayed: bool = False
    """Whether an earlier request had made it; its digest may be another one."""
    before: KeyEntry | None = None
    """What the key stood for until it began anew with this order, as far as the key store still knew."""

    @property
    def reuses_expired_key(self) -> bool:
        """Whether this is a new order under a key whose earlier order had outlived its time."""
        if self.replayed or self.entry is None or self.entry.generation == 0:
            return False
        return self.before is None or self.before.expires_at <= self.entry.created_at


Renewal = Callable[[KeyEntry], Awaitable[bool]]
Way = Callable[[OrderRequest], Destination]


class OrderWriter:
    """Writes orders, each intent's once."""

    def __init__(
        self,
        *,
        journal: Journal,
        keys: KeyStore,
        commit: Commit,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._journal = journal
        self._keys = keys
        self._commit = commit
        self._clock = clock
        self._randomness = randomness

    async def place(self, account: AccountId, request: OrderRequest, to: Destination) -> Placed:
        """Write an order that nothing but its own id identifies."""
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            made = self._fresh_id(now)
            client_id = venue_client_order_id(account, "", None, 0, made)
            change = decisions.accept(
                request,
                account=account,
                order_id=made,
                venue=to.venue,
                venue_client_order_id=client_id,
                key=None,
                quote=to.quote,
                now=now,
            )
            if isinstance(await self._commit(change), Committed):
                return Placed(made)
        raise JournalUnavailable("the order could not be written")

    async def place_once(self, intent: Intent, request: OrderRequest, to: Destination, renews: Renewal) -> Placed:
        """Write the intent's order, or find the one that it has.

        `renews` says of the entry that has the key whether the key begins anew all the same.
        """
        generation, version = 0, 1
        before: KeyEntry | None = None
        now = intent.created_at
        for _ in range(TRIES_MAX):
            entry = self._entry(intent, generation, version, self._fresh_id(now))
            change = decisions.accept(
                request,
                account=intent.account_id,
                order_id=entry.order_id,
                venue=to.venue,
                venue_client_order_id=_client_id(intent, generation, entry.order_id),
                key=entry,
                quote=to.quote,
                now=now,
            )
            outcome = await self._commit(change)
            if isinstance(outcome, Committed):
                return Placed(entry.order_id, entry, before=before)
            taken = outcome.key
            if taken is None:
                # The key store has forgotten the key, and the venue still knows the ids of its earlier orders.
                generation, version = await self._first_free(intent, generation + 1), 1
            elif await renews(taken):
                generation, version, before = taken.generation + 1, taken.version + 1, taken
            else:
                return Placed(taken.order_id, taken, replayed=True)
            now = self._clock.now()
        raise JournalUnavailable("the order could not be written")

    async def place_or_find(self, intent: Intent, request: OrderRequest, way: Way, renews: Renewal) -> Placed:
        """The same; where the way to the venue is too slow for a new order, only what an earlier request has made.

        Raises QueueDelayed where a new order would be needed.
        """
        try:
            to = way(request)
        except QueueDelayed:
            found = await self._find(intent, renews)
            if found is None:
                raise
            return found
        return await self.place_once(intent, request, to, renews)

    async def _find(self, intent: Intent, renews: Renewal) -> Placed | None:
        """The order that the intent has; none where it would need a new one."""
        taken = await self._keys.entry(intent.account_id, intent.operation, intent.key)
        if taken is None or await renews(taken):
            return None
        return Placed(taken.order_id, taken, replayed=True)

    def _fresh_id(self, now: datetime) -> OrderId:
        return order_id(int(now.timestamp() * 1000), self._randomness.bits(ULID_RANDOM_BITS))

    def _entry(self, intent: Intent, generation: int, version: int, made: OrderId) -> KeyEntry:
        return KeyEntry(
            account_id=intent.account_id,
            operation=intent.operation,
            idempotency_key=intent.key,
            generation=generation,
            order_id=made,
            request_digest=intent.digest,
            created_at=intent.created_at,
            expires_at=intent.created_at + intent.ttl,
            version=version,
        )

    async def _first_free(self, intent: Intent, first: int) -> int:
        for start in range(first, GENERATIONS_MAX, GENERATIONS_PAGE):
            ids = {_client_id(intent, number, OrderId("")): number for number in range(start, start + GENERATIONS_PAGE)}
            free = set(ids) - set(await self._journal.load_by_client_order_id(list(ids)))
            if free:
                return min(ids[client_id] for client_id in free)
        raise JournalUnavailable("the key was used too often")


def _client_id(intent: Intent, generation: int, made: OrderId) -> VenueClientOrderId:
    return venue_client_order_id(intent.account_id, intent.operation, intent.key, generation, made)
