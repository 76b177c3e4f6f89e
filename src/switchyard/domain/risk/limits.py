"""The settings of the pre-trade rules, and the rules: pure functions from a subject to a violation or none."""

from decimal import Decimal

import msgspec

from switchyard.domain.money import plain
from switchyard.domain.risk.checks import Check, Judge
from switchyard.domain.risk.reasons import Violation
from switchyard.domain.risk.subject import Subject


class RiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of the section `risk`; none: no limit."""

    max_qty: Decimal | None = None


def checks_of(limits: RiskLimits) -> list[Check]:
    """The checks that these limits need, in the order in which they are judged."""
    checks = []
    if limits.max_qty is not None:
        checks.append(Check("RISK_MAX_QTY", _max_qty(limits.max_qty)))
    return checks


def _max_qty(max_qty: Decimal) -> Judge:
    def judge(subject: Subject) -> Violation | None:
        if subject.qty <= max_qty:
            return None
        return Violation("RISK_MAX_QTY", f"qty {plain(subject.qty)} is above {plain(max_qty)}")

    return judge
