"""Take orders and cancels from accounts: check, decide, commit, answer."""

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain import decisions
from switchyard.domain.canonical import digest
from switchyard.domain.changes import Change, Committed
from switchyard.domain.errors import IdempotencyConflict, InvalidField, JournalUnavailable, NotFound
from switchyard.domain.idempotency import PLACE_ORDER, LedgerEntry
from switchyard.domain.ids import ULID_RANDOM_BITS, AccountId, OrderId, order_id, venue_client_id
from switchyard.domain.instruments import Catalogue
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import OrderRequest, checked
from switchyard.domain.outbox import OrderState
from switchyard.domain.routing import Router
from switchyard.flow.decide import Commit, decide
from switchyard.flow.metrics import Metrics
from switchyard.ports.clock import Clock, Randomness
from switchyard.ports.journal import Journal
from switchyard.ports.venue import Quotes

# A key's first generation, then one more each time it had expired between our look and our write.
TRIES_MAX = 8
_AMOUNTS = ("qty", "price", "stopPrice")
# Decimals in quotes would be taken as well otherwise; the contract has numbers only.
_NUMBERS = (int, Decimal, type(None))
_FIELD = re.compile(r"`\$\.(\w+)|field `([^`]*)`")


class Placed(msgspec.Struct, frozen=True):
    """The order that a request stands for, and whether an earlier request had made it."""

    order_id: OrderId
    replayed: bool


class OrderDesk:
    """Where requests become orders."""

    def __init__(
        self,
        *,
        journal: Journal,
        commit: Commit,
        clock: Clock,
        randomness: Randomness,
        catalogue: Catalogue,
        router: Router,
        quotes: Quotes,
        key_ttl: timedelta,
        metrics: Metrics,
    ) -> None:
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._randomness = randomness
        self._catalogue = catalogue
        self._router = router
        self._quotes = quotes
        self._key_ttl = key_ttl
        self._metrics = metrics

    async def place(self, account: AccountId, body: Mapping[str, Any], key: str | None) -> Placed:
        """Make the order durable; with a key, at most one order however often this is called."""
        request = checked(order_request(body), self._catalogue)
        body_digest = digest(body) if key is not None else ""
        venue = self._router.venue_for(request.symbol)
        quote = self._quotes.quote(venue, request.symbol)
        generation = 0
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            made = order_id(int(now.timestamp() * 1000), self._randomness.bits(ULID_RANDOM_BITS))
            ledger = None
            if key is not None:
                ledger = LedgerEntry(
                    account_id=account,
                    operation=PLACE_ORDER,
                    idempotency_key=key,
                    generation=generation,
                    order_id=made,
                    request_digest=body_digest,
                    created_at=now,
                    expires_at=now + self._key_ttl,
                )
            change = decisions.accept(
                request,
                account=account,
                order_id=made,
                venue=venue,
                venue_client_id=venue_client_id(account, PLACE_ORDER, key, generation, made),
                ledger=ledger,
                quote=quote,
                now=now,
            )
            outcome = await self._commit(change)
            if isinstance(outcome, Committed):
                self._metrics.accepted.inc()
                return Placed(made, replayed=False)
            taken = outcome.ledger
            if taken is None:
                continue  # a fresh id that was not fresh: draw another
            if not await self._has_expired(taken):
                return self._replay(taken, body_digest)
            generation = taken.generation + 1
        raise JournalUnavailable("the order could not be written")

    async def cancel(self, account: AccountId, order: OrderId) -> None:
        """Ask for an order's end; another account's order looks like none."""
        state = (await self._journal.load([order])).get(order)
        if state is None or state.order.account_id != account:
            raise NotFound
        await decide(self._journal, self._commit, order, self._cancel_decision, state)

    def _cancel_decision(self, state: OrderState) -> Change | None:
        return decisions.request_cancel(state, self._clock.now())

    def _replay(self, taken: LedgerEntry, body_digest: str) -> Placed:
        if taken.request_digest != body_digest:
            raise IdempotencyConflict(taken.idempotency_key)
        self._metrics.replayed.inc()
        return Placed(taken.order_id, replayed=True)

    async def _has_expired(self, taken: LedgerEntry) -> bool:
        """Past its time, and never before its order has ended."""
        if self._clock.now() < taken.expires_at:
            return False
        state = (await self._journal.load([taken.order_id])).get(taken.order_id)
        return state is None or is_final(state.order.status)


def order_request(body: Mapping[str, Any]) -> OrderRequest:
    """The body's fields with their types, or the first one that has another."""
    for field in _AMOUNTS:
        if type(body.get(field)) not in _NUMBERS:
            raise InvalidField(field, "must be a number")
    try:
        return msgspec.convert(body, OrderRequest)
    except msgspec.ValidationError as error:
        raise _named(error) from None


def _named(error: msgspec.ValidationError) -> InvalidField:
    text = str(error)
    found = _FIELD.search(text)
    field = (found[1] or found[2]) if found else "body"
    if "missing required field" in text:
        return InvalidField(field, "required")
    if "unknown field" in text:
        return InvalidField(field, "unknown field")
    return InvalidField(field, text.partition(" - at ")[0])
