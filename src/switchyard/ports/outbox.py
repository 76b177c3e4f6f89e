"""The outbox port: read-only queries of the stages that send, resolve, forecast and measure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

import msgspec

from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.orders.outbox import OrderState, OutboxKey, OutboxKind, OutboxRow


class Due(msgspec.Struct, frozen=True):
    """An outbox row with its order's state."""

    row: OutboxRow
    state: OrderState
    reported_before: bool = False
    """Whether the venue reported on this venue client order id, or on a later generation of its key, before the order
    existed here.

    That happens after an older database was restored: a repeated key starts again at its first generation, with the
    same id as the lost order, which the venue has already executed, or with the id of an attempt before that.
    """


KnownState = Callable[[OrderId], OrderState | None]
"""A state that the caller has in memory; none where it has not."""


def nothing_known(_order_id: OrderId) -> None:
    """For a caller without states in memory."""


class OutboxCount(msgspec.Struct, frozen=True):
    """Number and oldest creation time of the unfinished outbox rows of one status."""

    status: str
    rows: int
    oldest_created_at: datetime | None


class QueueHead(msgspec.Struct, frozen=True):
    """The order that a venue's queue sends next."""

    seq: int
    created_at: datetime


class OutboxQueries(Protocol):
    """Bounded queries over unfinished outbox rows."""

    async def due(
        self,
        now: datetime,
        limit: int,
        venues: Sequence[VenueName] | None = None,
        lanes: Sequence[int] | None = None,
        *,
        kind: OutboxKind | None = None,
        after: int = 0,
        known: KnownState = nothing_known,
    ) -> list[Due]:
        """Return rows to send now, in journal order; a cancel only after its order was sent.

        A row without an attempt is due at once, whatever its date: its date was given by the clock of another process.

        `venues`, `lanes` and `kind` restrict the result; None means all of them. `after` is the journal number of the
        last row of the previous page. A state that is `known` with the row's
        present version is not read again; the rest of it may be older than the database.
        """
        ...

    async def never_sent(
        self, venues: Sequence[VenueName], lanes: Sequence[int] | None, limit: int, *, after: int = 0
    ) -> list[Due]:
        """Return the waiting orders of these venues of which no byte was sent, in journal order, due or not.

        `after` is the journal number of the last row of the previous page; `lanes` None means all of them.
        """
        ...

    async def unsettled(
        self,
        status: Literal["sending", "uncertain"],
        limit: int,
        *,
        venue: VenueName | None = None,
        after: OutboxKey | None = None,
    ) -> list[Due]:
        """Return rows whose attempt has no outcome yet or an ambiguous one, sorted by their keys.

        `venue` restricts the result to one venue; `after` is the key of the last row of the previous page.
        """
        ...

    async def oldest_unsent(self, venues: Sequence[VenueName]) -> Mapping[VenueName, QueueHead]:
        """Return, for each venue with a queue, the first order in journal order without an attempt."""
        ...

    async def accepted_since(self, seq: int) -> int:
        """Return how many orders were accepted after this event."""
        ...

    async def unsettled_since(self, status: Literal["sending", "uncertain"], times: Sequence[datetime]) -> list[int]:
        """Return, for each time, how many rows have had this status, unchanged, since then or longer."""
        ...

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Return the number of unfinished rows by status."""
        ...
