"""The retry policy of the client."""

import random

import msgspec

# Bounds the exponent; any practical first delay has reached its cap long before.
DOUBLINGS_MAX = 16


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Exponential backoff; with the defaults a request fails after about two seconds of waiting."""

    attempts_max: int = 5
    """Attempts per request, including the first."""
    first_seconds: float = 0.1
    """The delay after the first failure; it doubles after each further one."""
    seconds_max: float = 2.0
    """The longest delay, also if the gateway requests a longer one."""
    jitter: float = 0.5
    """The largest part of a delay that is left out at random, from 0 to 1."""

    def delay(self, failures: int, requested_seconds: float = 0.0) -> float:
        """The delay in seconds after this many consecutive failures: at least what the server requested, up to the cap.

        The jitter prevents clients that lost the same server from reconnecting at the same time.
        """
        backoff = self.first_seconds * (1 << min(failures - 1, DOUBLINGS_MAX)) * random.uniform(1.0 - self.jitter, 1.0)
        return min(max(backoff, requested_seconds), self.seconds_max)


# The specification of `/do/order` recommends three repeats, after 1, 2 and 4 seconds.
DO_ORDER_RETRY = Retry(attempts_max=4, first_seconds=1.0, seconds_max=4.0, jitter=0.0)
