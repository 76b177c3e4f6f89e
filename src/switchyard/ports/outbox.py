"""The outbox: due and unsettled rows for the stages, the lanes that a worker owns, and the list for operators."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final, Literal, Protocol

import msgspec

from switchyard.domain.errors import DifferentDeclarations
from switchyard.domain.ids import AccountId, OrderId, VenueName, WorkerId
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.orders.order import Order
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


class VenueSessions(Protocol):
    """Which worker holds the session of a venue that admits one (`Capabilities.sessions`).

    The holder's name is a row that the append compares: an attempt of another worker at the venue is a conflict.
    """

    async def take(self, venue: VenueName, worker: WorkerId) -> bool:
        """Take the session for the worker, if no live process holds it; true if this process holds it already."""

    async def lost(self, venue: VenueName) -> None:
        """Return as soon as this process cannot be sure any more that it holds the session."""

    async def release(self, venue: VenueName) -> None:
        """Let another worker have the session."""

    async def share(self, venue: VenueName) -> None:
        """Forget the last holder: every worker may use the venue now."""


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
        without: Sequence[AccountId] = (),
        known: KnownState = nothing_known,
    ) -> list[Due]:
        """Return rows to send now, in journal order; a cancel only after its order was sent.

        A row without an attempt is due at once, whatever its date: its date was given by the clock of another process.

        `venues`, `lanes` and `kind` restrict the result; None means all of them. `after` is the journal number of the
        last row of the previous page; the orders of the accounts in `without` are left out. A state that is `known`
        with the row's present version is not read again; the rest of it may be older than the database.
        """

    async def never_sent(
        self, venues: Sequence[VenueName], lanes: Sequence[int] | None, limit: int, *, after: int = 0
    ) -> list[Due]:
        """Return the waiting orders of these venues of which no byte was sent, in journal order, due or not.

        `after` is the journal number of the last row of the previous page; `lanes` None means all of them.
        """

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

    async def oldest_unsent(
        self, venues: Sequence[VenueName], without: Sequence[AccountId] = ()
    ) -> Mapping[VenueName, QueueHead]:
        """Return, for each venue with a queue, the first order in journal order without an attempt.

        The orders of the accounts in `without` are left out.
        """

    async def accepted_since(self, seq: int) -> int:
        """Return how many orders were accepted after this event."""

    async def unsettled_since(self, status: Literal["sending", "uncertain"], times: Sequence[datetime]) -> list[int]:
        """Return, for each time, how many rows have had this status, unchanged, since then or longer."""

    async def outbox_counts(self) -> Sequence[OutboxCount]:
        """Return the number of unfinished rows by status."""


NOTHING_DECLARED: Final[Mapping[VenueName, str]] = MappingProxyType({})


class LaneShare(msgspec.Struct, frozen=True):
    """The lanes that a worker owns, and how many lanes a fair share is."""

    lanes: frozenset[int]
    share: int


class Lanes(Protocol):
    """Lane ownership: each lane has at most one owner, so orders of a lane are sent in journal order."""

    async def hold(
        self, worker: WorkerId, given_up: Sequence[int], declared: Mapping[VenueName, str] = NOTHING_DECLARED
    ) -> LaneShare:
        """Renew the worker's registration, release `given_up`, and take free lanes up to a fair share.

        `declared` is what the worker's settings say of each venue. Raises DifferentDeclarations, and holds nothing,
        where a live worker declares something else of one of them.
        """


def difference(
    other: WorkerId, theirs: Mapping[VenueName, str], ours: Mapping[VenueName, str]
) -> DifferentDeclarations:
    """The error of a worker that declares the first of the venues that differ otherwise than another worker."""
    venue = min(venue for venue in theirs if ours.get(venue, theirs[venue]) != theirs[venue])
    return DifferentDeclarations(venue, other, theirs[venue], ours[venue])


# The newest one is shown; a few more in case that it is about another row of the order.
DOUBTS_MAX: Final = 20


class OutboxListing(Protocol):
    """Outbox rows by status; needs no lock on the database."""

    async def rows(self, status: str, limit: int) -> Sequence[OutboxRow]:
        """Return rows of one status, oldest first."""

    async def rows_of(self, order_id: OrderId) -> Sequence[OutboxRow]:
        """Return the rows of one order, sorted by their keys; none if there is no such order."""

    async def history_of(self, order_id: OrderId, limit: int) -> tuple[Order, Sequence[JournalEvent]] | None:
        """Return one order with its first events, in journal order; none if there is no such order."""

    async def doubts_of(self, order_id: OrderId) -> Sequence[JournalEvent]:
        """Return the last `OrderUncertain` events of one order, newest first."""

    async def cursors(self, names: Sequence[str]) -> tuple[Mapping[str, str], datetime]:
        """Return the texts of the cursors of these names that exist, and the database's time."""
