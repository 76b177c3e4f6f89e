"""Opens the configured venues, in a process that sends to them."""

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from switchyard.adapters.memory.venue import NullVenue
from switchyard.adapters.venues.http.names import VenueNames
from switchyard.adapters.venues.http.venue import SENDS, HttpVenue
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.bootstrap.core import Core
from switchyard.domain.ids import VenueName
from switchyard.domain.orders.order import ALL_KINDS, OrderKinds
from switchyard.ports.venue import Capabilities, Venue
from switchyard.settings import Settings, VenueSettings


async def open_venues(core: Core, stack: AsyncExitStack) -> None:
    """Open the configured venues and add them to `core.venues`; they are closed with the stack."""
    for settings in core.settings.venues:
        core.venues[settings.name] = core.wrappers.venue(await _open_venue(settings, core, stack))


async def _open_venue(settings: VenueSettings, core: Core, stack: AsyncExitStack) -> Venue:
    venue: PaperExchange | HttpVenue
    match settings.url:
        case "null:" | "null:resting":
            return NullVenue(settings.name, clock=core.clock, fills=settings.url == "null:")
        case "paper:":
            venue = PaperExchange(
                settings.name,
                path=paper_path(core.settings, settings.name),
                catalogue=core.catalogue,
                clock=core.clock,
                delay=settings.delay,
                partial_steps=settings.partial_steps,
                reject_all=settings.reject_all,
                displayed_qty=settings.displayed_qty,
                session=core.settings.risk.stateful.trading_day,
            )
        case url:
            venue = HttpVenue(
                settings.name,
                url=url,
                capabilities=declared_capabilities(settings),
                clock=core.clock,
                final_errors=settings.final_errors,
                idempotency_header=settings.idempotency_header,
                sends=replace(SENDS, reuses=reuses_connections(settings)),
                names=names_at(settings),
                headers=credentials_of(settings),
                note_unasked=core.metrics.unasked_responses.labels(settings.name).inc,
            )
    await venue.start()
    stack.push_async_callback(venue.close)
    return venue


def paper_path(settings: Settings, venue: VenueName) -> Path:
    """The file of a paper exchange."""
    return settings.data_dir / "venues" / f"{venue}.db"


def clock_offset_of(venue: Venue) -> timedelta | None:
    """How far the venue's clock is ahead of ours; None where its answers do not show it, or not yet."""
    return venue.clock_offset if isinstance(venue, HttpVenue) else None


def names_at(settings: VenueSettings) -> VenueNames:
    """The broker's names of our accounts and symbols."""
    return VenueNames(settings.accounts, settings.symbols)


def credentials_of(settings: VenueSettings) -> dict[str, str]:
    """The header with the broker's token; under `Authorization` it is a bearer token."""
    if settings.token is None:
        return {}
    header = settings.token_header
    return {header: f"Bearer {settings.token}" if header.lower() == "authorization" else str(settings.token)}


def reuses_connections(settings: VenueSettings) -> bool:
    """Whether orders may follow each other on a connection to the broker (ADR 43)."""
    return settings.dedupe == "permanent" and settings.reuse_connections is not False


def declared_capabilities(settings: VenueSettings) -> Capabilities:
    """What a venue promises according to its settings, without opening it."""
    if not settings.url.startswith("http"):
        # The venues of this process: a send has ended with its process.
        kinds = ALL_KINDS if settings.url == "paper:" else OrderKinds()
        return Capabilities(
            dedupe="permanent", lookup="all", acceptance_window=timedelta(), kinds=kinds, amend="in_place"
        )
    return Capabilities(
        dedupe=settings.dedupe,
        dedupe_ttl=settings.dedupe_ttl if settings.dedupe == "ttl" else None,
        lookup=settings.lookup,
        acceptance_window=settings.window,
        hop_hold=settings.hop_hold,
        request_expiry=settings.request_expiry,
        cancel_all=settings.cancel_all,
        reduce_only=settings.reduce_only,
        execution_ids=settings.exec_id_scope,
        amend=settings.amend,
        kinds=OrderKinds(types=settings.order_types, times_in_force=settings.times_in_force),
    )


def venue_kinds(settings: Settings) -> dict[VenueName, OrderKinds]:
    """Which orders each venue takes."""
    return {venue.name: declared_capabilities(venue).kinds for venue in settings.venues}
