"""The parts of a gateway: idempotency caches, rates, and the services behind its routes."""

import hashlib
import hmac
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

from switchyard.adapters.memory.cache import MemoryBuckets, MemoryCache, MemoryRate
from switchyard.bootstrap.capabilities import declared_capabilities
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.databases import Database
from switchyard.bootstrap.venues import taken_orders
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.keys import DERIVED_CLOSE, DERIVED_ORDER
from switchyard.domain.risk.checks import RiskLimits, checks_of
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.health.venues import VenueChoice
from switchyard.flow.history.restore import incarnation_of, restored_at
from switchyard.flow.intake.amends import AmendService
from switchyard.flow.intake.derived import DerivedOrderService, Reaper
from switchyard.flow.intake.do_orders import BrokerOutcome, DoOrderService
from switchyard.flow.intake.order_intake import DuplicateRate, DuplicateWatch, KeyCache, OrderIntake
from switchyard.flow.intake.orders import CancelAllService, CloseService, OrderService
from switchyard.flow.lost_history import LostHistory
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.risk.contents import RecentContents, RepeatedExecutions
from switchyard.flow.risk.limit_claims import LimitClaims
from switchyard.flow.risk.pre_trade import Constraints, OrderRate, PreTradeRisk
from switchyard.flow.routing.window import AdmissionWindow
from switchyard.flow.traced import TracedCommit
from switchyard.ports.cache import Cache, SharedRate, TokenBuckets
from switchyard.ports.clock import Clock, Randomness
from switchyard.ports.quotes import Quotes
from switchyard.settings import Settings, jwt_secret
from switchyard.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from switchyard.adapters.redis.host import RedisHost


RATE_WINDOW = timedelta(minutes=1)


# Each has its last requests in memory, up to 600: fewer clients than of `/do/order`, all with a token.
PDCA_CLIENTS_MAX = 1_000
# No order waits for the PDCA API: it can wait longer for a shared count than order entry.
PDCA_RATE_SECONDS = 0.1
PdcaRateName = Literal["read", "recheck", "recheck_all"]
PdcaLimits = dict[PdcaRateName, tuple[int, SharedRate]]


class Caches:
    """The cache and the rate limits of one process."""

    pdca_rates: PdcaLimits
    """Of the PDCA API, by client: the limits and their counters."""

    def __init__(self, cache: Cache | None, rate: SharedRate, ttl: timedelta, order_rate: TokenBuckets | None) -> None:
        self.cache = cache
        """None where the settings disable it."""
        self.rate = rate
        """Of `/do/order`, by client."""
        self.ttl = ttl
        self.order_rate = order_rate
        """Of new orders, by account; none without a limit."""


def open_caches(settings: Settings, incarnation: str, clock: Clock, metrics: Metrics, stack: AsyncExitStack) -> Caches:
    """Open the caches and rate limits that the settings ask for; the stack closes them."""
    caches = _open_caches(settings, incarnation, clock, metrics, stack)
    caches.pdca_rates = _open_pdca_rates(settings, incarnation, clock, metrics, stack)
    return caches


def _open_caches(settings: Settings, incarnation: str, clock: Clock, metrics: Metrics, stack: AsyncExitStack) -> Caches:
    """Open the cache and the rates of orders.

    Entries on Redis are sealed with the database's incarnation, which changes when a backup is restored: an entry
    from before may name an order that the restored database does not have, so it must be a miss.
    """
    idempotency = settings.idempotency
    metrics.cache.tracks_hits = idempotency.monitoring.track_cache_hit_rate
    rate: SharedRate = MemoryRate(settings.do_rate_per_minute, RATE_WINDOW, clock=clock)
    own = _own_buckets(settings.risk, clock)
    if idempotency.cache.redis_url is None:
        cache: Cache = MemoryCache(clock=clock, cleanup_every=idempotency.cache.cleanup_interval, watch=metrics.cache)
        return Caches(cache if _is_enabled(settings) else None, rate, idempotency.cache.ttl, own)
    from switchyard.adapters.redis.cache import RedisCache
    from switchyard.adapters.redis.host import RedisHost
    from switchyard.adapters.redis.limits import RedisRate

    key = hmac.digest(jwt_secret(settings).encode(), f"idempotency cache, {incarnation}".encode(), hashlib.sha256)
    host = RedisHost(idempotency.cache.redis_url, clock=clock, on_change=metrics.redis_up.set)
    shared = RedisRate(settings.do_rate_per_minute, RATE_WINDOW, host=host, key=key, without_server=rate)
    stack.push_async_callback(shared.close)
    buckets = _shared_buckets(settings.risk, host, key, own, stack)
    if not _is_enabled(settings):
        return Caches(None, shared, idempotency.cache.redis_ttl, buckets)
    cache = RedisCache(host, key=key, clock=clock, watch=metrics.cache)
    stack.push_async_callback(cache.close)
    return Caches(cache, shared, idempotency.cache.redis_ttl, buckets)


