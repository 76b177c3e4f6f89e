"""The venues of the settings: adapters, capabilities, credentials, states, rates and quotes."""

import asyncio
import hashlib
import hmac
import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from switchyard.adapters.files.recorded_quotes import RecordedQuotes, UnreadableRecord
from switchyard.adapters.files.secrets import SecretFile, SecretFiles
from switchyard.adapters.memory.cache import MemoryBuckets
from switchyard.adapters.memory.venue import FixedQuotes, NullVenue
from switchyard.adapters.venues.http.adapter import HttpProtocol, final_codes
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.adapters.venues.paper.market import PaperQuotes, QuoteOf
from switchyard.bootstrap.capabilities import (
    declared_capabilities,
    descriptor_of,
    is_remote,
    reuses_connections,
    setting_of,
)
from switchyard.bootstrap.core import Core, Supervisor
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import IdForm, VenueName
from switchyard.domain.market.health import HealthRecord, SendState, VenueState
from switchyard.domain.orders.order import TakenOrders
from switchyard.flow.executions.strays import ProblemCode, VenueGate
from switchyard.flow.health.venues import HealthBoard
from switchyard.flow.quotes import PolledQuotes
from switchyard.flow.sending.dispatch import VenueRates
from switchyard.ports.cache import TokenBuckets
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import QuoteSource
from switchyard.ports.venue import HasClock, Venue
from switchyard.settings import VENUE_SETTINGS, Setting, Settings, VenueSettings, jwt_secret
from switchyard.settings.parse import parsed
from switchyard.telemetry.logs import mask_also
from switchyard.telemetry.metrics import Metrics
from switchyard.venue.bridge import SENDS, Bridge, VenueNames, Way
from switchyard.venue.credentials import Credential
from switchyard.venue.interface import Adapter, Descriptor, HasQuotes
from switchyard.venue.kinds import Configuration, address_of, check_parts, load_kind
from switchyard.venue.quotes import CONNECTIONS, VenueQuotes
from switchyard.venue.transport import Pool, Transport

if TYPE_CHECKING:
    from switchyard.adapters.redis.host import RedisHost


def open_credentials(core: Core, stack: AsyncExitStack) -> None:
    """Read the secrets of the venues outside of this process, and read them again when their files change."""
    for settings in core.settings.venues:
        if is_remote(settings):
            credential = credential_of(settings, core.clock)
            watch_secrets(settings, credential, core.metrics, core.supervisor, stack)
            core.credentials[settings.name] = credential


def credential_of(settings: VenueSettings, clock: Clock) -> Credential:
    """The venue's credential with the secrets of the settings; raises SettingError."""
    return Credential(settings.name, _secrets_of(settings), clock)


def watch_secrets(
    settings: VenueSettings, credential: Credential, metrics: Metrics, supervisor: Supervisor, stack: AsyncExitStack
) -> None:
    """Give the credential the secrets of its files whenever they change."""
    found = [file for each in VENUE_SETTINGS if (file := _secret_file(each, settings)) is not None]
    if not found:
        return

    def replace_secrets(secrets: Mapping[str, str]) -> None:
        mask_also(secrets.values())
        credential.replace(secrets)

    files = SecretFiles(
        found,
        credential.secrets,
        replace=replace_secrets,
        note_unreadable=metrics.secrets_unreadable.labels(settings.name).set,
    )
    supervisor.start(stack, f"secrets {settings.name}", files.run)


def _secret_file(setting: Setting, settings: VenueSettings) -> SecretFile | None:
    path = settings.files.get(setting.field)
    name = setting.name + settings.name.upper()
    if path is None or setting.field not in ("secrets", "token"):
        return None  # the credentials in a URL change with it, at a restart

    def secrets(text: str) -> Mapping[str, str]:
        value = parsed(setting, name, text)
        if setting.field == "token":
            return {TOKEN: value}
        return _checked_options(descriptor_of(settings), replace(settings, secrets=value))[1]

    return SecretFile(setting=name, path=path, parse=secrets)


async def open_venues(core: Core, stack: AsyncExitStack) -> None:
    """Open the configured venues and add them to `core.venues`; they are closed with the stack."""
    for settings in core.settings.venues:
        core.venues[settings.name] = core.wrappers.venue(await _open_venue(settings, core, stack))


async def _open_venue(settings: VenueSettings, core: Core, stack: AsyncExitStack) -> Venue:
    venue: PaperExchange | Bridge
    match settings.kind:
        case "null":
            return NullVenue(settings.name, clock=core.clock, fills=settings.url == "null:")
        case "paper":
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
                quote=_quotes_of(settings.quotes_of, core),
            )
        case _:
            note_unasked = core.metrics.unasked_responses.labels(settings.name).inc
            credential = core.credentials[settings.name]
            venue = remote_venue(settings, core.clock, note_unasked=note_unasked, credential=credential)
            if venue.capabilities.sessions == "exclusive":
                core.exclusive[settings.name] = venue
                stack.push_async_callback(venue.close)
                return venue  # started by the worker that holds its session
    await venue.start()
    stack.push_async_callback(venue.close)
    return venue


