"""mypy checks that each adapter satisfies its port; the test checks that no port is missing."""

import importlib
import pkgutil
import sys
from types import ModuleType
from typing import get_args, get_type_hints

import pytest

from switchyard import ports
from switchyard.adapters.airflow.runner import AirflowRunner
from switchyard.adapters.backoffice.postgres.breaks import PostgresBreaks
from switchyard.adapters.backoffice.postgres.ledger import PostgresLedger, PostgresReaderLock
from switchyard.adapters.backoffice.reads import SqlLedgerDump, SqlLedgerLookup, SqlLedgerReports
from switchyard.adapters.backoffice.sqlite.breaks import SqliteBreaks
from switchyard.adapters.backoffice.sqlite.ledger import SqliteLedger
from switchyard.adapters.files.audit_file import LocalAuditFile
from switchyard.adapters.files.durable import LocalDisks
from switchyard.adapters.files.head_file import LocalHeadFile
from switchyard.adapters.files.recorded_quotes import RecordedQuotes
from switchyard.adapters.kafka.bus import KafkaBus
from switchyard.adapters.kafka.messages import PartitionSource
from switchyard.adapters.kafka.publisher import KafkaPublisher
from switchyard.adapters.memory.cache import MemoryBuckets, MemoryCache, MemoryRate
from switchyard.adapters.memory.venue import FixedQuotes, NullVenue
from switchyard.adapters.otlp.tracer import OtlpSpan, OtlpTracer
from switchyard.adapters.pdca.queue import SqlQueue
from switchyard.adapters.pdca.requests import SqlRequests
from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.adapters.pdca.strategies import SqlStrategies
from switchyard.adapters.postgres.database import PostgresDatabase
from switchyard.adapters.postgres.liveness import PostgresVenueSessions
from switchyard.adapters.postgres.migrations import PostgresRebuild
from switchyard.adapters.postgres.queries import (
    PostgresOrderDump,
    PostgresOutboxListing,
    PostgresTime,
)
from switchyard.adapters.queries import SqlStrategyOrders
from switchyard.adapters.redis.cache import RedisCache
from switchyard.adapters.redis.installation import RedisHead, RedisLease
from switchyard.adapters.redis.limits import RedisBuckets, RedisRate
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.sqlite.journal import SqliteTime
from switchyard.adapters.sqlite.liveness import SqliteVenueSessions
from switchyard.adapters.sqlite.migrations import SqliteRebuild
from switchyard.adapters.sqlite.queries import SqliteOrderDump, SqliteOutboxListing
from switchyard.adapters.system_clock import SystemClock, SystemRandomness
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.adapters.venues.paper.market import PaperQuotes
from switchyard.adapters.venues.paper.store import PaperStatement
from switchyard.bootstrap.databases import Database
from switchyard.entrypoints.control.office import ParentLink
from switchyard.flow.backoffice.source import JournalBus, JournalSource
from switchyard.flow.pdca.recheck import LedgerFills, NoBooks
from switchyard.flow.pdca.worker import EmbeddedRunner
from switchyard.flow.quotes import PolledQuotes, QuoteBoard
from switchyard.ports.books import (
    BreakStore,
    Ledger,
    LedgerDump,
    LedgerLookup,
    LedgerReports,
    ManualLedger,
    RebuildTarget,
)
from switchyard.ports.bus import Bus, Publisher, RelayLeases, Source
from switchyard.ports.cache import Cache, CacheWatch, SharedRate, TokenBuckets
from switchyard.ports.clock import Clock, Randomness
from switchyard.ports.files import AuditFile, Disks
from switchyard.ports.journal import DatabaseTime, Epochs, HeadFile, Journal, Lease, Liveness, ReaderLock
from switchyard.ports.outbox import Lanes, OutboxListing, OutboxQueries, VenueSessions
from switchyard.ports.queries import Accounts, Exposures, KeyStore, Kills, OrderDump, Queries, Reservations
from switchyard.ports.quotes import QuoteFeed, QuoteLookup, Quotes, QuoteSource
from switchyard.ports.strategies import (
    PdcaStore,
    RecheckQueue,
    RecheckRequests,
    Runner,
    StrategyFills,
    StrategyOrders,
    StrategyRegistry,
)
from switchyard.ports.tracing import Span, Tracer
from switchyard.ports.venue import CancelAllAfter, HasClock, MassCancel, ProvesUnreceived, Venue, VenueStatement
from switchyard.telemetry.metrics import CacheMetrics
from switchyard.venue.bridge import Bridge
from switchyard.venue.quotes import VenueQuotes
from tests.support.memory.accounts import MemoryAccounts
from tests.support.memory.clock import ManualClock, SeededRandomness
from tests.support.memory.database import MemoryDatabase
from tests.support.memory.database_time import MemoryTime
from tests.support.memory.journal import MemoryJournal
from tests.support.memory.keys import MemoryKeyStore
from tests.support.memory.kills import MemoryKills
from tests.support.memory.lanes import MemoryLanes
from tests.support.memory.liveness import MemoryLiveness
from tests.support.memory.queries import MemoryQueries
from tests.support.memory.rebuild import MemoryOrderDump, MemoryRebuild
from tests.support.memory.relay_leases import MemoryRelayLeases
from tests.support.memory.strategy_orders import MemoryStrategyOrders

