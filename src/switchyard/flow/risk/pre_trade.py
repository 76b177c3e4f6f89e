"""Pre-trade risk: judges a new order after a known key was answered and before the commit that accepts it.

Reads nothing but its checks; counts and logs rejections. The commit stores a violation as a rejected order (ADR 18).
"""

from collections.abc import Sequence

import structlog

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.risk.checks import RISK_REASONS, Check, CheckResult, Kind, OrderContext, Violation, kind_of
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# About 200 bytes each. Beyond this number all are forgotten, and checked again.
KINDS_MAX = 10_000


class PreTradeRisk:
    """One list of checks, used for new orders and for the dry run."""

    def __init__(self, checks: Sequence[Check], metrics: Metrics) -> None:
        self._checks = tuple(checks)
        self._checks_of_amounts = tuple(check for check in checks if not check.of_kind)
        self._passed: set[Kind] = set()
        """Kinds of orders that have passed the checks which depend on nothing else."""
        # Every series from the start: an alert on a counter that appears with its first rejection misses that one.
        self._rejections = {reason: metrics.risk_rejections.labels(reason) for reason in RISK_REASONS}

    def judge(self, subject: OrderContext) -> Violation | None:
        """Return the violation of the first check that fails; none where all pass."""
        kind = kind_of(subject)
        is_known = kind in self._passed
        for check in self._checks_of_amounts if is_known else self._checks:
            violation = check.judge(subject)
            if violation is not None:
                return violation
        if not is_known:
            if len(self._passed) >= KINDS_MAX:
                self._passed.clear()
            self._passed.add(kind)
        return None

    def checks(self, subject: OrderContext) -> list[CheckResult]:
        """Return the result of every check."""
        return [CheckResult(check.name, check.judge(subject)) for check in self._checks]

    def note_rejection(self, account: AccountId, order_id: OrderId | None, violation: Violation) -> None:
        """Count and log a rejected order; `order_id` is none where nothing was stored."""
        self._rejections[violation.reason].inc()
        log.info(
            "order_risk_rejected",
            account_id=account,
            order_id=order_id,
            reason=violation.reason,
            detail=violation.detail,
        )