def _open_pdca_rates(
    settings: Settings, incarnation: str, clock: Clock, metrics: Metrics, stack: AsyncExitStack
) -> PdcaLimits:
    api = settings.pdca_api
    limits: dict[PdcaRateName, int] = {
        "read": api.read_rate,
        "recheck": api.recheck_rate,
        "recheck_all": api.recheck_all_rate,
    }
    redis_url = settings.idempotency.cache.redis_url
    own = {
        name: MemoryRate(limit, RATE_WINDOW, clock=clock, clients_max=PDCA_CLIENTS_MAX)
        for name, limit in limits.items()
    }
    if redis_url is None:
        return {name: (limits[name], rate) for name, rate in own.items()}
    from switchyard.adapters.redis.host import RedisHost
    from switchyard.adapters.redis.limits import RedisRate

    host = RedisHost(redis_url, clock=clock, read_seconds=PDCA_RATE_SECONDS, on_change=metrics.redis_up.set)
    key = hmac.digest(jwt_secret(settings).encode(), f"pdca rates, {incarnation}".encode(), hashlib.sha256)
    rates: PdcaLimits = {}
    for name, limit in limits.items():
        shared = RedisRate(limit, RATE_WINDOW, host=host, key=key, without_server=own[name])
        stack.push_async_callback(shared.close)
        rates[name] = limit, shared
    return rates


def _own_buckets(risk: RiskLimits, clock: Clock) -> MemoryBuckets | None:
    return None if risk.rate_per_sec is None else MemoryBuckets(risk.rate_per_sec, risk.burst, clock=clock)


def _shared_buckets(
    risk: RiskLimits, host: "RedisHost", key: bytes, own: MemoryBuckets | None, stack: AsyncExitStack
) -> TokenBuckets | None:
    if risk.rate_per_sec is None or own is None:
        return None
    from switchyard.adapters.redis.limits import RedisBuckets

    buckets = RedisBuckets(risk.rate_per_sec, risk.burst, host=host, key=key, without_server=own)
    stack.push_async_callback(buckets.close)
    return buckets


def _is_enabled(settings: Settings) -> bool:
    return settings.idempotency.enabled and settings.idempotency.behavior.return_cached_result


