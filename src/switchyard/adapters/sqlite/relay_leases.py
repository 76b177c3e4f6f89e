"""The leases of relays on SQLite: read by readers, written by the journal's writer thread."""

from switchyard.adapters import relay_rows
from switchyard.adapters.sqlite.connections import Connections
from switchyard.adapters.sqlite.journal import SqliteJournal
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import Place
from switchyard.ports.bus import Lease, LeaseLost

# SQLite writes a numbered parameter as `?1`.
_FIND, _CLAIM, _RENEW = (sql.replace("$", "?") for sql in (relay_rows.FIND, relay_rows.CLAIM, relay_rows.RENEW))


class SqliteRelayLeases:
    """ports.relay_lease.RelayLeases on SQLite; one process, so a claim always succeeds."""

    def __init__(self, connections: Connections, journal: SqliteJournal) -> None:
        self._connections = connections
        self._journal = journal

    async def lease(self, topic: str) -> Lease | None:
        """The lease of a topic."""
        row = await self._connections.read(lambda connection: connection.execute(_FIND, (topic,)).fetchone())
        return None if row is None else relay_rows.lease(row)

    async def claim(self, topic: str, owner: WorkerId, read: Lease | None) -> Lease | None:
        """Become the owner if the lease is still the one that was read."""
        values = relay_rows.claim_values(topic, owner, read)
        rows = await self._journal.maintain(lambda connection: connection.execute(_CLAIM, values).fetchall())
        return relay_rows.lease(rows[0]) if rows else None

    async def renew(self, held: Lease, topic_id: str, place: Place) -> Lease:
        """Store the place and raise the beat."""
        values = relay_rows.renew_values(held, topic_id, place)
        rows = await self._journal.maintain(lambda connection: connection.execute(_RENEW, values).fetchall())
        if not rows:
            raise LeaseLost(f"another relay publishes to {held.topic} now")
        return relay_rows.lease(rows[0])
