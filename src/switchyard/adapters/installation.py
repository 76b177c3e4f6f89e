"""Makes the identity of a new database, for both SQL engines."""

from switchyard.adapters.system_clock import SystemClock, SystemRandomness
from switchyard.domain.ids import TAG_BITS, ULID_RANDOM_BITS, Installation, new_installation


def random_installation() -> Installation:
    """A new installation with a random id and tag."""
    randomness = SystemRandomness()
    milliseconds = int(SystemClock().now().timestamp() * 1000)
    return new_installation(milliseconds, randomness.bits(ULID_RANDOM_BITS), randomness.bits(TAG_BITS))
