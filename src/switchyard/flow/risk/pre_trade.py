"""Pre-trade risk: judges a new order after a known key was answered and before the commit that accepts it.

Reads nothing but its checks; writes nothing. The commit stores a violation as a rejected order (ADR 18).
"""

from collections.abc import Sequence

from switchyard.domain.risk.checks import Check, CheckResult
from switchyard.domain.risk.reasons import Violation
from switchyard.domain.risk.subject import Subject


class PreTradeRisk:
    """One list of checks, used for new orders and for the dry run."""

    def __init__(self, checks: Sequence[Check] = ()) -> None:
        self._checks = tuple(checks)

    def judge(self, subject: Subject) -> Violation | None:
        """Return the violation of the first check that fails; none where all pass."""
        for check in self._checks:
            violation = check.judge(subject)
            if violation is not None:
                return violation
        return None

    def checks(self, subject: Subject) -> list[CheckResult]:
        """Return the result of every check."""
        return [CheckResult(check.name, check.judge(subject)) for check in self._checks]
