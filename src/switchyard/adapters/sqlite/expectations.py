"""Checks the versions that a group's changes expect, before the group is written. Reads only.

No other process writes to the file, so the versions that this process wrote are remembered instead of read.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import apsw

from switchyard.adapters.sqlite import rows
from switchyard.adapters.sqlite.statements import (
    ACTIVE_KILLS,
    KEY_ENTRIES,
    KILL_VERSION,
    LANES_WITH_QUEUE,
    ORDER_VERSIONS,
    OUTBOX_VERSIONS,
    POSITION_VERSIONS,
    SEEN_EXECUTIONS,
)
from switchyard.adapters.sqlite.strays import reported_before
from switchyard.adapters.tables import ORDERS
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change, Conflict
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.kills import Kill, active_twin, covering

# An entry takes about 200 bytes. Beyond this number all are forgotten, and read again where they are needed.
REMEMBERED_MAX = 50_000

_Key = Any  # an order's id, or the primary key of an outbox row (three values) or a position (two values)
_Move = tuple[int, int, _Key]
"""The number of a change, the version that it expects, and the key of the row."""


class Expectations:
    """Which changes conflict with the database."""

    def __init__(self) -> None:
        self._versions: dict[_Key, int] = {}
        self._kills: list[Kill] | None = None
        """The active kills; none until they are read."""
        self._expects_repeats = False
        """Whether the keys of the last group that was looked up were taken: repeats come in bursts."""

    def conflicts_of(
        self, connection: apsw.Connection, changes: Sequence[Change], thorough: bool
    ) -> dict[int, Conflict]:
        """The changes that conflict with the database, by their number in the group.

        New orders, outbox rows, keys and executions, and attempts that begin with their orders, are checked only when
        `thorough`: they almost never conflict, and the write rejects a group with one that does. While requests are
        repeated, new keys are looked up here as well, because a rejected group is written twice.
        """
        numbered = list(enumerate(changes))
        orders = [(number, base, row.order_id) for number, change in numbered for base, row in change.order_updates()]
        outbox = [(number, base, row.key) for number, change in numbered for base, row in change.outbox_updates()]
        positions = [(number, base, row.key) for number, change in numbered for base, row in change.position_updates()]
        stale = chain(
            self._stale(connection, orders, ORDER_VERSIONS, _order_version, thorough),
            self._stale(connection, outbox, OUTBOX_VERSIONS, _row_version, thorough),
            self._stale(connection, positions, POSITION_VERSIONS, _row_version, thorough=True),
        )
        conflicts = dict.fromkeys(stale, Conflict())
        if thorough:
            conflicts.update(_taken_client_ids(connection, numbered))
            conflicts.update(_seen_executions(connection, numbered))
            conflicts.update(_early_attempts(connection, numbered))
        conflicts.update(self._killed(connection, numbered))
        conflicts.update(self._taken_keys(connection, numbered, thorough))
        return conflicts

    def repeats_among(
        self, connection: apsw.Connection, changes: Sequence[Change], conflicts: Mapping[int, Conflict]
    ) -> dict[int, Conflict]:
        """Those of the conflicting changes whose key is taken: a repeat gets its order, also under a kill or limit."""
        return _key_conflicts(connection, [(number, entry) for number in conflicts for entry in changes[number].keys])

    def note_written(self, changes: Iterable[Change]) -> None:
        """Remember the versions of a committed group."""
        if len(self._versions) > REMEMBERED_MAX:
            self._versions.clear()
        for change in changes:
            self._versions.update((order.order_id, order.version) for order in change.orders)
            self._versions.update((row.key, row.version) for row in change.outbox)
            self._versions.update((position.key, position.version) for position in change.positions)
            if change.kills:
                self._kills = None

    def forget(self) -> None:
        """Read all versions again: a write failed, or was not a group of changes."""
        self._versions.clear()
        self._kills = None

    def _killed(self, connection: apsw.Connection, numbered: Sequence[tuple[int, Change]]) -> dict[int, Conflict]:
        """The changes that accept or begin to send an order that a kill covers; kills that are stale or set already."""
        if self._kills is None:
            self._kills = list(map(rows.kill, connection.execute(ACTIVE_KILLS)))
        conflicts = {
            number: Conflict()
            for number, change in numbered
            for kill in change.kills
            if (connection.execute(KILL_VERSION, (kill.kill_id,)).get or 0) != kill.version - 1
        }
        if self._kills:
            for number, change in numbered:
                for new in change.kills:
                    if (twin := active_twin(self._kills, new)) is not None:
                        conflicts[number] = Conflict(kill=twin)
                leaving = _stored_orders(connection, change.rerouted_ids())
                for order in (*change.orders_to_place(), *leaving):
                    if (kill := covering(self._kills, order)) is not None:
                        conflicts[number] = Conflict(kill=kill)
        return conflicts

    def _taken_keys(
        self, connection: apsw.Connection, numbered: Sequence[tuple[int, Change]], thorough: bool
    ) -> dict[int, Conflict]:
        checks_new = thorough or self._expects_repeats
        checked = [(n, entry) for n, change in numbered for entry in change.keys if checks_new or entry.version > 1]
        conflicts = _key_conflicts(connection, checked)
        if checks_new:
            self._expects_repeats = bool(conflicts)
        return conflicts

    def _stale(
        self,
        connection: apsw.Connection,
        moves: Sequence[_Move],
        sql: str,
        read: Callable[[Sequence[Any]], tuple[_Key, int]],
        thorough: bool,
    ) -> list[int]:
        """The numbers of the changes whose row has another version than expected."""
        checked = [move for move in moves if thorough or move[1]]
        versions = self._versions
        unknown = [key for _, _, key in checked if key not in versions]
        if unknown:
            stored = connection.execute(sql, (rows.json_array(unknown),))
            versions = {**dict(map(read, stored)), **{key: versions[key] for _, _, key in checked if key in versions}}
        return [number for number, base, key in checked if versions.get(key, 0) != base]


def _stored_orders(connection: apsw.Connection, order_ids: Iterable[OrderId]) -> list[Order]:
    """The orders as they are in the database."""
    return [
        rows.order(row)
        for order_id in order_ids
        for row in connection.execute(f"SELECT {ORDERS.column_list} FROM orders WHERE order_id = ?", (order_id,))
    ]


def _order_version(row: Sequence[Any]) -> tuple[_Key, int]:
    order_id, version = row
    return order_id, version


def _row_version(row: Sequence[Any]) -> tuple[_Key, int]:
    *key, version = row
    return tuple(key), version


def _taken_client_ids(connection: apsw.Connection, numbered: Sequence[tuple[int, Change]]) -> dict[int, Conflict]:
    """The changes with a new order whose client order id another order has."""
    ids = {order.venue_client_order_id: n for n, change in numbered for order in change.orders if order.version == 1}
    sql = "SELECT venue_client_order_id FROM orders WHERE venue_client_order_id IN (SELECT value FROM json_each(?))"
    taken = connection.execute(sql, (rows.json_array(list(ids)),))
    return {ids[client_id]: Conflict() for (client_id,) in taken}


def _seen_executions(connection: apsw.Connection, numbered: Sequence[tuple[int, Change]]) -> dict[int, Conflict]:
    checked = [(n, row) for n, change in numbered for row in change.executions]
    if not checked:
        return {}
    keys = [(row.venue, row.exec_id, row.order_id) for _, row in checked]
    seen = set(connection.execute(SEEN_EXECUTIONS, (rows.json_array(keys),)))
    return {number: Conflict() for number, row in checked if (row.venue, row.exec_id) in seen}


def _early_attempts(connection: apsw.Connection, numbered: Sequence[tuple[int, Change]]) -> dict[int, Conflict]:
    """The changes whose new order begins its attempt too early: others of its lane wait, or a venue reported on it."""
    begun = [(number, row) for number, change in numbered for row in change.unqueued_rows()]
    if not begun:
        return {}
    lanes = rows.json_array(sorted({row.lane for _, row in begun}))
    queued = {lane for (lane,) in connection.execute(LANES_WITH_QUEUE, (lanes,))}
    strays = reported_before(connection, [row.venue_client_order_id for _, row in begun])
    return {number: Conflict() for number, row in begun if row.lane in queued or row.venue_client_order_id in strays}


def _key_conflicts(connection: apsw.Connection, checked: Sequence[tuple[int, KeyEntry]]) -> dict[int, Conflict]:
    """The changes whose key has another version than expected."""
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
