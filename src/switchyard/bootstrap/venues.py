"""The venues of the settings: adapters, capabilities, credentials, states, rates and quotes."""

import asyncio
import hashlib
import hmac
import math
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from switchyard.adapters.files.recorded_quotes import RecordedQuotes, UnreadableRecord
from switchyard.adapters.memory.cache import MemoryBuckets
from switchyard.adapters.memory.venue import FixedQuotes, NullVenue
from switchyard.adapters.venues.http.messages import VenueNames
from switchyard.adapters.venues.http.quotes import HttpQuotes
from switchyard.adapters.venues.http.venue import SENDS, HttpVenue
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.adapters.venues.paper.market import PaperQuotes
from switchyard.bootstrap.core import Core
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.domain.market.health import HealthRecord, SendState, VenueState
from switchyard.domain.orders.order import ALL_KINDS, OrderKinds
from switchyard.flow.executions.strays import ProblemCode, VenueGate
from switchyard.flow.health.venues import HealthBoard
from switchyard.flow.quotes import PolledQuotes
from switchyard.flow.sending.dispatch import VenueRates
from switchyard.ports.cache import TokenBuckets
from switchyard.ports.quotes import QuoteSource
from switchyard.ports.venue import Capabilities, Venue
from switchyard.settings import Settings, VenueSettings, jwt_secret

if TYPE_CHECKING:
    from switchyard.adapters.redis.host import RedisHost


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


def open_rates(core: Core, stack: AsyncExitStack) -> VenueRates:
    """Open the buckets of the venues that have a rate; the stack closes them."""
    limited = [venue for venue in core.settings.venues if venue.rate_per_sec is not None]
    redis_url = core.settings.idempotency.cache.redis_url
    host = None
    if limited and redis_url is not None:
        from switchyard.adapters.redis.host import RedisHost  # loading the client takes long

        host = RedisHost(redis_url, clock=core.clock, on_change=core.metrics.redis_up.set)
    buckets = {venue.name: _bucket(venue, host, core, stack) for venue in limited}
    return VenueRates(buckets, core.clock, core.metrics)


def burst_of(venue: VenueSettings) -> int:
    """How many requests may be sent at once after a pause."""
    assert venue.rate_per_sec is not None, "a venue without a rate has no burst"
    return venue.burst or math.ceil(venue.rate_per_sec)


def _bucket(venue: VenueSettings, host: "RedisHost | None", core: Core, stack: AsyncExitStack) -> TokenBuckets:
    assert venue.rate_per_sec is not None, "a venue without a rate has no bucket"
    own = MemoryBuckets(venue.rate_per_sec, burst_of(venue), clock=core.clock)
    if host is None:
        return own
    from switchyard.adapters.redis.limits import RedisBuckets

    # Of the installation: another one on the same Redis, with other credentials at the venue, has its own buckets.
    text = f"venue rate, {core.installation.id}"
    key = hmac.digest(jwt_secret(core.settings).encode(), text.encode(), hashlib.sha256)
    shared = RedisBuckets(venue.rate_per_sec, burst_of(venue), host=host, key=key, without_server=own)
    stack.push_async_callback(shared.close)
    return shared


VenueCode = ProblemCode | Literal["NOT_REPORTED"]


def venue_states(core: Core, detailed: bool = True) -> list[VenueState]:
    """Return every venue of the settings; `detailed`: with reasons as texts for operators, else as codes."""
    return [venue_state(venue, core.gates.get(venue.name), core.health, detailed) for venue in core.settings.venues]


def venue_state(settings: VenueSettings, gate: VenueGate | None, health: HealthBoard, detailed: bool) -> VenueState:
    """The venue as `GET /venues` shows it; without a gate another process sends to it."""
    record = health.record(settings.name)
    state, code, text = _send_state(gate, record)
    latency = None if record is None else record.latency_seconds
    rate = None if record is None else record.reject_rate
    return VenueState(
        venue=settings.name,
        kind=_kind(settings.url),
        state=state,
        reason=text if detailed else code,
        breaker=None if record is None else record.breaker,
        faults=None if record is None else record.faults,
        rate_per_sec=settings.rate_per_sec,
        burst=None if settings.rate_per_sec is None else burst_of(settings),
        latency_ms=None if latency is None else round(latency * 1000, 1),
        reject_rate=None if rate is None else round(rate, 3),
    )


