"""Build the services of a gateway: `/orders`, derived keys and `/do/order` over one `OrderIntake`."""

from datetime import datetime, timedelta

from switchyard.bootstrap.caches import Caches
from switchyard.bootstrap.databases import Database
from switchyard.bootstrap.venues import declared_capabilities, venue_kinds
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.risk.checks import checks_of
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.commit.sequencer import Commit
from switchyard.flow.health.venues import VenueChoice
from switchyard.flow.intake.amends import AmendService
from switchyard.flow.intake.derived import DerivedOrderService
from switchyard.flow.intake.do_orders import BrokerOutcome, DoOrderService
from switchyard.flow.intake.order_intake import DuplicateRate, DuplicateWatch, KeyCache, OrderIntake
from switchyard.flow.intake.orders import CancelAllService, CloseService, OrderService
from switchyard.flow.lost_history import LostHistory
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.risk.contents import RecentContents
from switchyard.flow.risk.limit_claims import LimitClaims
from switchyard.flow.risk.pre_trade import Constraints, OrderRate, PreTradeRisk
from switchyard.flow.routing.window import AdmissionWindow
from switchyard.ports.clock import Clock, Randomness
from switchyard.ports.quotes import Quotes
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics


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
        key_cache = KeyCache(caches.cache, caches.ttl)
        self.limits = LimitClaims(settings.risk.stateful, database.journal)
        risk = PreTradeRisk(checks_of(settings.risk, venue_kinds(settings)), metrics)
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
