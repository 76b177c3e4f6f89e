"""All database ports over one in-memory journal, for tests and examples that run the flow without a database."""

from collections.abc import Callable

from switchyard.adapters.sqlite.liveness import SqliteVenueSessions
from switchyard.ports.clock import Clock
from tests.support.memory.accounts import MemoryAccounts
from tests.support.memory.database_time import MemoryTime
from tests.support.memory.journal import MemoryJournal
from tests.support.memory.keys import MemoryKeyStore
from tests.support.memory.kills import MemoryKills
from tests.support.memory.lanes import MemoryLanes
from tests.support.memory.liveness import MemoryLiveness
from tests.support.memory.queries import MemoryQueries
from tests.support.memory.relay_leases import MemoryRelayLeases
from tests.support.memory.strategy_orders import MemoryStrategyOrders


class MemoryDatabase:
    """bootstrap.databases.Database in memory: one process, any number of workers, gone when the process ends."""

    def __init__(self, clock: Clock) -> None:
        self.journal = MemoryJournal()
        self.queries = MemoryQueries(self.journal)
        self.kills = MemoryKills(self.journal)
        self.strategy_orders = MemoryStrategyOrders(self.journal)
        self.accounts = MemoryAccounts(self.journal)
        self.liveness = MemoryLiveness()
        self.relay_leases = MemoryRelayLeases()
        self.lanes = MemoryLanes(self.liveness, clock)
        self.sessions = SqliteVenueSessions()  # one process here, too
        self.keys = MemoryKeyStore(self.journal)
        self.time = MemoryTime(self.journal, clock)

    async def identity(self) -> str:
        """This object."""
        return f"memory {id(self)}"

    def listen(self, callback: Callable[[], None]) -> None:
        """Do nothing: no other process writes to this journal."""

    def on_held_wal(self, callback: Callable[[], None]) -> None:
        """Do nothing: there is no WAL."""

    def longest_read_seconds(self) -> float:
        """Return 0: reads do not wait."""
        return 0.0

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""
