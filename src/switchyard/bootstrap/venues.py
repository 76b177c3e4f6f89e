"""The venues of one process, as configured."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from switchyard.adapters.memory.venue import NullVenue
from switchyard.adapters.venues.http.venue import HttpVenue
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.domain.events import Quote
from switchyard.domain.ids import VenueName
from switchyard.domain.instruments import Catalogue
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Venue, VenueUnavailable
from switchyard.settings import VenueSettings


async def open_venue(
    settings: VenueSettings, data_dir: Path, catalogue: Catalogue, clock: Clock, stack: AsyncExitStack
) -> Venue:
    """The venue behind its URL, ready to be sent to; closed with the stack."""
    venue: PaperExchange | HttpVenue
    match settings.url:
        case "null:" | "null:resting":
            return NullVenue(settings.name, clock=clock, fills=settings.url == "null:")
        case "paper:":
            venue = PaperExchange(
                settings.name,
                path=data_dir / "venues" / f"{settings.name}.db",
                catalogue=catalogue,
                clock=clock,
                delay=settings.delay,
                partial_steps=settings.partial_steps,
                reject_all=settings.reject_all,
            )
        case url:
            venue = HttpVenue(
                settings.name,
                url=url,
                dedupe=settings.dedupe,
                clock=clock,
                lookup=settings.lookup,
                acceptance_window=settings.window,
                request_expiry=settings.request_expiry,
                execution_ids=settings.exec_id_scope,
            )
    await venue.start()
    stack.push_async_callback(venue.close)
    return venue


class KnownQuotes:
    """Quotes of the venues that live in this process."""

    def __init__(self, venues: Mapping[VenueName, Venue]) -> None:
        self._venues = venues

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        """The venue's bid and ask right now, or none."""
        known = self._venues.get(venue)
        return None if known is None else known.quote(symbol)

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        """The same, asked for where it is not known; none where the venue does not tell."""
        known = self._venues.get(venue)
        if known is None:
            return None
        try:
            return known.quote(symbol) or await known.ask_quote(symbol)
        except VenueUnavailable:
            return None
