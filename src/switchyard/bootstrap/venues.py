"""Opens the configured venues, and answers quotes from those that are open in this process."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta

from switchyard.adapters.memory.venue import NullVenue
from switchyard.adapters.venues.http.venue import HttpVenue
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.bootstrap.core import Core
from switchyard.domain.facts import Quote
from switchyard.domain.ids import VenueName
from switchyard.ports.liveness import KERNEL_HOLD
from switchyard.ports.venue import SEND_LIMIT, TURN_LIMIT, Capabilities, Venue, VenueUnavailable
from switchyard.settings import Settings, VenueSettings


async def open_venues(core: Core, stack: AsyncExitStack, *, remote_only: bool) -> None:
    """Open the configured venues and add them to `core.venues`; they are closed with the stack.

    With `remote_only` only brokers behind HTTP are opened, for their quotes: other venues live in the worker's process.
    """
    for settings in core.settings.venues:
        if not remote_only or settings.url.startswith("http"):
            core.venues[settings.name] = core.wrappers.venue(await _open_venue(settings, core, stack))


async def _open_venue(settings: VenueSettings, core: Core, stack: AsyncExitStack) -> Venue:
    venue: PaperExchange | HttpVenue
    match settings.url:
        case "null:" | "null:resting":
            return NullVenue(settings.name, clock=core.clock, fills=settings.url == "null:")
        case "paper:":
            venue = PaperExchange(
                settings.name,
                path=core.settings.data_dir / "venues" / f"{settings.name}.db",
                catalogue=core.catalogue,
                clock=core.clock,
                delay=settings.delay,
                partial_steps=settings.partial_steps,
                reject_all=settings.reject_all,
            )
        case url:
            venue = HttpVenue(
                settings.name,
                url=url,
                capabilities=declared_capabilities(settings),
                clock=core.clock,
                final_errors=settings.final_errors,
                idempotency_header=settings.idempotency_header,
            )
    await venue.start()
    stack.push_async_callback(venue.close)
    return venue


def declared_capabilities(settings: VenueSettings) -> Capabilities:
    """What a venue promises according to its settings, without opening it."""
    if not settings.url.startswith("http"):
        # The venues of this process: a send has ended with its process.
        return Capabilities(dedupe="permanent", lookup="all", acceptance_window=timedelta())
    return Capabilities(
        dedupe=settings.dedupe,
        dedupe_ttl=settings.dedupe_ttl if settings.dedupe == "ttl" else None,
        lookup=settings.lookup,
        acceptance_window=settings.window,
        hop_hold=settings.hop_hold,
        request_expiry=settings.request_expiry,
        cancel_all=settings.cancel_all,
        execution_ids=settings.exec_id_scope,
    )


def send_lingers(settings: Settings) -> timedelta:
    """`Liveness.send_lingers` of the configured database, without opening it."""
    return KERNEL_HOLD if settings.database_url is None else TURN_LIMIT + SEND_LIMIT + KERNEL_HOLD


class KnownQuotes:
    """ports.quotes.Quotes from the venues of this process."""

    def __init__(self, venues: Mapping[VenueName, Venue]) -> None:
        self._venues = venues

    def quote(self, venue: VenueName, symbol: str) -> Quote | None:
        """The venue's current bid and ask, if it keeps them in memory."""
        opened = self._venues.get(venue)
        return None if opened is None else opened.quote(symbol)

    async def ask(self, venue: VenueName, symbol: str) -> Quote | None:
        """The same, requested from the venue if necessary; none if the venue does not answer."""
        opened = self._venues.get(venue)
        if opened is None:
            return None
        try:
            return opened.quote(symbol) or await opened.ask_quote(symbol)
        except VenueUnavailable:
            return None
