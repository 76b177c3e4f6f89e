"""Rejects, for the journal in memory, groups that a real engine rejects: rows written twice, text it cannot store."""

import re
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from switchyard.domain.errors import GroupRejected
from switchyard.domain.journal.changes import Change

# An odd number of backslashes before it: an even number is escaped text, which every engine can store.
_NUL_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_rows_differ(changes: Sequence[Change]) -> None:
    """Reject a group in which two changes write the same row, as PostgreSQL does."""
    written: set[Hashable] = set()
    for change in changes:
        rows = set(_rows_written(change))
        if not written.isdisjoint(rows):
            raise GroupRejected(f"two changes of the group write the same row: {written & rows}")
        written |= rows


def _rows_written(change: Change) -> Iterator[Hashable]:
    for order in change.orders:
        yield order.order_id
        yield "client id", order.venue_client_order_id
    for row in change.outbox:
        yield row.key
    for entry in change.keys:
        yield "key", entry.account_id, entry.operation, entry.idempotency_key
    for result in change.results:
        yield "key", result.account_id, result.operation, result.idempotency_key
    for position in change.positions:
        yield "position", *position.key
    for execution in change.executions:
        yield "execution", execution.venue, execution.exec_id
    for cursor in change.cursors:
        yield "cursor", cursor.name


def check_storable(changes: Sequence[Change]) -> None:
    """Reject text that a real engine cannot store: half of a surrogate pair, or NUL."""
    try:
        encoded = msgspec.json.encode(changes)
    except UnicodeEncodeError as error:
        raise GroupRejected(f"a value of the group cannot be stored: {error}") from error
    if _NUL_IN_JSON.search(encoded):
        raise GroupRejected("a value of the group cannot be stored: it contains NUL")