# A database brings the SQL engines' journal, queries, key store, liveness, lanes and kills with it.
databases: list[type[Database]] = [MemoryDatabase, SqliteDatabase, PostgresDatabase]
journals: list[type[Journal]] = [MemoryJournal]
epochs: list[type[Epochs]] = [MemoryJournal]
exposures: list[type[Exposures]] = [MemoryJournal]
reservations: list[type[Reservations]] = [MemoryJournal]
queries: list[type[Queries]] = [MemoryQueries]
outbox_queries: list[type[OutboxQueries]] = [MemoryQueries]
outbox_listings: list[type[OutboxListing]] = [MemoryQueries, SqliteOutboxListing, PostgresOutboxListing]
key_stores: list[type[KeyStore]] = [MemoryKeyStore]
database_times: list[type[DatabaseTime]] = [MemoryTime, SqliteTime, PostgresTime]
livenesses: list[type[Liveness]] = [MemoryLiveness]
spans: list[type[Span]] = [OtlpSpan]
tracers: list[type[Tracer]] = [OtlpTracer]
lanes: list[type[Lanes]] = [MemoryLanes]
venue_sessions: list[type[VenueSessions]] = [SqliteVenueSessions, PostgresVenueSessions]
relay_leases: list[type[RelayLeases]] = [MemoryRelayLeases]
publishers: list[type[Publisher]] = [KafkaPublisher]
kills: list[type[Kills]] = [MemoryKills]
accounts: list[type[Accounts]] = [MemoryAccounts]
mass_cancels: list[type[MassCancel]] = [Bridge]
switches: list[type[CancelAllAfter]] = [Bridge]
venue_clocks: list[type[HasClock]] = [Bridge]
proving_venues: list[type[ProvesUnreceived]] = [Bridge]
token_buckets: list[type[TokenBuckets]] = [MemoryBuckets, RedisBuckets]
rebuild_targets: list[type[RebuildTarget]] = [MemoryRebuild, SqliteRebuild, PostgresRebuild]
order_dumps: list[type[OrderDump]] = [MemoryOrderDump, SqliteOrderDump, PostgresOrderDump]
caches: list[type[Cache]] = [MemoryCache, RedisCache]
cache_watches: list[type[CacheWatch]] = [CacheMetrics]
rates: list[type[SharedRate]] = [MemoryRate, RedisRate]
clocks: list[type[Clock]] = [ManualClock, SystemClock]
randomnesses: list[type[Randomness]] = [SeededRandomness, SystemRandomness]
venues: list[type[Venue]] = [NullVenue, PaperExchange, Bridge]
quotes: list[type[Quotes]] = [QuoteBoard]
quote_lookups: list[type[QuoteLookup]] = [ParentLink]
quote_sources: list[type[QuoteSource]] = [FixedQuotes, PaperQuotes, PolledQuotes, RecordedQuotes]
quote_feeds: list[type[QuoteFeed]] = [VenueQuotes]
buses: list[type[Bus]] = [JournalBus, KafkaBus]
disks: list[type[Disks]] = [LocalDisks]
sources: list[type[Source]] = [JournalSource, PartitionSource]
ledgers: list[type[Ledger]] = [SqliteLedger, PostgresLedger]
ledger_dumps: list[type[LedgerDump]] = [SqlLedgerDump]
ledger_reports: list[type[LedgerReports]] = [SqlLedgerReports]
manual_ledgers: list[type[ManualLedger]] = [SqliteLedger, PostgresLedger]
reader_locks: list[type[ReaderLock]] = [PostgresReaderLock]
runners: list[type[Runner]] = [EmbeddedRunner, AirflowRunner]
strategy_orders: list[type[StrategyOrders]] = [MemoryStrategyOrders, SqlStrategyOrders]
strategy_fills: list[type[StrategyFills]] = [LedgerFills, NoBooks]
ledger_lookups: list[type[LedgerLookup]] = [SqlLedgerLookup]
break_stores: list[type[BreakStore]] = [SqliteBreaks, PostgresBreaks]
statements: list[type[VenueStatement]] = [PaperStatement, Bridge]
strategy_registries: list[type[StrategyRegistry]] = [SqlStrategies]
recheck_requests: list[type[RecheckRequests]] = [SqlRequests]
recheck_queues: list[type[RecheckQueue]] = [SqlQueue]
pdca_stores: list[type[PdcaStore]] = [SqlPdcaStore]
audit_files: list[type[AuditFile]] = [LocalAuditFile]
head_files: list[type[HeadFile]] = [LocalHeadFile, RedisHead]
leases: list[type[Lease]] = [RedisLease]


def port_modules() -> list[ModuleType]:
    return [importlib.import_module(f"{ports.__name__}.{found.name}") for found in pkgutil.iter_modules(ports.__path__)]


def protocols_of(module: ModuleType) -> list[type]:
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    return [value for value in own if getattr(value, "_is_protocol", False)]


@pytest.mark.parametrize("module", port_modules(), ids=lambda module: module.__name__)
def test_a_port_module_has_ports_and_each_has_an_adapter(module: ModuleType) -> None:
    adapted = {get_args(get_args(hint)[0])[0] for hint in get_type_hints(sys.modules[__name__]).values()}
    own = set(protocols_of(module))
    assert own
    assert own <= adapted
