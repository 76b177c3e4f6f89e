"""The desks of a gateway over any database, with a sequencer of their own; nothing is sent."""

from typing import cast

from switchyard.adapters.memory.cache import MemoryRate
from switchyard.adapters.system_clock import SystemRandomness
from switchyard.bootstrap import Services
from switchyard.bootstrap.gateway import RATE_WINDOW, Caches
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Router
from switchyard.flow.active_kills import ActiveKills
from switchyard.flow.commit.sequencer import Sequencer
from switchyard.flow.health.venues import HealthBoard, VenueChoice
from switchyard.flow.quotes import QuoteBoard
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.routing.window import AdmissionWindow, Forecast
from switchyard.settings import load_settings
from switchyard.telemetry.metrics import Metrics
from tests.support.databases import Database
from tests.support.memory.clock import ManualClock
from tests.support.process import SECRET
from tests.support.sequencing import running_sequencer


class GatewayServices:
    """One gateway of possibly several on a database."""

    def __init__(self, database: Database, clock: ManualClock, **environment: str) -> None:
        settings = load_settings({"JWT_HS256_SECRET": SECRET, **environment})
        metrics = Metrics()
        self.sequencer: Sequencer = running_sequencer(database.journal, clock, metrics)
        venues = settings.venue_names
        forecast = Forecast(database.queries, venues, clock)
        catalogue = Catalogue(settings.instruments)
        quotes = QuoteBoard(clock, metrics, age_max=settings.quote_age_max)
        router = Router(settings.default_route, settings.symbol_routes)
        self.services = Services(
            settings,
            database,
            caches=Caches(None, MemoryRate(60, RATE_WINDOW, clock=clock), RATE_WINDOW, None),
            commit=self.sequencer.offer,
            hub=cast(StreamHub, None),  # only `/do/order` waits for results
            catalogue=catalogue,
            quotes=quotes,
            clock=clock,
            randomness=SystemRandomness(),
            tag="test",
            restored_at=None,
            metrics=metrics,
            window=AdmissionWindow(forecast, venues, clock, metrics),
            kills=ActiveKills(database.kills, metrics),
            choice=VenueChoice(router, quotes, catalogue=catalogue, health=HealthBoard(), fees_percent={}, taken={}),
        )
