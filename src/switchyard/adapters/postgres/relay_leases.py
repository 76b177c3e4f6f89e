"""The leases of relays on PostgreSQL."""

from switchyard.adapters import relay_rows
from switchyard.adapters.postgres.reader import Reader
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import Place
from switchyard.ports.bus import Lease, LeaseLost


class PostgresRelayLeases:
    """ports.relay_lease.RelayLeases among the processes of one database."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def lease(self, topic: str) -> Lease | None:
        """The lease of a topic."""
        found = await self._reader.unconfirmed_rows(relay_rows.FIND, topic)
        return relay_rows.lease(tuple(found[0])) if found else None

    async def claim(self, topic: str, owner: WorkerId, read: Lease | None) -> Lease | None:
        """Become the owner if the lease is still the one that was read."""
        claimed = await self._reader.unconfirmed_rows(relay_rows.CLAIM, *relay_rows.claim_values(topic, owner, read))
        return relay_rows.lease(tuple(claimed[0])) if claimed else None

    async def renew(self, held: Lease, topic_id: str, place: Place) -> Lease:
        """Store the place and raise the beat."""
        renewed = await self._reader.unconfirmed_rows(relay_rows.RENEW, *relay_rows.renew_values(held, topic_id, place))
        if not renewed:
            raise LeaseLost(f"another relay publishes to {held.topic} now")
        return relay_rows.lease(tuple(renewed[0]))
