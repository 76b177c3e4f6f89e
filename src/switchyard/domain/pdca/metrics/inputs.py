"""What a recheck looks at: the fills of a strategy, the orders that it sent, and the window."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgspec

from switchyard.domain.facts import Quote
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.ledger.entries import LedgerEntry
from switchyard.domain.money import EXACT, ONE, ZERO
from switchyard.domain.orders import Side

_DAY = timedelta(days=1)


class Window(msgspec.Struct, frozen=True):
    """The time from `start` to just before `end`."""

    start: datetime
    end: datetime

    def covers(self, at: datetime) -> bool:
        """Whether the time is in the window."""
        return self.start <= at < self.end

    @property
    def days(self) -> tuple[date, ...]:
        """Every UTC day that the window touches, days without a fill included."""
        if self.end <= self.start:
            return ()
        first = self.start.astimezone(UTC).date()
        last = (self.end - timedelta(microseconds=1)).astimezone(UTC).date()
        return tuple(first + number * _DAY for number in range((last - first).days + 1))


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """One execution or fee of the strategy, as the ledger has it."""

    at: datetime
    """The time of the journal's event."""
    account_id: AccountId
    order_id: OrderId
    exec_id: str
    venue: VenueName
    symbol: str
    side: Side
    qty: Decimal
    price: Decimal
    currency: str
    """The settlement currency."""
    multiplier: Decimal = ONE
    fee: Decimal = ZERO
    """Below zero for a rebate."""
    fee_currency: str | None = None
    is_trade: bool = True
    """False for a position that a person entered: it has a cost, and was not traded by the strategy."""

    @property
    def notional(self) -> Decimal:
        """The money that changed hands, above zero."""
        return EXACT.multiply(EXACT.multiply(self.qty, self.price), self.multiplier)

    @property
    def currencies(self) -> frozenset[str]:
        """The currencies of the result and of the fee."""
        fee = {self.fee_currency or self.currency} if self.fee else set()
        return frozenset(({self.currency} if self.qty else set()) | fee)


class StrategyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order of the strategy, as the journal has it."""

    order_id: OrderId
    accepted_at: datetime
    rejected: bool = False
    """By a pre-trade check or by the venue."""
    blocked: bool = False
    """Rejected because a kill covered it: what the operator or a recheck decided says nothing about the strategy."""
    doubted: bool = False
    """Whether it was in doubt at any time."""
    quote: Quote | None = None
    """The market when it arrived."""


def fill_of(entry: LedgerEntry) -> Fill:
    """The fill of a ledger entry that moves units or money; its fee is what the books have, whoever entered it."""
    fee = next((leg for leg in entry.legs if leg.account == "fees"), None)
    return Fill(
        at=entry.at,
        account_id=entry.account_id,
        order_id=entry.order_id,
        exec_id=entry.exec_id or entry.entry_id,
        venue=entry.venue,
        symbol=entry.symbol,
        side=entry.side or "BUY",  # a fee alone has neither side nor quantity
        qty=entry.qty or ZERO,
        price=entry.price or ZERO,
        currency=entry.currency,
        multiplier=entry.multiplier,
        fee=ZERO if fee is None else fee.amount,
        fee_currency=None if fee is None else fee.unit,
        is_trade=entry.type == "Fill",
    )
