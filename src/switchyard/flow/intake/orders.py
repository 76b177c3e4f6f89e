"""Take orders and cancels from accounts: check, decide, commit, answer."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from switchyard.domain import decisions
from switchyard.domain.canonical import digest
from switchyard.domain.changes import Change
from switchyard.domain.errors import IdempotencyConflict, NotFound
from switchyard.domain.fields import converted, require_numbers
from switchyard.domain.idempotency import PLACE_ORDER, KeyEntry
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import OrderRequest, checked
from switchyard.domain.outbox import OrderState
from switchyard.flow.decide import Commit, decide
from switchyard.flow.intake.duplicates import DuplicateWatch
from switchyard.flow.intake.key_cache import KeyCache
from switchyard.flow.intake.placing import Intent, OrderWriter, Placed
from switchyard.flow.routing.route import Routes
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal

_AMOUNTS = ("qty", "price", "stopPrice")


class OrderDesk:
    """Where requests become orders."""

    def __init__(
        self,
        *,
        journal: Journal,
        commit: Commit,
        clock: Clock,
        placing: OrderWriter,
        catalogue: Catalogue,
        routes: Routes,
        remembered: KeyCache,
        duplicates: DuplicateWatch,
        key_ttl: timedelta,
    ) -> None:
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._writer = placing
        self._catalogue = catalogue
        self._routes = routes
        self._key_cache = remembered
        self._duplicates = duplicates
        self._key_ttl = key_ttl

    async def place(self, account: AccountId, body: Mapping[str, Any], key: str | None) -> Placed:
        """Make the order durable; with a key, at most one order however often this is called."""
        request = checked(order_request(body), self._catalogue)
        if key is None:
            placed = await self._writer.place(account, request, self._routes.open_way(request))
            self._duplicates.placed()
            return placed
        intent = Intent(
            account_id=account,
            operation=PLACE_ORDER,
            key=key,
            digest=digest(body),
            created_at=self._clock.now(),
            ttl=self._key_ttl,
        )
        known = await self._key_cache.find(account, PLACE_ORDER, key, intent.digest)
        # By the key store's clock: the cache has only this process's own.
        if known is not None and intent.created_at < known.expires_at:
            self._duplicates.found(account, key, known.order_id)
            return Placed(known.order_id, replayed=True)
        placed = await self._writer.place_or_find(intent, request, self._routes.open_way, self._has_expired)
        assert placed.entry is not None, "it has a key"
        if placed.entry.request_digest != intent.digest:
            raise IdempotencyConflict(key)
        self._duplicates.judge(placed)
        if placed.replayed:
            # KeyCache from the first repeat on: of most requests there never is one, and writing each down would
            # cost every order what only repeats gain.
            self._key_cache.keep(placed.entry, "submitted", now=intent.created_at)
        return placed

    async def cancel(self, account: AccountId, order: OrderId) -> None:
        """Ask for an order's end; another account's order looks like none."""
        state = (await self._journal.load([order])).get(order)
        if state is None or state.order.account_id != account:
            raise NotFound
        await decide(self._journal, self._commit, order, self._cancel_decision, state)

    def _cancel_decision(self, state: OrderState) -> Change | None:
        return decisions.request_cancel(state, self._clock.now())

    async def _has_expired(self, taken: KeyEntry) -> bool:
        """Past its time, and never before its order has ended."""
        if self._clock.now() < taken.expires_at:
            return False
        state = (await self._journal.load([taken.order_id])).get(taken.order_id)
        return state is None or is_final(state.order.status)


def order_request(body: Mapping[str, Any]) -> OrderRequest:
    """The body's fields with their types, or the first one that has another."""
    require_numbers(body, _AMOUNTS)
    return converted(body, OrderRequest)
