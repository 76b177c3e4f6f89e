"""The append of a group on SQLite: the rows as the trigger program reads them, and what it checks and answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec.structs import astuple, replace

from switchyard.adapters.sqlite import rows
from switchyard.adapters.tables import (
    IDEMPOTENCY_KEYS,
    KEY_RESULTS,
    KILLS,
    ORDERS,
    OUTBOX_ORDERS,
    POSITIONS,
    STATE_TABLES,
    Table,
    fragments,
)
from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, last_generation
from switchyard.domain.journal.changes import (
    ORDER_KEY,
    OUTBOX_KEY,
    POSITION_KEY,
    Change,
    Committed,
    Conflict,
    Outcome,
    is_unqueued,
)
from switchyard.domain.journal.events import Event
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.risk.claims import WINDOW_ORDERS_MAX, Breach
from switchyard.domain.risk.exposure import Book
from switchyard.domain.risk.kills import Kill, active_twin, covering
from switchyard.domain.values import ONE, ZERO

# The columns that statements compare or sort by, which needs one fixed form. The encoder omits the fraction of a whole
# second; the other time columns are only read back.
_COMPARED_TIMES = frozenset({"next_attempt_at", "created_at", "expires_at"})


class Plain:
    """First versions that have the usual value in every column that most rows do not use.

    The program writes these values itself. Each value that it reads from the JSON costs it more than a thousand
    instructions, and an order has 39 columns.
    """

    def __init__(self, table: Table, usual: Mapping[str, tuple[Any, str]]) -> None:
        """`usual`: the value of each of these columns, and the same in SQL."""
        places = {column: place for place, column in enumerate(table.columns)}
        self.carried = tuple(column for column in table.columns if column not in usual)
        self.usual = usual
        self._times = [places[column] for column in self.carried if column in _COMPARED_TIMES]
        self._usual = itemgetter(*(places[column] for column in usual))
        self._values = tuple(value for value, _ in usual.values())
        self._carried = itemgetter(*(places[column] for column in self.carried))

    def cells(self, row: Sequence[Any]) -> tuple[Any, ...] | None:
        """What the JSON carries of a row; None for a row that is not plain."""
        if self._usual(row) != self._values:
            return None
        for place in self._times:
            if not row[place].microsecond:
                return None  # the encoder omits the fraction, which the statements need
        cells: tuple[Any, ...] = self._carried(row)
        return cells


_NONE = (None, "NULL")
_PLAIN_ORDERS = Plain(
    ORDERS,
    {
        "stop_price": _NONE,
        "filled_qty": (ZERO, "'0'"),
        "filled_notional": (ZERO, "'0'"),
        "venue_order_id": _NONE,
        "reason": _NONE,
        "tags": ((), "'[]'"),
        "trace_id": _NONE,
        "requested_at": _NONE,
        "multiplier": (ONE, "'1'"),
        "reducing": (False, "0"),
        "expires_at": _NONE,
        "reduce_only": (False, "0"),
        "amend_qty": _NONE,
        "amend_reserve_price": _NONE,
        "leg_client_order_id": _NONE,
        "leg_end": _NONE,
        "post_only": (False, "0"),
        "display_qty": _NONE,
        "venue_reduce_only": (False, "0"),
    },
)
_PLAIN_OUTBOX = Plain(
    OUTBOX_ORDERS,
    {
        "kind": ("new", "'new'"),
        "number": (1, "1"),
        "last_error": _NONE,
        "bytes_sent": (False, "0"),
        "error_detail": _NONE,
        "payload": _NONE,
        "traceparent": _NONE,
    },
)
_PLAIN_KEYS = Plain(
    IDEMPOTENCY_KEYS,
    {
        "generation": (0, "0"),
        "http_status": _NONE,
        "response_payload_json": _NONE,
        "result_digest": _NONE,
        "version": (1, "1"),
    },
)
PLAIN = {"orders": _PLAIN_ORDERS, "outbox_orders": _PLAIN_OUTBOX, "idempotency_keys": _PLAIN_KEYS}
# Of a later version of a row, only its key and the columns that may change.
_ORDER_CHANGES: Callable[[Order], tuple[Any, ...]] = attrgetter(*ORDERS.key, *ORDERS.changing)
_OUTBOX_CHANGES: Callable[[OutboxRow], tuple[Any, ...]] = attrgetter(*OUTBOX_ORDERS.key, *OUTBOX_ORDERS.changing)


class AppendGroup(NamedTuple):
    """A row of the view `append_group`: one group, its rows as JSON texts; None where the group has no such rows."""

    events: str | None = None
    data: bytes | None = None
    """The data of all events, one after the other: as JSON within JSON each quotation mark would be escaped."""
    digests: bytes | None = None
    plain_orders: str | None = None
    new_orders: str | None = None
    changed_orders: str | None = None
    plain_outbox: str | None = None
    new_outbox: str | None = None
    changed_outbox: str | None = None
    begun: str | None = None
    plain_keys: str | None = None
    new_keys: str | None = None
    keys: str | None = None
    positions: str | None = None
    new_executions: str | None = None
    checked_executions: str | None = None
    cursors: str | None = None
    results: str | None = None
    new_kills: str | None = None
    kills: str | None = None
    kill_orders: str | None = None
    group_id: str | None = None
    outcomes: str | None = None
    seq: int | None = None
    hash: str | None = None
    at: str | None = None
    delete_groups_before: str | None = None
    seen_epoch: int | None = None
    seen_seq: int | None = None
    seen_hash: str | None = None


APPEND = f"""
INSERT INTO append_group ({", ".join(AppendGroup._fields)}) VALUES ({", ".join("?" for _ in AppendGroup._fields)})
"""


class NumberedEvent(NamedTuple):
    """An event with its place in the journal."""

    seq: int
    event: Event
    hash: str


def rows_of(changes: Sequence[Change], numbered: Sequence[NumberedEvent], checked: bool) -> AppendGroup:
    """The rows of the changes and their numbered events; new rows are separate, since only those may be inserted.

    `checked`: it is known which executions may be written; otherwise one that exists already rejects the group.
    """
    orders, keys = _Split(_PLAIN_ORDERS), _Split(_PLAIN_KEYS)
    changed_orders: list[tuple[Any, ...]] = []
    others: dict[str, list[msgspec.Struct]] = {}
    for change in changes:
        for base, order in change.order_updates:
            if base:
                changed_orders.append(_ORDER_CHANGES(order))
            else:
                orders.add(astuple(order))
        for entry in change.keys:
            if entry.version == 1:
                keys.add(astuple(entry))
            else:
                others.setdefault("keys", []).append(entry)
        if change.positions:
            others.setdefault("positions", []).extend([row for _, row in change.position_updates])
        if change.executions:
            others.setdefault("checked_executions" if checked else "new_executions", []).extend(change.executions)
        if change.cursors:
            others.setdefault("cursors", []).extend(change.cursors)
        if change.results:
            others.setdefault("results", []).extend(change.results)
        for kill in change.kills:
            if kill.version == 1:
                others.setdefault("new_kills", []).append(replace(kill, seq=numbered[0].seq))
            else:
                others.setdefault("kills", []).append(kill)
    rare: dict[str, Any] = {name: rows.json_rows(structs) for name, structs in others.items()}
    return AppendGroup(
        **_event_rows(numbered),
        plain_orders=rows.json_cells(orders.plain),
        new_orders=rows.json_cells(orders.others),
        changed_orders=rows.json_cells(changed_orders),
        **_outbox_rows(changes, numbered),
        plain_keys=rows.json_cells(keys.plain),
        new_keys=rows.json_cells(keys.others),
        **rare,
    )


class _Split:
    """The new rows of a table: the plain ones and the others."""

    def __init__(self, kind: Plain) -> None:
        self._kind = kind
        self.plain: list[tuple[Any, ...]] = []
        self.others: list[tuple[Any, ...]] = []

    def add(self, row: tuple[Any, ...]) -> None:
        """Add a row."""
        cells = self._kind.cells(row)
        if cells is None:
            self.others.append(row)
        else:
            self.plain.append(cells)


def _event_rows(numbered: Sequence[NumberedEvent]) -> dict[str, Any]:
    """The members of the events, the place of each one's data, the data itself and the digests."""
    if not numbered:
        return {}
    data = [one.event.data.encode() for one in numbered]
    start, members = 1, []
    for one, text in zip(numbered, data, strict=True):
        event = one.event
        members.append((event.type, event.account_id, event.order_id, start, len(text)))
        start += len(text)
    digests = bytes.fromhex("".join([one.hash for one in numbered]))
    return {"events": rows.json_array(members), "data": b"".join(data), "digests": digests}


