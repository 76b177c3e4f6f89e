"""The three rates of the PDCA API per client, and the headers that show what is left."""

import math

from switchyard.bootstrap import PdcaLimits, PdcaRateName
from switchyard.domain.errors import TooManyRequests
from switchyard.entrypoints.http.errors import Header


class PdcaRates:
    """Counts requests."""

    def __init__(self, rates: PdcaLimits) -> None:
        """`rates`: the limit that each one shows, and the counter."""
        self._rates = rates

    async def take(self, name: PdcaRateName, client: str) -> tuple[list[Header], TooManyRequests | None]:
        """Count a request; returns the headers of its answer, and the error if it is over the rate."""
        limit, rate = self._rates[name]
        counted = await rate.count(f"pdca.{name}:{client}")
        headers = [
            (b"x-ratelimit-limit", b"%d" % limit),
            (b"x-ratelimit-remaining", b"%d" % counted.remaining),
            (b"x-ratelimit-reset", b"%d" % math.ceil(counted.reset.total_seconds())),
        ]
        return headers, None if counted.wait is None else TooManyRequests(counted.wait)
