"""The retry policy of the client."""

import random

import msgspec

# Bounds the exponent; any practical first delay has reached its cap long before.
DOUBLINGS_MAX = 16


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff with jitter; with the defaults a request fails after about two seconds of waiting."""

    attempts_max: int = 5
    """Attempts per request, including the first."""
    first_seconds: float = 0.1
    """The delay after the first failure; it doubles after each further one."""
    seconds_max: float = 2.0
    """The longest delay, also if the gateway requests a longer one."""

    def delay(self, failures: int, requested_seconds: float = 0.0) -> float:
        """The delay in seconds after this many consecutive failures: at least what the server requested, up to the cap.

        The jitter prevents clients that lost the same server from reconnecting at the same time.
        """
        backoff = self.first_seconds * (1 << min(failures - 1, DOUBLINGS_MAX)) * random.uniform(0.5, 1.0)
        return min(max(backoff, requested_seconds), self.seconds_max)