def _outbox_rows(changes: Sequence[Change], numbered: Sequence[NumberedEvent]) -> dict[str, Any]:
    """The outbox rows; new ones have the numbers of their events."""
    first = 0
    new, begun = _Split(_PLAIN_OUTBOX), []
    changed: list[tuple[Any, ...]] = []
    for change in changes:
        for base, row in change.outbox_updates:
            if base:
                changed.append(_OUTBOX_CHANGES(row))
                continue
            cells = astuple(row)
            new.add((*cells[:-1], numbered[first + change.event_place(row)].seq) if change.events else cells)
            if is_unqueued(base, row):
                begun.append(row)
        first += len(change.events)
    return {
        "plain_outbox": rows.json_cells(new.plain),
        "new_outbox": rows.json_cells(new.others),
        "changed_outbox": rows.json_cells(changed),
        "begun": _begun(begun),
    }


def _begun(unqueued: Sequence[OutboxRow]) -> str | None:
    """The attempts that begin with their orders: the lane, and the client order ids of the order and its key."""
    if not unqueued:
        return None
    ids = [(row.lane, row.venue_client_order_id, last_generation(row.venue_client_order_id)) for row in unqueued]
    return rows.json_array(ids)


def program_fragments() -> dict[str, str]:
    """The texts that `schema/programs/append.sql` names in braces."""
    texts = fragments(STATE_TABLES)
    for table in STATE_TABLES:
        texts[f"{table.name}.values"] = _values(table.columns, table.columns)
    for table in (ORDERS, OUTBOX_ORDERS):
        cells = table.key + table.changing
        texts[f"{table.name}.changes"] = _values(cells, cells)
        texts[f"{table.name}.changed"] = ", ".join(f"{column} = new.{column}" for column in table.changing)
    for name, plain in PLAIN.items():
        values = [f"value->>{place}" for place in range(len(plain.carried))]
        usual = [text for _, text in plain.usual.values()]
        texts[f"{name}.plain_columns"] = ", ".join((*plain.carried, *plain.usual))
        texts[f"{name}.plain_values"] = ", ".join(values + usual)
    texts["key_results.values"] = _values(KEY_RESULTS.columns, KEY_RESULTS.columns)
    result_columns = [column for column in KEY_RESULTS.columns if column not in (*KEY_RESULTS.key, "order_id")]
    texts["key_results.changed"] = ", ".join(f"{column} = result.{column}" for column in result_columns)
    return texts


