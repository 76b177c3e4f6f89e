"""`PATCH /orders/{orderId}`: amends of open orders, at most one for each key (ADR 23).

Reads orders and keys; judges the risk of what an amend adds; commits the amend with its key, and with the change itself
where nothing of the order was ever sent. Calls no venue: a worker sends the amend.
"""

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from switchyard.domain import decisions
from switchyard.domain.errors import (
    IdempotencyConflict,
    JournalUnavailable,
    NoChange,
    NotAmendable,
    NotFound,
    RiskRejected,
    VersionMismatch,
)
from switchyard.domain.ids import (
    WHOLE,
    AccountId,
    IdForm,
    OrderId,
    VenueClientOrderId,
    VenueName,
    amend_client_order_id,
)
from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import (
    Amend,
    AmendDigest,
    AmendRequest,
    AmendStatus,
    amend_of,
    amend_rows,
    amend_status,
    checked_amend,
    last_id,
)
from switchyard.domain.orders.keys import AMEND_ORDER, DERIVED_AMEND, KeyEntry, counted_from
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order, OrderRequest
from switchyard.domain.orders.outbox import MayBeLost, OrderState, OutboxRow, never_lost
from switchyard.domain.orders.reasons import described
from switchyard.domain.risk.checks import WAIVED_FOR_REDUCING, OrderContext, Violation, killed
from switchyard.domain.risk.claims import reserve_price, reserved
from switchyard.domain.values import converted, require_numbers, struct_digest
from switchyard.flow.commit.sequencer import Commit, after_commit
from switchyard.flow.intake.order_intake import DuplicateWatch
from switchyard.flow.risk.limit_claims import LimitClaims
from switchyard.flow.risk.pre_trade import OrderRate, PreTradeRisk
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import KeyStore
from switchyard.ports.quotes import Quotes
from switchyard.ports.venue import Capabilities

# The first try, and more for reports and other requests that changed the order or the key in between.
ATTEMPTS_MAX = 16
_AMOUNTS = ("qty", "price", "stopPrice")


class AmendAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The answer to an amend: that it is stored, and what became of it so far."""

    order_id: OrderId
    amend_id: VenueClientOrderId
    status: AmendStatus
    reason: str | None = None
    """Why it was refused."""


class Amendment(NamedTuple):
    """The amend that belongs to a request."""

    answer: AmendAnswer
    replayed: bool = False


class _Key(NamedTuple):
    """The key of a request, and how it stands in the key store."""

    operation: str
    key: str
    generation: int = 0
    version: int = 1


class AmendService:
    """Amends orders; a repeated request finds its first amend."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        quotes: Quotes,
        risk: PreTradeRisk,
        limits: LimitClaims,
        rate: OrderRate,
        journal: Journal,
        keys: KeyStore,
        commit: Commit,
        clock: Clock,
        duplicates: DuplicateWatch,
        capabilities: Mapping[VenueName, Capabilities],
        tag: str,
        key_ttl: timedelta,
        resolution: timedelta,
        id_form: Callable[[str, VenueName, AccountId], IdForm] = lambda _symbol, _venue, _account: WHOLE,
        may_be_lost: MayBeLost = never_lost,
    ) -> None:
        """`resolution`: how long an equal request without a key counts as a repeat; `id_form`: as in `VenueChoice`."""
        self._may_be_lost = may_be_lost
        self._catalogue = catalogue
        self._quotes = quotes
        self._risk = risk
        self._limits = limits
        self._rate = rate
        self._journal = journal
        self._keys = keys
        self._commit = commit
        self._clock = clock
        self._duplicates = duplicates
        self._capabilities = capabilities
        self._tag = tag
        self._id_form = id_form
        self._key_ttl = key_ttl
        self._resolution = resolution

    async def amend(
        self,
        account: AccountId,
        order_id: OrderId,
        body: Mapping[str, Any],
        key: str | None,
        *,
        version: int | None = None,
    ) -> Amendment:
        """Make the amend durable, or return the one that the request repeats; without a key, one with equal content.

        `version` is the one that the order must have. Raises RiskRejected and the errors of `decisions.request_amend`;
        nothing is stored of a rejected amend, so a repeat is judged again.
        """
        require_numbers(body, _AMOUNTS)
        state = await self._load(account, order_id)
        request = checked_amend(converted(body, AmendRequest), state.order, self._catalogue)
        digest = struct_digest(AmendDigest(order_id, request))
        if key is None:
            repeated = self._equal_amend(state, request)
            if repeated is not None:
                return self._repeat(account, state.order, repeated)
            known = _Key(DERIVED_AMEND, _derived_key(state, digest))
        else:
            known = _Key(AMEND_ORDER, key)
            entry = await self._keys.entry(account, known.operation, known.key)
            if entry is not None and not await self._may_reuse(entry):
                return await self._found(account, entry, digest)
        if (adopted := self._adopted(state, known)) is not None:
            if _differs(request, amend_of(adopted)):
                raise IdempotencyConflict(known.key)
            return self._repeat(account, state.order, adopted)
        exceeded = await self._rate.take(account)
        if exceeded is not None:
            raise self._rejected(account, order_id, exceeded)
        amendment = await self._write(account, state, request, digest, known, version)
        if amendment.replayed:
            await self._rate.put_back(account)
        return amendment

    async def _write(
        self,
        account: AccountId,
        state: OrderState,
        request: AmendRequest,
        digest: str,
        known: _Key,
        version: int | None,
    ) -> Amendment:
        reducing = True
        for _ in range(ATTEMPTS_MAX):
            if version is not None and state.order.version != version:
                raise VersionMismatch(state.order.version)
            now = self._clock.now()
            change = self._decided(state, request, digest, known, now, reducing)
            outcome = await self._commit(change)
            if isinstance(outcome, Committed):
                return Amendment(_answer(change.orders[-1], change.outbox[-1]))
            if outcome.key is not None:
                if not await self._may_reuse(outcome.key):
                    return await self._found(account, outcome.key, digest)
                known = known._replace(generation=outcome.key.generation + 1, version=outcome.key.version + 1)
            elif outcome.kill is not None:
                raise self._rejected(account, state.order.order_id, killed(outcome.kill))
            elif outcome.breach is not None and outcome.breach.reason == "NOT_REDUCING":
                reducing = False
            elif outcome.breach is not None:
                violation = self._limits.amend_violation(state.order, outcome.breach)
                raise self._rejected(account, state.order.order_id, violation)
            state = await self._load(account, state.order.order_id)
        raise JournalUnavailable(f"the amend was not written in {ATTEMPTS_MAX} attempts: repeat the request")

    def _decided(
        self, state: OrderState, request: AmendRequest, digest: str, known: _Key, now: datetime, reducing: bool
    ) -> Change:
        """The change that requests the amend, judged on the order's newest state."""
        order = state.order
        qty = order.qty if request.qty is None else request.qty
        price = order.price if request.price is None else request.price
        stop_price = order.stop_price if request.stop_price is None else request.stop_price
        decisions.check_amendable(state, qty)
        capabilities = self._capabilities.get(order.venue)
        if capabilities is None or capabilities.amend == "none":
            raise NotAmendable(f"venue {order.venue} cannot amend orders: cancel the order and place a new one")
        if (qty, price, stop_price) == (order.qty, order.price, order.stop_price):
            raise NoChange
        if order.reduce_only and qty > order.qty:
            raise NotAmendable("an order that closes a position cannot become larger: close the rest of it instead")
        reserve = self._judged(order, qty, request, price, stop_price)
        amend = Amend(
            client_order_id=self._client_order_id(order, known),
            orig_client_order_id=last_id(state),
            qty=qty,
            price=price,
            stop_price=stop_price,
            reserve_price=reserve,
            replaces=capabilities.amend == "cancel_replace",
            is_provable=capabilities.proves_absence,
            operation=known.operation,
            key=known.key,
        )
        entry = KeyEntry(
            account_id=order.account_id,
            operation=known.operation,
            idempotency_key=known.key,
            generation=known.generation,
            order_id=order.order_id,
            request_digest=digest,
            created_at=now,
            expires_at=now + self._key_ttl,
            version=known.version,
        )
        is_reducing = order.reducing and reducing
        amended = replace(order, amend_qty=qty, amend_reserve_price=reserve, reducing=is_reducing)
        before, after = reserved(order), reserved(amended)
        assert before is not None and after is not None, "an order that has ended cannot be amended"
        claim = None
        # Without a price it would reserve no money at all, and so free what it reserves now.
        is_unpriced = reserve is None and order.reserve_price is not None
        if after.qty > before.qty or after.notional > before.notional or is_unpriced:
            limits = self._limits.amend_limits(order.account_id, order.symbol)
            if limits.needs_price and reserve is None and not is_reducing:
                detail = f"a limit needs a price, and {order.symbol} has no quote"
                raise self._rejected(order.account_id, order.order_id, Violation("LIMIT_NO_PRICE", detail))
            claim = self._limits.amend_claim(order, limits, now)
        return decisions.request_amend(
            state, amend, entry, now, reducing=is_reducing, claim=claim, may_be_lost=self._may_be_lost
        )

    def _judged(
        self, order: Order, qty: Decimal, request: AmendRequest, price: Decimal | None, stop_price: Decimal | None
    ) -> Decimal | None:
        """Judge the order with its new amounts, unless it only becomes smaller; returns its new reserve price."""
        quote = self._quotes.quote(order.venue, order.symbol)
        wanted = OrderRequest(
            symbol=order.symbol,
            side=order.side,
            type=order.type,
            qty=qty,
            price=price,
            stop_price=stop_price,
            time_in_force=order.time_in_force,
            strategy=order.strategy,
        )
        instrument = self._catalogue.find(order.symbol)
        if qty > order.qty or request.price is not None or request.stop_price is not None:
            subject = OrderContext(
                account_id=order.account_id, order=wanted, instrument=instrument, venue=order.venue, quote=quote
            )
            violation = self._risk.judge(subject)
            is_smaller = order.reducing or qty <= order.qty
            if violation is not None and not (is_smaller and violation.reason in WAIVED_FOR_REDUCING):
                raise self._rejected(order.account_id, order.order_id, violation)
        if quote is None and qty <= order.qty and (price, stop_price) == (order.price, order.stop_price):
            return order.reserve_price  # only a smaller part of what was judged
        return reserve_price(wanted, quote, instrument.collar_percent)

    async def _load(self, account: AccountId, order_id: OrderId) -> OrderState:
        state = (await self._journal.load([order_id])).get(order_id)
        if state is None or state.order.account_id != account:
            raise NotFound
        return state

    async def _may_reuse(self, entry: KeyEntry) -> bool:
        """After the key has expired, but never before its order is final."""
        if self._clock.now() < entry.expiry(self._clock.jumped_at):
            return False
        state = (await self._journal.load([entry.order_id])).get(entry.order_id)
        return state is None or is_final(state.order.status)

    async def _found(self, account: AccountId, entry: KeyEntry, digest: str) -> Amendment:
        """The amend that the key has; raises IdempotencyConflict where it belongs to another request."""
        if entry.request_digest != digest:
            raise IdempotencyConflict(entry.idempotency_key)
        with after_commit():
            state = await self._load(account, entry.order_id)
        for row in amend_rows(state):
            amend = amend_of(row)
            if (amend.operation, amend.key) == (entry.operation, entry.idempotency_key):
                return self._repeat(account, state.order, row)
        raise JournalUnavailable("the amend of this key is not in the database: repeat the request")

    def _adopted(self, state: OrderState, known: _Key) -> OutboxRow | None:
        """The amend that the request made before a restore lost its key, if the venue has shown it since."""
        client_id = self._client_order_id(state.order, known)
        own = (row for row in amend_rows(state) if row.venue_client_order_id == client_id)
        return next((row for row in own if not amend_of(row).key), None)

    def _client_order_id(self, order: Order, known: _Key) -> VenueClientOrderId:
        form = self._id_form(order.symbol, order.venue, order.account_id)
        return amend_client_order_id(self._tag, order.venue_client_order_id, known.operation, known.key, form)

    def _repeat(self, account: AccountId, order: Order, row: OutboxRow) -> Amendment:
        self._duplicates.count_duplicate(account, amend_of(row).key, order.order_id)
        return Amendment(_answer(order, row), replayed=True)

    def _equal_amend(self, state: OrderState, request: AmendRequest) -> OutboxRow | None:
        """The order's last amend, if it asks for the same and is recent: a request without a key then repeats it."""
        rows = amend_rows(state)
        if not rows or amend_status(rows[-1]) == "REFUSED":
            return None
        if _differs(request, amend_of(rows[-1])):
            return None
        age = self._clock.now() - counted_from(rows[-1].created_at, self._clock.jumped_at)
        return rows[-1] if age < self._resolution else None

    def _rejected(self, account: AccountId, order_id: OrderId, violation: Violation) -> RiskRejected:
        self._risk.note_rejection(account, order_id, violation)
        return RiskRejected(violation.reason, violation.detail, retry_after=violation.retry_after)


def _differs(request: AmendRequest, amend: Amend) -> bool:
    """Whether the request asks for another amount than the amend has."""
    wanted = ((request.qty, amend.qty), (request.price, amend.price), (request.stop_price, amend.stop_price))
    return any(ours is not None and ours != theirs for ours, theirs in wanted)


def _answer(order: Order, row: OutboxRow) -> AmendAnswer:
    status = amend_status(row)
    reason = described(row.last_error, row.error_detail) if status == "REFUSED" and row.last_error else None
    return AmendAnswer(order_id=order.order_id, amend_id=row.venue_client_order_id, status=status, reason=reason)


def _derived_key(state: OrderState, digest: str) -> str:
    """The key of a request without one: the same for equal requests that follow the same amend of the order."""
    number = len(amend_rows(state)) + 1
    return hashlib.sha256(f"{state.order.order_id}|{number}|{digest}".encode()).hexdigest()
