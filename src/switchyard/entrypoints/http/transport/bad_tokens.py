"""Requests with an invalid token: limits them per address and logs them as one summary.

The token is verified first, so a valid one is never rejected, whatever else its address has sent. Counts in memory;
writes one log line per period.
"""

import asyncio
from collections import Counter
from datetime import timedelta

import structlog

from switchyard.domain.errors import Unauthorized
from switchyard.entrypoints.http.errors import TooManyBadTokens
from switchyard.entrypoints.http.transport.addresses import limited_as
from switchyard.ports.clock import Clock

log = structlog.get_logger()

# Enough for a deployment with a wrong secret to show what is wrong; a guesser gets nowhere.
BAD_TOKENS_MAX = 30
PERIOD_SECONDS = 60.0
# Addresses counted separately; further ones share one count.
ADDRESSES_MAX = 10_000
OTHERS = "others"
# Addresses named in the summary.
NAMED_MAX = 5


class BadTokens:
    """Counts the invalid tokens of each address in the current period."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_at = 0.0
        self._attempts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def judged(self, error: Exception, address: str) -> Exception:
        """Count an invalid token; returns the error, or TooManyBadTokens above the limit."""
        # A request without a token guesses nothing.
        if not isinstance(error, Unauthorized) or error.reason == "TOKEN_MISSING":
            return error
        if not self._attempts:
            self._ends_at = self._clock.monotonic() + PERIOD_SECONDS
            asyncio.get_running_loop().call_later(PERIOD_SECONDS, self._end_period)
        name = limited_as(address)
        if name not in self._attempts and len(self._attempts) >= ADDRESSES_MAX:
            name = OTHERS
        self._attempts[name] += 1
        self._reasons[error.reason] += 1
        if self._attempts[name] <= BAD_TOKENS_MAX:
            return error
        return TooManyBadTokens(timedelta(seconds=max(1.0, self._ends_at - self._clock.monotonic())), error.message)

    def _end_period(self) -> None:
        log.warning(
            "tokens_rejected",
            attempts=self._attempts.total(),
            limited=sum(max(0, count - BAD_TOKENS_MAX) for count in self._attempts.values()),
            addresses=len(self._attempts),
            most=dict(self._attempts.most_common(NAMED_MAX)),
            reasons=dict(self._reasons),
            seconds=PERIOD_SECONDS,
        )
        self._attempts.clear()
        self._reasons.clear()
