"""`POST /orders`, cancels, `POST /positions/{symbol}/close` and `POST /orders/cancel-all`.

Reads orders, positions and keys; places through `OrderIntake`, and commits cancels.
"""

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import (
    IdempotencyConflict,
    InvalidField,
    JournalUnavailable,
    NotFound,
    NotReplicated,
    PositionClosing,
    PositionMoved,
)
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.orders.closing import (
    ORDERS_MAX,
    CancelAllRequest,
    CancelAllResult,
    CancelPlan,
    CloseRequest,
    cancelled,
    checked_cancel_all,
)
from switchyard.domain.orders.keys import CANCEL_ALL, CLOSE_POSITION, PLACE_ORDER, KeyEntry
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import order_digest
from switchyard.domain.orders.outbox import MayBeLost, OrderState
from switchyard.domain.risk.checks import DryRun
from switchyard.domain.values import converted, struct_digest
from switchyard.flow.commit.sequencer import Commit, after_commit, decide
from switchyard.flow.intake.derived import DerivedOrderService, DerivedResult
from switchyard.flow.intake.order_intake import IdempotentRequest, KeyCache, KeyRules, OrderIntake, Placement
from switchyard.ports.cache import CacheEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Accounts, KeyStore, UnfinishedFilter


class OrderService:
    """Places and cancels orders of `/orders`; the `KeyRules` of keys that the client sends."""

    def __init__(
        self,
        *,
        intake: OrderIntake,
        journal: Journal,
        commit: Commit,
        clock: Clock,
        key_cache: KeyCache,
        key_ttl: timedelta,
        may_be_lost: MayBeLost,
    ) -> None:
        self._may_be_lost = may_be_lost
        self._intake = intake
        self._journal = journal
        self._commit = commit
        self._clock = clock
        self._key_cache = key_cache
        self._key_ttl = key_ttl

    async def place(self, account: AccountId, body: Mapping[str, Any], key: str | None) -> Placement:
        """Make the order durable; with a key, at most one order however often this is called.

        Raises RiskRejected for an order that was stored as rejected.
        """
        order = self._intake.checked_order(body)
        request = IdempotentRequest(
            account_id=account,
            operation=PLACE_ORDER,
            key=key or "",
            digest=order_digest(order) if key else "",
            created_at=self._clock.now(),
            ttl=self._key_ttl,
        )
        placement = await self._intake.place(request, order, self)
        if placement.replayed or placement.violation is not None:
            await self.check_accepted(request, placement)
        return placement

    async def check_accepted(self, request: IdempotentRequest, placement: Placement) -> None:
        """Raise RiskRejected if the placement's order was rejected; cache a repeat."""
        rejection = await self._intake.rejection(placement)
        if rejection is not None:
            raise rejection
        if placement.replayed and placement.entry is not None:
            # Cached from the first repeat on: most requests are never repeated, and a cache write for each of them
            # would slow down every order for the sake of the few repeats.
            self._key_cache.keep(placement.entry, "submitted", now=request.created_at)

    async def dry_run(self, account: AccountId, body: Mapping[str, Any]) -> DryRun:
        """Return what every pre-trade check says about the order; places nothing."""
        try:
            return await self._intake.dry_run(account, self._intake.checked_order(body))
        except NotReplicated as error:
            raise JournalUnavailable(str(error)) from error  # not `OutcomeUnknown`: it writes nothing

    async def cancel(self, account: AccountId, order_id: OrderId) -> None:
        """Request a cancel; raises NotFound for a missing order and for another account's."""
        state = (await self._journal.load([order_id])).get(order_id)
        if state is None or state.order.account_id != account:
            raise NotFound
        await decide(self._journal, self._commit, order_id, self._cancel_decision, state)

    def may_answer_from_cache(self, intent: IdempotentRequest, cached: CacheEntry) -> bool:
        """Until the key expires by the database's clock; a cache server expires its entries by its own clock."""
        return intent.created_at < cached.expires_at

    async def may_reuse_key(self, intent: IdempotentRequest, entry: KeyEntry) -> bool:
        """After the key has expired, but never before its order is final."""
        if self._clock.now() < entry.expiry(self._clock.jumped_at):
            return False
        state = (await self._journal.load([entry.order_id])).get(entry.order_id)
        return state is None or is_final(state.order.status)

    def _cancel_decision(self, state: OrderState) -> Change | None:
        return decisions.request_cancel(state, self._clock.now(), self._may_be_lost)


