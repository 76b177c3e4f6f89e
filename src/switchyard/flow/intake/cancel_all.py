"""`POST /orders/cancel-all`: requests a cancel of every open order of an account.

Reads the account's unfinished orders; writes the plan of a request with a key, then the cancels, through `commit`. Asks
no risk check: a cancel is never limited.
"""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import IdempotencyConflict, InvalidField, JournalUnavailable, NotFound
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.orders.closing import (
    ORDERS_MAX,
    CancelAllRequest,
    CancelAllResult,
    CancelPlan,
    cancelled,
    checked_cancel_all,
)
from switchyard.domain.orders.keys import CANCEL_ALL, KeyEntry
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.outbox import MayBeLost, OrderState
from switchyard.domain.values import converted, struct_digest
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Accounts, KeyStore, UnfinishedFilter

# The first try, and one more for each other request that took or removed the key in between.
TRIES_MAX = 4

_plan = msgspec.json.Decoder(CancelPlan)


class CancelAllService:
    """Cancels what is open; a repeat of a request cancels the orders of its first time and no newer ones."""

    def __init__(
        self,
        *,
        accounts: Accounts,
        journal: Journal,
        keys: KeyStore,
        commit: Commit,
        clock: Clock,
        venues: Collection[VenueName],
        key_ttl: timedelta,
        may_be_lost: MayBeLost,
    ) -> None:
        self._may_be_lost = may_be_lost
        self._accounts = accounts
        self._journal = journal
        self._keys = keys
        self._commit = commit
        self._clock = clock
        self._venues = venues
        self._key_ttl = key_ttl

    async def cancel_all(
        self, account: AccountId, body: Mapping[str, Any], key: str | None
    ) -> tuple[CancelAllResult, bool]:
        """Request the cancels and return what became of each order, and whether the request is a repeat."""
        request = checked_cancel_all(converted(body, CancelAllRequest))
        if request.account_id is not None and request.account_id != account:
            raise NotFound
        if request.venue is not None and request.venue not in self._venues:
            known = ", ".join(sorted(self._venues))
            raise InvalidField("venue", f"{request.venue!r} is not configured; the venues are {known}")
        if key is None:
            return await self._cancelled(account, await self._new_plan(account, request)), False
        plan, replayed = await self._plan_of(account, request, key)
        return await self._cancelled(account, plan), replayed

    async def _new_plan(self, account: AccountId, request: CancelAllRequest) -> CancelPlan:
        found = await self._accounts.unfinished_orders(
            UnfinishedFilter(
                account_id=account,
                symbol=request.symbol,
                strategy=request.strategy,
                venue=None if request.venue is None else VenueName(request.venue),
                after=None if request.cursor is None else OrderId(request.cursor),
                limit=ORDERS_MAX + 1,  # one more shows whether there are others
            )
        )
        orders = tuple(order.order_id for order in found[:ORDERS_MAX])
        return CancelPlan(orders, orders[-1] if len(found) > ORDERS_MAX else None)

    async def _plan_of(self, account: AccountId, request: CancelAllRequest, key: str) -> tuple[CancelPlan, bool]:
        """Return the plan that the key stands for, and whether an earlier request made it."""
        # The account is part of the key, so naming it or leaving it out is the same request.
        digest = struct_digest(msgspec.structs.replace(request, account_id=None))
        entry = await self._keys.entry(account, CANCEL_ALL, key)
        for _ in range(TRIES_MAX):
            now = self._clock.now()
            if entry is not None and not self._has_expired(entry, now):
                if entry.request_digest != digest:
                    raise IdempotencyConflict(key)
                assert entry.response_payload_json is not None, "the key of a cancel-all has its plan"
                return _plan.decode(entry.response_payload_json), True
            plan = await self._new_plan(account, request)
            new = KeyEntry(
                account_id=account,
                operation=CANCEL_ALL,
                idempotency_key=key,
                generation=0 if entry is None else entry.generation + 1,
                order_id=OrderId(""),
                request_digest=digest,
                created_at=now,
                expires_at=now + self._key_ttl,
                response_payload_json=msgspec.json.encode(plan).decode(),
                version=1 if entry is None else entry.version + 1,
            )
            outcome = await self._commit(Change(keys=(new,)))
            if isinstance(outcome, Committed):
                return plan, False
            entry = outcome.key
        raise JournalUnavailable(f"the key was not written in {TRIES_MAX} tries: repeat the request")

    def _has_expired(self, entry: KeyEntry, now: datetime) -> bool:
        return now >= entry.expiry(self._clock.jumped_at)

    async def _cancelled(self, account: AccountId, plan: CancelPlan) -> CancelAllResult:
        """Request the cancels that are still needed, and return the orders as they are now."""
        states = await self._journal.load(plan.orders)
        await asyncio.gather(*(self._cancel(state) for state in states.values() if not is_final(state.order.status)))
        states = await self._journal.load(plan.orders)
        orders = tuple(cancelled(states[order_id].order) for order_id in plan.orders if order_id in states)
        requested = sum(order.result == "CANCEL_REQUESTED" for order in orders)
        return CancelAllResult(
            account_id=account,
            orders=orders,
            requested=requested,
            ended=len(orders) - requested,
            next_cursor=plan.next_cursor,
        )

    async def _cancel(self, state: OrderState) -> None:
        await decide(self._journal, self._commit, state.order.order_id, self._decision, state)

    def _decision(self, newest: OrderState) -> Change | None:
        if is_final(newest.order.status):
            return None  # it has ended meanwhile
        return decisions.request_cancel(newest, self._clock.now(), self._may_be_lost)
