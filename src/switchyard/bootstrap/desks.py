"""The ways in for orders, put together over one key store."""

from switchyard.bootstrap.caches import Caches
from switchyard.bootstrap.databases import Database
from switchyard.domain.instruments import Catalogue
from switchyard.domain.routing import Router
from switchyard.flow.intake.derived import DerivedDesk
from switchyard.flow.intake.do_orders import DoDesk
from switchyard.flow.intake.duplicates import DuplicateRate, DuplicateWatch
from switchyard.flow.intake.key_cache import KeyCache
from switchyard.flow.intake.orders import OrderDesk
from switchyard.flow.intake.placing import OrderWriter
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.risk.constraints import Constraints
from switchyard.flow.routing.forecast import Forecast
from switchyard.flow.routing.route import Routes
from switchyard.flow.sequencer import Sequencer
from switchyard.ports.clock import Clock
from switchyard.ports.quotes import Quotes
from switchyard.ports.randomness import Randomness
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics


class Desks:
    """Where requests become orders."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        caches: Caches,
        sequencer: Sequencer,
        hub: StreamHub,
        catalogue: Catalogue,
        quotes: Quotes,
        clock: Clock,
        randomness: Randomness,
        metrics: Metrics,
    ) -> None:
        self.forecast = Forecast(database.queries, settings.venue_names, clock)
        placing = OrderWriter(
            journal=database.journal,
            keys=database.keys,
            commit=sequencer.offer,
            clock=clock,
            randomness=randomness,
        )
        routes = Routes(Router(settings.default_venue, settings.symbol_routes), quotes, self.forecast)
        remembered = KeyCache(caches.cache, caches.ttl)
        watched = settings.idempotency.monitoring
        duplicates = DuplicateWatch(
            metrics,
            rate=DuplicateRate(watched.duplicate_rate_threshold, clock)
            if watched.alert_on_high_duplicate_rate
            else None,
            logs=settings.idempotency.behavior.log_duplicates,
        )
        self.orders = OrderDesk(
            journal=database.journal,
            commit=sequencer.offer,
            clock=clock,
            placing=placing,
            catalogue=catalogue,
            routes=routes,
            remembered=remembered,
            duplicates=duplicates,
            key_ttl=settings.idempotency_ttl,
        )
        self.derived = DerivedDesk(
            settings.idempotency,
            placing=placing,
            queries=database.queries,
            keys=database.keys,
            catalogue=catalogue,
            routes=routes,
            remembered=remembered,
            duplicates=duplicates,
            clock=clock,
            metrics=metrics,
        )
        self.do_orders = DoDesk(
            journal=database.journal,
            commit=sequencer.offer,
            queries=database.queries,
            keys=database.keys,
            placing=placing,
            catalogue=catalogue,
            routes=routes,
            constraints=Constraints(database.queries, quotes, settings.do_risk_capital),
            remembered=remembered,
            duplicates=duplicates,
            hub=hub,
            clock=clock,
            metrics=metrics,
            key_ttl=settings.do_key_ttl,
        )
