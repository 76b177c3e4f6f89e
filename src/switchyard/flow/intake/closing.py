"""`POST /positions/{symbol}/close`: an order that closes a position or a part of it.

Reads the account's exposure; places through `OrderIntake`. The commit checks that the order can only reduce the
position (ADR 27); where that is not so any more, side and quantity are decided again.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from switchyard.domain.errors import NotFound, PositionClosing, PositionMoved
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.closing import CloseRequest
from switchyard.domain.orders.keys import CLOSE_POSITION, KeyEntry
from switchyard.flow.intake.derived import DerivedOrderService, DerivedResult
from switchyard.flow.intake.order_intake import OrderIntake
from switchyard.flow.intake.orders import OrderService
from switchyard.flow.intake.requests import IdempotentRequest, KeyRules, Placement
from switchyard.ports.cache import CacheEntry
from switchyard.ports.clock import Clock

# Of so many tries to close a whole position none may leave a rest; while fills keep moving it, the others may.
EXACT_TRIES = 4
TRIES_MAX = 8


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
        for tried in range(TRIES_MAX):
            decide = partial(self._intake.routed_close, intent.account_id, request, exactly=tried < EXACT_TRIES)
            try:
                # A repeat is answered from its key: by then there may be nothing left to close.
                return await self._intake.place(intent, decide, rules, lookup_first=True)
            except PositionMoved:
                if tried == TRIES_MAX - 1:
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