def _values(cells: Sequence[str], columns: Sequence[str]) -> str:
    """The columns out of `value`, a JSON array of these cells."""
    return ", ".join(f"{_value(cells.index(column), column)} AS {column}" for column in columns)


def _value(place: int, column: str) -> str:
    value = f"value->>{place}"
    if column not in _COMPARED_TIMES:
        return value
    return f"iif(length({value}) = 20, substr({value}, 1, 19) || '.000000Z', {value})"


class _StoredOutcome(msgspec.Struct, array_like=True):
    """An outcome as `append_groups` stores it; `first_seq` is None for a conflict."""

    first_seq: int | None
    key: KeyEntry | None = None
    kill: Kill | None = None
    breach: Breach | None = None


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """The outcomes of a group, as stored with it."""
    stored = [
        _StoredOutcome(outcome.first_seq)
        if isinstance(outcome, Committed)
        else _StoredOutcome(None, outcome.key, outcome.kill, outcome.breach)
        for outcome in outcomes
    ]
    return msgspec.json.encode(stored).decode()


def outcomes_from(text: str) -> list[Outcome]:
    """The outcomes of a group that was committed before."""
    stored = msgspec.json.decode(text, type=list[_StoredOutcome])
    return [
        Conflict(outcome.key, outcome.kill, outcome.breach)
        if outcome.first_seq is None
        else Committed(outcome.first_seq)
        for outcome in stored
    ]


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


LINES = """
SELECT group_concat(text || ',"hash":"' || hash || '"}' || char(10), '' ORDER BY seq), count(*), max(seq)
FROM (SELECT seq, text, hash FROM journal WHERE seq > ? ORDER BY seq LIMIT ?)
"""

