"""The quotes of a broker that speaks our HTTP protocol."""

from collections.abc import Mapping
from types import MappingProxyType

from switchyard.adapters.venues.http.adapter import DESCRIPTOR, HttpProtocol
from switchyard.domain.ids import VenueName
from switchyard.ports.clock import Clock
from switchyard.venue.bridge import VenueNames
from switchyard.venue.quotes import CONNECTIONS, VenueQuotes
from switchyard.venue.transport import Transport


def http_quotes(
    url: str, clock: Clock, *, names: VenueNames | None = None, headers: Mapping[str, str] = MappingProxyType({})
) -> VenueQuotes:
    """A feed that is not started yet."""
    return VenueQuotes(
        VenueName("broker"),
        HttpProtocol(headers=lambda: headers),
        transport=Transport(url, CONNECTIONS),
        clock=clock,
        names=names,
        time_header=DESCRIPTOR.time_header,
    )