def _quotes_of(other: VenueName | None, core: Core) -> QuoteOf | None:
    """The quotes of another venue as the market of a paper exchange; none if they are stale."""
    return None if other is None else lambda symbol, _: core.quotes.quote(other, symbol)


def remote_venue(
    settings: VenueSettings,
    clock: Clock,
    *,
    sends: Pool = SENDS,
    note_unasked: Callable[[], None] = lambda: None,
    credential: Credential | None = None,
) -> Bridge:
    """A venue outside of this process; it is not started yet. `note_unasked` as in `Transport`."""
    descriptor, capabilities = descriptor_of(settings), declared_capabilities(settings)
    credential = credential or credential_of(settings, clock)
    return Bridge(
        settings.name,
        descriptor,
        _adapter(settings, credential),
        clock=clock,
        way=Way(
            address_of(settings.url) or descriptor.default_url,
            sends=replace(sends, reuses=reuses_connections(settings)),
            note_unasked=note_unasked,
        ),
        capabilities=capabilities,
        codes=final_codes(settings.final_errors) if descriptor.states_rules else {},
        names=names_at(settings),
        credential=credential,
    )


# The name of the HTTP protocol's only secret.
TOKEN = "token"


def _secrets_of(settings: VenueSettings) -> Mapping[str, str]:
    if settings.kind == "http":
        return {} if settings.token is None else {TOKEN: settings.token}
    return _checked_options(descriptor_of(settings), settings)[1]


def _adapter(settings: VenueSettings, credential: Credential) -> Adapter:
    if settings.kind == "http":
        return HttpProtocol(
            headers=lambda: credentials_of(settings, credential.secrets.get(TOKEN)),
            idempotency_header=settings.idempotency_header,
            has_lookup=settings.lookup != "none",
        )
    kind = load_kind(settings.kind, setting_of("URL", settings))
    if not address_of(settings.url) and not kind.descriptor.default_url:
        raise SettingError(
            setting_of("URL", settings), f"{settings.kind} needs an address: {settings.kind}:https://host"
        )
    options, _ = _checked_options(kind.descriptor, settings)
    adapter = kind.build(
        Configuration(
            venue=settings.name,
            url=address_of(settings.url) or kind.descriptor.default_url,
            capabilities=declared_capabilities(settings),
            options=options,
            secret=credential.secret,
        )
    )
    check_parts(kind.descriptor, type(adapter), setting_of("URL", settings))
    return adapter


def _checked_options(descriptor: Descriptor, settings: VenueSettings) -> tuple[dict[str, str], dict[str, str]]:
    """The options and the secrets that the descriptor names; raises SettingError."""
    taken: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for is_secret, setting, given in (
        (False, setting_of("OPTIONS", settings), settings.options),
        (True, setting_of("SECRETS", settings), settings.secrets),
    ):
        known = {option.name: option for option in descriptor.options if option.is_secret == is_secret}
        for name in given:
            if name not in known:
                allowed = ", ".join(sorted(known)) or "none"
                # Part of a secret with a comma would look like a name.
                shown = "a name in it" if is_secret else repr(name)
                raise SettingError(setting, f"{shown} is not taken by {descriptor.kind}; allowed: {allowed}")
        for name, option in known.items():
            value = given.get(name, option.default)
            if option.is_required and not value:
                raise SettingError(setting, f"{descriptor.kind} needs {name}: {option.text}")
            if option.choices and value not in option.choices:
                shown = "" if is_secret else f", not {value!r}"
                raise SettingError(setting, f"{name} must be one of {', '.join(option.choices)}{shown}")
            taken[is_secret][name] = value
    return taken


def paper_path(settings: Settings, venue: VenueName) -> Path:
    """The file of a paper exchange."""
    return settings.data_dir / "venues" / f"{venue}.db"


def clock_offset_of(venue: Venue) -> timedelta | None:
    """How far the venue's clock is ahead of ours; None if its answers do not show it, or not yet."""
    return venue.clock_offset if isinstance(venue, HasClock) else None


def names_at(settings: VenueSettings) -> VenueNames:
    """The venue's names of our accounts and symbols."""
    return VenueNames(settings.accounts, settings.symbols)


def credentials_of(settings: VenueSettings, token: str | None) -> dict[str, str]:
    """The header with the broker's token; under `Authorization` it is a bearer token.

    A user and a password in the URL are sent as HTTP Basic authentication.
    """
    parts = urlsplit(settings.url)
    headers = {}
    if "@" in parts.netloc:
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        basic = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
        headers["Authorization"] = f"Basic {basic}"
    if token is not None:
        header = settings.token_header
        headers[header] = f"Bearer {token}" if header.lower() == "authorization" else str(token)
    return headers


def taken_orders(settings: Settings) -> dict[VenueName, TakenOrders]:
    """Which orders each venue takes."""
    return {venue.name: declared_capabilities(venue) for venue in settings.venues}


