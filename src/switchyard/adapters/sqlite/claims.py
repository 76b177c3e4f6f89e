"""Checks and reserves what the changes of a group claim, before the group is written.

No other process writes to the file, so the totals of the open orders are kept in memory. They are read from the rows
when the first claim comes; a process without limits does not keep them. Runs in the writer thread.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.tables import ORDERS, POSITIONS
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.changes import Change, Conflict
from switchyard.domain.risk.claims import WINDOW_ORDERS_MAX
from switchyard.domain.risk.exposure import Book

# The open orders by the two partial indexes that exist for other reasons: an order that is not open at its venue is
# open if its own outbox row is not settled. An index over all statuses would be written with every order.
OPEN_ORDERS = f"""
SELECT {ORDERS.column_list} FROM orders WHERE status IN ('WORKING', 'PARTIALLY_FILLED', 'CANCEL_REQUESTED')
UNION
SELECT {ORDERS.qualified("orders")} FROM outbox_orders AS outbox CROSS JOIN orders ON orders.order_id = outbox.order_id
WHERE outbox.status IN ('queued', 'failed')
UNION
SELECT {ORDERS.qualified("orders")} FROM outbox_orders AS outbox CROSS JOIN orders ON orders.order_id = outbox.order_id
WHERE outbox.status IN ('sending', 'uncertain')
"""
_POSITIONS = f"SELECT {POSITIONS.column_list} FROM positions WHERE symbol <> ?"
_RECENT = """
SELECT order_id FROM orders
WHERE account_id = ? AND order_id >= ? AND NOT (version = 1 AND status = 'REJECTED')
ORDER BY order_id DESC LIMIT ?
"""


class Claims:
    """The totals of this process, once a claim needs them."""

    def __init__(self) -> None:
        self.book: Book | None = None
        """None before the first claim or question."""

    def reserve(self, connection: apsw.Connection, changes: Sequence[Change], conflicts: dict[int, Conflict]) -> None:
        """Reserve the claims in order; those that would breach a limit are added to the conflicts."""
        if not any(change.claims for change in changes):
            return
        book = self.loaded(connection)
        try:
            for number, change in enumerate(changes):
                if change.claims and number not in conflicts and (breach := book.reserve(change)) is not None:
                    conflicts[number] = Conflict(breach=breach)
        except BaseException:
            self.forget()  # some of the claims may be reserved
            raise

    @contextmanager
    def kept_if_written(self, changes: Sequence[Change]) -> Iterator[None]:
        """Take the reservations back if the write fails."""
        try:
            yield
        except BaseException:
            if has_amend(changes):
                self.forget()
            elif self.book is not None:
                self.book.take_back(changes)
            raise

    def note_written(self, changes: Sequence[Change]) -> None:
        """Note the rows of a committed group."""
        if self.book is not None:
            self.book.note(changes)

    def forget(self) -> None:
        """Read the rows again for the next claim."""
        self.book = None

    def loaded(self, connection: apsw.Connection) -> Book:
        """The totals; read from the rows where they are not kept yet."""
        if self.book is None:
            orders = map(rows.order, connection.execute(OPEN_ORDERS))
            positions = map(rows.position, connection.execute(_POSITIONS, (ACCOUNT_TOTAL,)))

            def recent(account: AccountId, since: OrderId) -> list[OrderId]:
                return [row[0] for row in connection.execute(_RECENT, (account, since, WINDOW_ORDERS_MAX))]

            self.book = Book(orders, positions, recent)
        return self.book


def has_amend(changes: Sequence[Change]) -> bool:
    """Whether a claim is that of an amend. It cannot be taken back: after a failed write all totals are read again."""
    return any(claim.before is not None for change in changes for claim in change.claims)