# Of so many tries to close a whole position none may leave a rest; while fills keep moving it, the others may.
EXACT_TRIES = 4
CLOSE_TRIES_MAX = 8


class CloseService:
    """Closes positions; its orders follow the rules of `/orders` for keys, risk and routing."""

    def __init__(
        self,
        *,
        intake: OrderIntake,
        orders: OrderService,
        derived: DerivedOrderService,
        clock: Clock,
        key_ttl: timedelta,
    ) -> None:
        self._intake = intake
        self._orders = orders
        self._derived = derived
        self._clock = clock
        self._key_ttl = key_ttl

    async def close(self, account: AccountId, symbol: str, body: Mapping[str, Any], key: str | None) -> Placement:
        """Make the closing order durable; with a key, at most one order however often this is called.

        Without one every call is a close of its own; `close_by_content` recognises a repeat.

        Raises NotFound without a position, PositionClosing where open orders leave less to close than is wanted, and
        RiskRejected for an order that was stored as rejected. Only the last of them takes the key.
        """
        request = self._intake.checked_close(account, symbol, body)
        intent = IdempotentRequest(
            account_id=account,
            operation=CLOSE_POSITION,
            key=key or "",
            digest=request.digest if key else "",
            created_at=self._clock.now(),
            ttl=self._key_ttl,
        )
        placement = await self._once(intent, request, self._orders)
        await self._orders.check_accepted(intent, placement)
        return placement

    async def close_by_content(
        self, account: AccountId, symbol: str, body: Mapping[str, Any], *, is_asked: bool
    ) -> DerivedResult:
        """The same under a key that is derived from the request's content; `is_asked`: the caller wants just that."""
        request = self._intake.checked_close(account, symbol, body)
        intent = self._derived.close_intent(account, request)
        rules = self._derived if is_asked else _UnaskedRules(self._intake, self._derived, request)
        return await self._derived.result(intent, await self._once(intent, request, rules))

    async def _once(self, intent: IdempotentRequest, request: CloseRequest, rules: KeyRules) -> Placement:
        try:
            return await self._decided(intent, request, rules)
        except (NotFound, PositionClosing):
            if not intent.key:
                raise
            # An equal request may have placed the order since its key was looked up; the key is visible by now.
            return await self._decided(intent, request, rules)

    async def _decided(self, intent: IdempotentRequest, request: CloseRequest, rules: KeyRules) -> Placement:
        """Decide and place until the position has not moved in between."""
        for tried in range(CLOSE_TRIES_MAX):
            decide = partial(self._intake.routed_close, intent.account_id, request, exactly=tried < EXACT_TRIES)
            try:
                # A repeat is answered from its key: by then there may be nothing left to close.
                return await self._intake.place(intent, decide, rules, lookup_first=True)
            except PositionMoved:
                if tried == CLOSE_TRIES_MAX - 1:
                    raise
        raise AssertionError("the last try returns or raises")


class _UnaskedRules:
    """The `KeyRules` of a close without a key whose caller did not ask for recognition by content.

    An equal close is a duplicate only where a second order could do harm. A position that is open must not stay open
    because an earlier one was closed.
    """

    def __init__(self, intake: OrderIntake, derived: DerivedOrderService, request: CloseRequest) -> None:
        self._intake = intake
        self._derived = derived
        self._request = request

    def may_answer_from_cache(self, intent: IdempotentRequest, cached: CacheEntry) -> bool:
        """Never: the first close and the position decide."""
        return False

    async def may_reuse_key(self, intent: IdempotentRequest, entry: KeyEntry) -> bool:
        """As other derived keys; before that, if the first close ended without a fill, or left something to close.

        The latter only for a request to close everything: it is not the first one that closed what is open now.
        """
        if await self._derived.may_reuse_key(intent, entry):
            return True
        first = await self._derived.ended_order(intent, entry)
        if first is None or self._request.digest != entry.request_digest:
            return False
        if not first.filled_qty:
            return True
        if self._request.qty is not None:
            return False
        try:
            await self._intake.routed_close(intent.account_id, self._request)
        except (NotFound, PositionClosing):
            return False
        return True


# The first try, and one more for each other request that took or removed the key in between.
CANCEL_ALL_TRIES_MAX = 4

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
            plan, replayed = await self._new_plan(account, request), False
        else:
            plan, replayed = await self._plan_of(account, request, key)
        with after_commit():
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
        for _ in range(CANCEL_ALL_TRIES_MAX):
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
        raise JournalUnavailable(f"the key was not written in {CANCEL_ALL_TRIES_MAX} tries: repeat the request")

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
