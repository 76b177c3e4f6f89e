"""The lease of an installation: which of the copies of a database may run."""

from datetime import timedelta
from typing import Protocol


class Lease(Protocol):
    """A name with one holder, kept outside the machine. Calls block and raise OSError while it cannot be reached."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def take(self, holder: str, ttl: timedelta) -> str:
        """Take the lease if it is free, or renew it; returns who holds it then."""
        ...

    def close(self) -> None:
        """Disconnect; the lease expires by itself."""
        ...
