"""How often and how soon a request is repeated."""

import random

import msgspec

# Past this many doublings every sensible first delay has reached its cap; the bound keeps the power small.
DOUBLINGS_MAX = 16


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that double up to a cap; with the defaults a request gives up after about two seconds of waiting."""

    attempts_max: int = 5
    first_seconds: float = 0.1
    seconds_max: float = 2.0

    def delay(self, failures: int, asked_seconds: float = 0.0) -> float:
        """Seconds to wait after so many failures in a row, at least what the server asked for, within the cap.

        The random half keeps clients that lost the same server from coming back in step.
        """
        backoff = self.first_seconds * (1 << min(failures - 1, DOUBLINGS_MAX)) * random.uniform(0.5, 1.0)
        return min(max(backoff, asked_seconds), self.seconds_max)