def _send_state(gate: VenueGate | None, record: HealthRecord | None) -> tuple[SendState, VenueCode | None, str | None]:
    """Return the state with its reason, as a code and as a text that may quote a library's error."""
    if record is None:
        return "unknown", "NOT_REPORTED", "no worker has reported on it lately"
    problem = None if gate is None else gate.problem
    if gate is not None and not gate.is_open:
        if problem is None:
            return "closed", "NOT_SYNCHRONISED", "its orders and reports are being read"
        return "closed", problem.code, problem.reason
    if record.reason is not None:
        return "held", "BREAKER_OPEN", record.reason
    return ("open", None, None) if problem is None else ("open", problem.code, problem.reason)


def _kind(url: str) -> Literal["paper", "http", "null"]:
    if url.startswith("http"):
        return "http"
    return "paper" if url == "paper:" else "null"


# How long a gateway waits at its start for the first answer of its brokers, so that its first orders find a quote.
FIRST_POLL_SECONDS = 1.0


async def open_quotes(core: Core, stack: AsyncExitStack, *, polls_catalogue: bool) -> None:
    """Add the quotes of every venue to `core.quotes`; polling stops with the stack.

    With `polls_catalogue` a broker is asked all the time for the symbols that are routed to it; otherwise only for
    those that were asked for lately.
    """
    polled: list[PolledQuotes] = []
    for settings in core.settings.venues:
        if settings.quotes == "venue" and settings.url.startswith("http"):
            source = await _open_polled(settings, core, stack, polls_catalogue=polls_catalogue)
            polled.append(source)
            core.quotes.add(settings.name, source)
        elif settings.quotes != "none":
            core.quotes.add(settings.name, await _open_local(settings, core))
    if polls_catalogue and polled:
        first_polls = [asyncio.create_task(source.started()) for source in polled]
        _, late = await asyncio.wait(first_polls, timeout=FIRST_POLL_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def _open_polled(
    settings: VenueSettings, core: Core, stack: AsyncExitStack, *, polls_catalogue: bool
) -> PolledQuotes:
    feed = HttpQuotes(
        settings.name,
        url=settings.url,
        clock=core.clock,
        names=names_at(settings),
        headers=credentials_of(settings),
        note_unasked=core.metrics.unasked_responses.labels(settings.name).inc,
    )
    await feed.start()
    stack.push_async_callback(feed.close)
    source = PolledQuotes(
        settings.name,
        feed,
        listed=_routed_to(settings.name, core) if polls_catalogue else (),
        interval=settings.quotes_poll,
        clock=core.clock,
        metrics=core.metrics,
    )
    core.supervisor.start(stack, f"quotes {settings.name}", source.run)
    return source


async def _open_local(settings: VenueSettings, core: Core) -> QuoteSource:
    if settings.quotes == "venue":
        is_paper = settings.url == "paper:"
        return PaperQuotes(core.catalogue, core.clock) if is_paper else FixedQuotes(core.clock)
    path = Path(settings.quotes.removeprefix("file:"))
    try:
        # A large file takes seconds to read, and the clock must be carried on meanwhile.
        return await asyncio.to_thread(RecordedQuotes, path, clock=core.clock, start=settings.quotes_start)
    except UnreadableRecord as error:
        raise SettingError(f"VENUE_QUOTES_{settings.name.upper()}", str(error)) from None


def _routed_to(venue: VenueName, core: Core) -> list[str]:
    return [symbol for symbol in core.settings.instruments if venue in core.router.route_for(symbol).venues]
