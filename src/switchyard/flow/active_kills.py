"""The active kills as this process knows them: read from the database, and noted from its own commits and conflicts.

The append judges every accept and every attempt; this copy saves attempts that it would reject, and is looked at once
more just before an order is sent.
"""

import asyncio
from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from switchyard.domain.errors import Unavailable
from switchyard.domain.ids import AccountId, KillId, VenueName
from switchyard.domain.journal.changes import Change, Conflict
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.kills import Kill, covering
from switchyard.ports.queries import Kills
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# How late a kill of another process is known here; until then the append alone holds it up.
REFRESH_SECONDS = 1.0


class ActiveKills:
    """A copy of the active kills; what it does not have, the append still judges."""

    def __init__(self, kills: Kills, metrics: Metrics) -> None:
        self._kills = kills
        self._metrics = metrics
        self._known: dict[KillId, Kill] = {}
        self._notes = 0
        """Counts what was noted, so that an older read does not undo it."""
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether no active kill is known here."""
        return not self._known

    @property
    def automatic_count(self) -> int:
        """How many of them programs have set."""
        return sum(kill.is_automatic for kill in self._known.values())

    def covering(self, order: Order) -> Kill | None:
        """The oldest active kill known here that covers the order."""
        return covering(self._known.values(), order) if self._known else None

    def covering_at(self, order: Order, venue: VenueName) -> Kill | None:
        """The oldest active kill known here that would cover the order at another venue."""
        return self.covering(replace(order, venue=venue)) if self._known else None

    def note_changes(self, changes: Sequence[Change]) -> None:
        """Note what this process has committed."""
        for change in changes:
            for kill in change.kills:
                self.note(kill)

    def note(self, kill: Kill) -> None:
        """Note a kill that this process has committed, or that has rejected one of its changes."""
        self._notes += 1
        if kill.is_active:
            self._replace({**self._known, kill.kill_id: kill})
        else:
            self._replace({known: kept for known, kept in self._known.items() if known != kill.kill_id})

    def note_conflicts(self, answers: Sequence[object]) -> None:
        """Note the kills that have rejected attempts or reroutes of this process."""
        for answer in answers:
            if isinstance(answer, Conflict) and answer.kill is not None:
                self.note(answer.kill)
                self._metrics.kills.blocked.labels("attempt").inc()

    async def refresh(self) -> Sequence[Kill]:
        """Read the active kills; they are exact for decisions that are committed after this."""
        while True:
            notes = self._notes
            active = await self._kills.active()
            if notes == self._notes:
                self._replace({kill.kill_id: kill for kill in active})
                return active

    async def covering_new(
        self, account: AccountId, strategy: str | None, venue: VenueName, symbol: str
    ) -> Kill | None:
        """The oldest active kill that would cover a new order; reads the kills."""
        active = await self.refresh()
        return next((kill for kill in active if kill.covers_scope(account, strategy, venue, symbol)), None)

    async def changed_within(self, seconds: float) -> None:
        """Wait until a kill is set or cleared, for a limited time."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    async def run(self) -> None:
        """Read the kills of other processes for as long as this one lives."""
        while True:
            try:
                await self.refresh()
            except Unavailable as error:
                log.warning("kills_not_read", error=str(error))
            await asyncio.sleep(REFRESH_SECONDS)

    def _replace(self, known: dict[KillId, Kill]) -> None:
        if known.keys() != self._known.keys():
            self._changed.set()
        self._known = known
        self._metrics.kills.active.set(len(known))