def venue_id_forms(settings: Settings) -> dict[VenueName, IdForm]:
    """The form of client order ids of each venue."""
    return {venue.name: descriptor_of(venue).id_form for venue in settings.venues}


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
    state, code, text = _send_state(gate, record, health.pause_of(settings.name))
    latency = None if record is None else record.latency_seconds
    rate = None if record is None else record.reject_rate
    return VenueState(
        venue=settings.name,
        kind=settings.kind,
        state=state,
        reason=text if detailed else code,
        breaker=None if record is None else record.breaker,
        faults=None if record is None else record.faults,
        rate_per_sec=settings.rate_per_sec,
        burst=None if settings.rate_per_sec is None else burst_of(settings),
        latency_ms=None if latency is None else round(latency * 1000, 1),
        reject_rate=None if rate is None else round(rate, 3),
        cancel_all_after_sec=settings.cancel_all_after,
        cancel_all_after=None if record is None else record.switch,
        session=None if record is None else record.session,
    )


def _send_state(
    gate: VenueGate | None, record: HealthRecord | None, pause: str | None
) -> tuple[SendState, VenueCode | None, str | None]:
    """Return the state with its reason, as a code and as a text that may quote a library's error."""
    if pause is not None and (gate is None or not gate.is_locked):
        return "closed", "CREDENTIAL_PAUSED", pause
    if record is None:
        return "unknown", "NOT_REPORTED", "no worker has reported on it lately"
    problem = None if gate is None else gate.problem
    if gate is not None and not gate.is_open:
        if gate.stands_by:
            return "closed", "NOT_SYNCHRONISED", "another worker holds its session"
        if problem is None:
            return "closed", "NOT_SYNCHRONISED", "its orders and reports are being read"
        return "closed", problem.code, problem.reason
    if record.reason is not None:
        return "held", "BREAKER_OPEN", record.reason
    return ("open", None, None) if problem is None else ("open", problem.code, problem.reason)


# How long a gateway waits at its start for the first answer of its brokers, so that its first orders find a quote.
FIRST_POLL_SECONDS = 1.0


async def open_quotes(core: Core, stack: AsyncExitStack, *, polls_catalogue: bool) -> None:
    """Add the quotes of every venue to `core.quotes`; polling stops with the stack.

    With `polls_catalogue` a broker is asked all the time for the symbols that are routed to it; otherwise only for
    those that were asked for lately.
    """
    polled: list[PolledQuotes] = []
    for settings in core.settings.venues:
        if settings.quotes_of is not None:
            continue
        if settings.quotes == "venue" and is_remote(settings):
            adapter = _adapter(settings, core.credentials[settings.name])
            if not isinstance(adapter, HasQuotes):
                continue  # a venue without quotes has none
            source = await _open_polled(settings, adapter, core, stack, polls_catalogue=polls_catalogue)
            polled.append(source)
            core.quotes.add(settings.name, source)
        elif settings.quotes != "none":
            core.quotes.add(settings.name, await _open_local(settings, core))
    for settings in core.settings.venues:
        if settings.quotes_of is not None and not core.quotes.share(settings.quotes_of, settings.name):
            raise SettingError(setting_of("QUOTES", settings), f"the adapter of {settings.quotes_of} has no quotes")
    if polls_catalogue and polled:
        first_polls = [asyncio.create_task(source.started()) for source in polled]
        _, late = await asyncio.wait(first_polls, timeout=FIRST_POLL_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


async def _open_polled(
    settings: VenueSettings, adapter: HasQuotes, core: Core, stack: AsyncExitStack, *, polls_catalogue: bool
) -> PolledQuotes:
    descriptor = descriptor_of(settings)
    feed = VenueQuotes(
        settings.name,
        adapter,
        transport=Transport(
            address_of(settings.url) or descriptor.default_url,
            CONNECTIONS,
            note_unasked=core.metrics.unasked_responses.labels(settings.name).inc,
        ),
        clock=core.clock,
        names=names_at(settings),
        time_header=descriptor.time_header,
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
        is_paper = settings.kind == "paper"
        return PaperQuotes(core.catalogue, core.clock) if is_paper else FixedQuotes(core.clock)
    path = Path(settings.quotes.removeprefix("file:"))
    try:
        # A large file takes seconds to read, and the clock must be carried on meanwhile.
        return await asyncio.to_thread(RecordedQuotes, path, clock=core.clock, start=settings.quotes_start)
    except UnreadableRecord as error:
        raise SettingError(f"VENUE_QUOTES_{settings.name.upper()}", str(error)) from None


def _routed_to(venue: VenueName, core: Core) -> list[str]:
    """The symbols of the catalogue that are routed to the venue, or to one that takes its quotes."""
    takers = {venue, *(each.name for each in core.settings.venues if each.quotes_of == venue)}
    return [symbol for symbol in core.settings.instruments if not takers.isdisjoint(core.router.venues_of(symbol))]
