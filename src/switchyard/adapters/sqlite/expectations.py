"""Checks the versions that a group's changes expect, before the group is written. Reads only."""

from collections.abc import Sequence

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.statements import (
    KEY_ENTRIES,
    ORDER_VERSIONS,
    OUTBOX_VERSIONS,
    POSITION_VERSIONS,
    SEEN_EXECUTIONS,
)
from switchyard.domain.changes import Change, Conflict


def conflicts_of(connection: apsw.Connection, changes: Sequence[Change], thorough: bool) -> dict[int, Conflict]:
    """The changes that conflict with the database, by their number in the group.

    New orders and outbox rows are checked only when `thorough`: their ids are fresh, so the lookup almost never finds
    anything, and a unique index rejects a row that exists already.
    """
    conflicts: dict[int, Conflict] = {}
    for number in _stale_orders(connection, changes, thorough):
        conflicts[number] = Conflict()
    for number in _stale_outbox(connection, changes, thorough):
        conflicts[number] = Conflict()
    for number in _stale_positions(connection, changes):
        conflicts[number] = Conflict()
    for number in _seen_executions(connection, changes):
        conflicts[number] = Conflict()
    conflicts.update(_taken_keys(connection, changes))
    return conflicts


def _stale_orders(connection: apsw.Connection, changes: Sequence[Change], thorough: bool) -> list[int]:
    moves = [(number, *move) for number, change in enumerate(changes) for move in change.order_moves()]
    checked = [(number, base, row) for number, base, row in moves if thorough or base]
    if not checked:
        return []
    keys = [(row.order_id, None if base else row.venue_client_order_id) for _, base, row in checked]
    versions = dict(connection.execute(ORDER_VERSIONS, (rows.json_array(keys),)))
    return [number for number, base, row in checked if versions.get(row.order_id, 0) != base]


def _stale_outbox(connection: apsw.Connection, changes: Sequence[Change], thorough: bool) -> list[int]:
    moves = [(number, *move) for number, change in enumerate(changes) for move in change.outbox_moves()]
    checked = [(number, base, row.key) for number, base, row in moves if thorough or base]
    if not checked:
        return []
    stored = connection.execute(OUTBOX_VERSIONS, (rows.json_array([key for _, _, key in checked]),))
    versions = {tuple(key): version for *key, version in stored}
    return [number for number, base, key in checked if versions.get(key, 0) != base]


def _stale_positions(connection: apsw.Connection, changes: Sequence[Change]) -> list[int]:
    checked = [(n, base, row) for n, change in enumerate(changes) for base, row in change.position_moves()]
    if not checked:
        return []
    keys = [row.key for _, _, row in checked]
    stored = connection.execute(POSITION_VERSIONS, (rows.json_array(keys),))
    versions = {tuple(key): version for *key, version in stored}
    return [number for number, base, row in checked if versions.get(row.key, 0) != base]


def _seen_executions(connection: apsw.Connection, changes: Sequence[Change]) -> list[int]:
    checked = [(n, row) for n, change in enumerate(changes) for row in change.executions]
    if not checked:
        return []
    keys = [(row.venue, row.exec_id, row.order_id) for _, row in checked]
    seen = set(connection.execute(SEEN_EXECUTIONS, (rows.json_array(keys),)))
    return [number for number, row in checked if (row.venue, row.exec_id) in seen]


def _taken_keys(connection: apsw.Connection, changes: Sequence[Change]) -> dict[int, Conflict]:
    checked = [(n, entry) for n, change in enumerate(changes) for entry in change.keys]
    if not checked:
        return {}
    keys = [(entry.account_id, entry.operation, entry.idempotency_key) for _, entry in checked]
    stored = map(rows.key_entry, connection.execute(KEY_ENTRIES, (rows.json_array(keys),)))
    by_key = {(entry.account_id, entry.operation, entry.idempotency_key): entry for entry in stored}
    conflicts = {}
    for (number, entry), key in zip(checked, keys, strict=True):
        earlier = by_key.get(key)
        if entry.version != (1 if earlier is None else earlier.version + 1):
            conflicts[number] = Conflict(earlier)
    return conflicts
