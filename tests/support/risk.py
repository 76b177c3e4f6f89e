"""Subjects of risk checks."""

from decimal import Decimal
from typing import Any

from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.journal.facts import Quote
from switchyard.domain.market.instruments import Instrument
from switchyard.domain.orders.order import OrderRequest
from switchyard.domain.risk.checks import OrderContext, RiskLimits, checks_of

BTC = Instrument(symbol="BTC", quote="USD", settle="USD")
QUOTE = Quote(bid=Decimal(99), ask=Decimal(101))


def a_subject(
    account: str = "acctA", *, instrument: Instrument = BTC, quote: Quote | None = QUOTE, **changes: Any
) -> OrderContext:
    """A LIMIT order to buy 10 at 100, with changes; `price=None` makes it a MARKET order, `stop_price` a stop order."""
    members: dict[str, Any] = {
        "symbol": instrument.symbol,
        "side": "BUY",
        "qty": Decimal(10),
        "price": Decimal(100),
    } | changes
    kind = "MARKET" if members["price"] is None else "LIMIT"
    if "stop_price" in members:
        kind = "STOP" if members["price"] is None else "STOP_LIMIT"
    order = OrderRequest(**({"type": kind, "time_in_force": "GTC"} | members))
    return OrderContext(
        account_id=AccountId(account), order=order, instrument=instrument, venue=VenueName("sim"), quote=quote
    )


def reasons_of(limits: RiskLimits, subject: OrderContext) -> list[str]:
    """The reasons of all checks that fail, in their order; the first one is the answer to an order."""
    violations = [check.judge(subject) for check in checks_of(limits)]
    return [violation.reason for violation in violations if violation is not None]
