"""The answer of a dry run: what every check says about an order that is not placed. Pure."""

from collections.abc import Sequence
from decimal import Decimal

import msgspec

from switchyard.domain.ids import VenueName
from switchyard.domain.money import ROUNDED, average, canonical
from switchyard.domain.risk.checks import CheckResult
from switchyard.domain.risk.context import OrderContext

_HUNDRED = Decimal(100)


class DryRunCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One check; reason and detail only where it failed."""

    check: str
    passed: bool
    reason: str | None = None
    detail: str | None = None


class DryRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `POST /orders?dryRun=true`."""

    dry_run: bool = True
    accepted: bool
    """Whether every check passed."""
    venue: VenueName
    price: Decimal | None
    """The order's own price, the worst one of a STOP order, or the quote that a MARKET order would meet, or none."""
    notional: Decimal | None
    """Quantity times price times multiplier."""
    currency: str | None
    """The settlement currency of the instrument, in which notional and fee are."""
    fee: Decimal | None
    """The expected fee of a complete fill."""
    checks: tuple[DryRunCheck, ...]


def dry_run_of(subject: OrderContext, results: Sequence[CheckResult]) -> DryRun:
    """The answer for these results."""
    notional = subject.notional
    return DryRun(
        accepted=all(result.violation is None for result in results),
        venue=subject.venue,
        price=subject.price,
        notional=None if notional is None else canonical(notional),
        currency=subject.instrument.settlement or None,
        fee=None if notional is None else average(ROUNDED.multiply(notional, subject.instrument.fee_percent), _HUNDRED),
        checks=tuple(_check(result) for result in results),
    )


def _check(result: CheckResult) -> DryRunCheck:
    violation = result.violation
    if violation is None:
        return DryRunCheck(check=result.name, passed=True)
    return DryRunCheck(check=result.name, passed=False, reason=violation.reason, detail=violation.detail)