class Services:
    """The services of one process."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        caches: Caches,
        commit: Commit,
        hub: StreamHub,
        catalogue: Catalogue,
        quotes: Quotes,
        clock: Clock,
        randomness: Randomness,
        tag: str,
        restored_at: datetime | None,
        metrics: Metrics,
        window: AdmissionWindow,
        kills: ActiveKills,
        choice: VenueChoice,
    ) -> None:
        journal, queries, keys = database.journal, database.queries, database.keys
        capabilities = {venue.name: declared_capabilities(venue) for venue in settings.venues}
        key_ttl = max(settings.idempotency_ttl, settings.do_key_ttl)
        may_be_lost = LostHistory(restored_at, key_ttl, capabilities, clock).may_have_sent
        key_cache = KeyCache(caches.cache, caches.ttl, journal)
        self.limits = LimitClaims(settings.risk.stateful, database.journal)
        risk = PreTradeRisk(checks_of(settings.risk, taken_orders(settings)), metrics)
        rate = OrderRate(caches.order_rate)
        duplicates = _duplicate_watch(settings, clock, metrics)
        intake = OrderIntake(
            catalogue=catalogue,
            choice=choice,
            quotes=quotes,
            window=window,
            kills=kills,
            journal=journal,
            limits=self.limits,
            risk=risk,
            rate=rate,
            contents=RecentContents(settings.risk.duplicate_window, keys=keys, commit=commit, clock=clock),
            keys=keys,
            key_cache=key_cache,
            duplicates=duplicates,
            offer=commit,
            clock=clock,
            randomness=randomness,
            tag=tag,
        )
        self.orders = OrderService(
            intake=intake,
            journal=journal,
            commit=commit,
            clock=clock,
            key_cache=key_cache,
            key_ttl=settings.idempotency_ttl,
            may_be_lost=may_be_lost,
        )
        self.derived = DerivedOrderService(
            settings.idempotency,
            intake=intake,
            journal=journal,
            queries=queries,
            keys=keys,
            key_cache=key_cache,
            clock=clock,
            metrics=metrics,
            restored_at=restored_at,
        )
        self.amends = AmendService(
            catalogue=catalogue,
            quotes=quotes,
            risk=risk,
            limits=self.limits,
            rate=rate,
            journal=journal,
            keys=keys,
            commit=commit,
            clock=clock,
            duplicates=duplicates,
            capabilities=capabilities,
            tag=tag,
            key_ttl=settings.idempotency_ttl,
            resolution=timedelta(milliseconds=settings.idempotency.key_generation.timestamp_resolution_ms),
            id_form=choice.id_form,
            may_be_lost=may_be_lost,
        )
        self.closing = CloseService(
            intake=intake,
            orders=self.orders,
            derived=self.derived,
            clock=clock,
            key_ttl=settings.idempotency_ttl,
        )
        self.accounts = database.accounts
        self.cancel_all = CancelAllService(
            accounts=database.accounts,
            journal=journal,
            keys=keys,
            commit=commit,
            clock=clock,
            venues=settings.venue_names,
            key_ttl=settings.idempotency_ttl,
            may_be_lost=may_be_lost,
        )
        self.do_orders = DoOrderService(
            intake=intake,
            outcome=BrokerOutcome(
                journal=journal,
                commit=commit,
                queries=queries,
                hub=hub,
                clock=clock,
                key_ttl=settings.do_key_ttl,
                restored_at=restored_at,
            ),
            constraints=Constraints(journal, quotes, settings.do_risk_capital),
            catalogue=catalogue,
            queries=queries,
            key_cache=key_cache,
            clock=clock,
            metrics=metrics,
            key_ttl=settings.do_key_ttl,
            restored_at=restored_at,
        )


def _duplicate_watch(settings: Settings, clock: Clock, metrics: Metrics) -> DuplicateWatch:
    monitoring = settings.idempotency.monitoring
    rate = DuplicateRate(monitoring.duplicate_rate_threshold, clock)
    return DuplicateWatch(
        metrics,
        rate=rate if monitoring.alert_on_high_duplicate_rate else None,
        logs=settings.idempotency.behavior.log_duplicates,
    )


async def start_gateway(core: Core, hub: StreamHub, stack: AsyncExitStack) -> tuple[Services, Caches]:
    """Build the services that accept requests and start the stages that they rely on."""
    incarnation = await incarnation_of(core.database.journal)
    caches = open_caches(core.settings, incarnation, core.clock, core.metrics, stack)
    offer = core.sequencer.offer
    commit: Commit = offer if core.tracer is None else TracedCommit(offer, core.tracer)
    services = Services(
        core.settings,
        core.database,
        caches=caches,
        commit=commit,
        hub=hub,
        catalogue=core.catalogue,
        quotes=core.quotes,
        clock=core.clock,
        randomness=core.randomness,
        tag=core.installation.tag,
        restored_at=await restored_at(core.database.journal),
        metrics=core.metrics,
        window=core.window,
        kills=core.kills,
        choice=core.choice,
    )
    core.supervisor.start(stack, "forecast", core.forecast.run)
    core.supervisor.start(stack, "admission", core.window.run)
    _start_throttle(core, stack)
    reuses = core.settings.idempotency.behavior.allow_retry_after_expiry
    reaper = Reaper(core.database.keys, core.clock, core.metrics, kept=() if reuses else (DERIVED_ORDER, DERIVED_CLOSE))
    core.supervisor.start(stack, "reap", reaper.run)
    if caches.cache is not None:
        core.supervisor.start(stack, "cache", caches.cache.run)
    return services, caches


def _start_throttle(core: Core, stack: AsyncExitStack) -> None:
    """Suspend strategies that are filled too often, where the settings say what is too often."""
    risk = core.settings.risk
    if risk.strategy_fills_max is None:
        return
    repeated = RepeatedExecutions(
        journal=core.database.journal,
        queries=core.database.queries,
        fills_max=risk.strategy_fills_max,
        window=risk.strategy_fills_window,
        suspend=core.suspend_strategy,
    )
    core.supervisor.start(stack, "repeated executions", lambda: repeated.run(core.wakes.fills))
