"""The rate of new orders by account: a token for each order that is not a repeat. Writes nothing to the journal."""

import math
from datetime import timedelta

from switchyard.domain.ids import AccountId
from switchyard.domain.risk.checks import CheckResult, Violation
from switchyard.ports.cache import TokenBuckets


class OrderRate:
    """Limits how fast an account sends new orders; without buckets there is no limit."""

    def __init__(self, buckets: TokenBuckets | None = None) -> None:
        self._buckets = buckets

    async def take(self, account: AccountId) -> Violation | None:
        """Take a token for a new order; returns the violation where there is none."""
        return None if self._buckets is None else _violation(await self._buckets.take(account))

    async def put_back(self, account: AccountId) -> None:
        """Return the token of a request that was a repeat."""
        if self._buckets is not None:
            await self._buckets.put_back(account)

    async def checks(self, account: AccountId) -> list[CheckResult]:
        """Return whether there is a token, for the dry run; takes none."""
        if self._buckets is None:
            return []
        return [CheckResult("RISK_RATE", _violation(await self._buckets.wait(account)))]


def _violation(wait: timedelta | None) -> Violation | None:
    if wait is None:
        return None
    seconds = math.ceil(wait.total_seconds() * 1000) / 1000
    detail = f"the account sends orders too fast: the next one is possible in {seconds:g} s (RISK_RATE_PER_SEC)"
    return Violation("RISK_RATE", detail, retry_after=wait)
