"""The mass cancel port: one request that cancels all open orders at a venue."""

from typing import Protocol

from switchyard.domain.ids import VenueName


class MassCancel(Protocol):
    """A venue with `Capabilities.cancel_all`."""

    @property
    def name(self) -> VenueName:
        """The venue's name."""
        ...

    async def cancel_all(self) -> None:
        """Cancel every open order under this venue's credentials; raises VenueUnavailable.

        An acknowledgement proves nothing about a single order: its report or a lookup does.
        """
        ...