# CROSS JOIN fixes the join order: one index lookup for each requested key, never a scan of the table.
ORDER_VERSIONS = """
SELECT orders.order_id, orders.version FROM jsonb_each(?) AS requested
CROSS JOIN orders ON orders.order_id = requested.value
"""
OUTBOX_VERSIONS = """
SELECT outbox.order_id, outbox.kind, outbox.number, outbox.version FROM jsonb_each(?) AS requested
CROSS JOIN outbox_orders AS outbox ON (outbox.order_id, outbox.kind, outbox.number)
    = (requested.value->>0, requested.value->>1, requested.value->>2)
"""
POSITION_VERSIONS = """
SELECT stored.account_id, stored.symbol, stored.version FROM jsonb_each(?) AS requested
CROSS JOIN positions AS stored ON (stored.account_id, stored.symbol) = (requested.value->>0, requested.value->>1)
"""
LANES_WITH_QUEUE = """
SELECT value FROM json_each(?) WHERE EXISTS (
    SELECT 1 FROM outbox_orders WHERE lane = value AND status IN ('queued', 'failed') AND kind = 'new'
)
"""
SEEN_EXECUTIONS = """
SELECT stored.venue, stored.exec_id FROM jsonb_each(?) AS requested
CROSS JOIN executions AS stored ON (stored.venue, stored.exec_id) = (requested.value->>0, requested.value->>1)
WHERE stored.order_id <> '' OR stored.stray_client_order_id IS NULL OR stored.stray_client_order_id NOT IN (
    SELECT venue_client_order_id FROM orders WHERE order_id = requested.value->>2
    UNION ALL
    SELECT venue_client_order_id FROM outbox_orders WHERE order_id = requested.value->>2 AND kind = 'amend'
)
"""
KEY_ENTRIES = f"""
SELECT {IDEMPOTENCY_KEYS.qualified("stored")} FROM jsonb_each(?) AS requested
CROSS JOIN idempotency_keys AS stored ON (stored.account_id, stored.operation, stored.idempotency_key)
    = (requested.value->>0, requested.value->>1, requested.value->>2)
"""

SELECT_STATES = f"SELECT {ORDERS.column_list} FROM orders WHERE order_id IN (SELECT value FROM json_each(?))"
SELECT_BY_CLIENT_ID = f"""
SELECT {ORDERS.column_list} FROM orders WHERE venue_client_order_id IN (SELECT value FROM json_each(?))
"""
SELECT_BY_AMEND_ID = f"""
SELECT {ORDERS.qualified("orders")} FROM json_each(?) AS requested
CROSS JOIN outbox_orders AS amend ON amend.venue_client_order_id = requested.value AND amend.kind = 'amend'
CROSS JOIN orders ON orders.order_id = amend.order_id
"""
SELECT_OUTBOX_OF = f"""
SELECT {OUTBOX_ORDERS.column_list} FROM outbox_orders WHERE order_id IN (SELECT value FROM json_each(?))
ORDER BY order_id, kind DESC, number
"""
SELECT_POSITIONS = f"""
SELECT {POSITIONS.qualified("stored")} FROM jsonb_each(?) AS requested
CROSS JOIN positions AS stored ON (stored.account_id, stored.symbol) = (requested.value->>0, requested.value->>1)
"""
ACTIVE_KILLS = f"SELECT {KILLS.column_list} FROM kills INDEXED BY kills_active WHERE cleared_at IS NULL"
KILL_VERSION = "SELECT version FROM kills WHERE kill_id = ?"


_ANY_STRAY = "SELECT 1 FROM executions WHERE stray_client_order_id IS NOT NULL LIMIT 1"
_STRAYS = """
SELECT value->>0 FROM json_each(?)
WHERE EXISTS (SELECT 1 FROM executions WHERE stray_client_order_id BETWEEN value->>0 AND value->>1)
"""


def reported_before(connection: apsw.Connection, ids: Iterable[VenueClientOrderId]) -> set[str]:
    """Those of the ids that a report without an order names, or names with a later generation of the same key."""
    if connection.execute(_ANY_STRAY).fetchone() is None:
        return set()
    ranges = rows.json_array([(client_id, last_generation(client_id)) for client_id in ids])
    return {client_id for (client_id,) in connection.execute(_STRAYS, (ranges,))}


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
        orders: list[_Move] = []
        outbox: list[_Move] = []
        positions: list[_Move] = []
        for number, change in numbered:
            for base, order in change.order_updates:
                if base or thorough:
                    orders.append((number, base, ORDER_KEY(order)))
            for base, row in change.outbox_updates:
                if base or thorough:
                    outbox.append((number, base, OUTBOX_KEY(row)))
            for base, position in change.position_updates:
                positions.append((number, base, POSITION_KEY(position)))
        stale = chain(
            self._stale(connection, orders, ORDER_VERSIONS, _order_version),
            self._stale(connection, outbox, OUTBOX_VERSIONS, _row_version),
            self._stale(connection, positions, POSITION_VERSIONS, _row_version),
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
        versions = self._versions
        for change in changes:
            for _, order in change.order_updates:
                versions[ORDER_KEY(order)] = order.version
            for _, row in change.outbox_updates:
                versions[OUTBOX_KEY(row)] = row.version
            for _, position in change.position_updates:
                versions[POSITION_KEY(position)] = position.version
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
        checked: Sequence[_Move],
        sql: str,
        read: Callable[[Sequence[Any]], tuple[_Key, int]],
    ) -> list[int]:
        """The numbers of the changes whose row has another version than expected."""
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
