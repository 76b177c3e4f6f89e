"""Builds the one statement that writes a group, and the column lists of the trigger that carries it out.

The trigger is `schema/programs/append.sql`; rows travel to it as JSON arrays, in the order of `Table.columns`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from switchyard.adapters.sqlite import rows
from switchyard.adapters.tables import KEY_RESULTS, STATE_TABLES, Table, fragments
from switchyard.domain.ids import last_generation
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome, is_unqueued
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.risk.claims import Breach
from switchyard.domain.risk.kills import Kill

_EVENTS = Table("events", rows.EventRow.__struct_fields__, key=("seq",))
# The columns that statements compare or sort by, which needs one fixed form. The encoder omits the fraction of a whole
# second; the other time columns are only read back.
_COMPARED_TIMES = frozenset({"next_attempt_at", "created_at", "expires_at"})


class AppendGroup(NamedTuple):
    """A row of the view `append_group`: one group, its rows as JSON texts; None where the group has no such rows."""

    events: str | None = None
    new_orders: str | None = None
    changed_orders: str | None = None
    new_outbox: str | None = None
    changed_outbox: str | None = None
    begun: str | None = None
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


def rows_of(changes: Sequence[Change], events: Sequence[rows.EventRow], checked: bool) -> AppendGroup:
    """The rows of the changes and their numbered events; new rows are separate, since only those may be inserted.

    `checked`: it is known which executions may be written; otherwise one that exists already rejects the group.
    """
    executions = rows.json_rows([row for change in changes for row in change.executions])
    orders = [move for change in changes for move in change.order_updates()]
    outbox = list(_numbered_outbox(changes, events))
    return AppendGroup(
        events=rows.json_array(events) if events else None,
        new_orders=rows.json_rows([row for base, row in orders if not base]),
        changed_orders=rows.json_rows([row for base, row in orders if base]),
        # An amend of an order that was never sent is settled in its first commit, with the columns of a later version.
        new_outbox=rows.json_rows([row for base, row in outbox if not base and row.last_error is None]),
        changed_outbox=rows.json_rows([row for base, row in outbox if base or row.last_error is not None]),
        begun=_begun([row for base, row in outbox if is_unqueued(base, row)]),
        new_keys=rows.json_rows([row for change in changes for row in change.keys if row.version == 1]),
        keys=rows.json_rows([row for change in changes for row in change.keys if row.version > 1]),
        positions=rows.json_rows([row for change in changes for _, row in change.position_updates()]),
        new_executions=None if checked else executions,
        checked_executions=executions if checked else None,
        cursors=rows.json_rows([row for change in changes for row in change.cursors]),
        results=rows.json_rows([row for change in changes for row in change.results]),
        new_kills=rows.json_rows(
            [
                msgspec.structs.replace(kill, seq=events[0].seq)
                for change in changes
                for kill in change.kills
                if kill.version == 1
            ]
        ),
        kills=rows.json_rows([kill for change in changes for kill in change.kills if kill.version > 1]),
    )


def _numbered_outbox(changes: Sequence[Change], events: Sequence[rows.EventRow]) -> Iterator[tuple[int, OutboxRow]]:
    """The outbox rows with the versions that they expect; new ones have the numbers of their events."""
    first = 0
    for change in changes:
        for base, row in change.outbox_updates():
            if not base and change.events:
                yield base, msgspec.structs.replace(row, seq=events[first + change.event_place(row)].seq)
            else:
                yield base, row
        first += len(change.events)


def _begun(unqueued: Sequence[OutboxRow]) -> str | None:
    """The attempts that begin with their orders: the lane, and the client order ids of the order and its key."""
    if not unqueued:
        return None
    ids = [(row.lane, row.venue_client_order_id, last_generation(row.venue_client_order_id)) for row in unqueued]
    return rows.json_array(ids)


def program_fragments() -> dict[str, str]:
    """The texts that `schema/programs/append.sql` names in braces."""
    tables = (_EVENTS, *STATE_TABLES)
    texts = fragments(tables)
    for table in tables:
        texts[f"{table.name}.values"] = _values(table, table.columns)
        texts[f"{table.name}.first_values"] = _values(table, table.first_columns)
    texts["key_results.values"] = _values(KEY_RESULTS, KEY_RESULTS.columns)
    return texts


def _values(table: Table, columns: Sequence[str]) -> str:
    """The columns out of `value`, the JSON array of a row of the table."""
    return ", ".join(f"{_value(table.columns.index(column), column)} AS {column}" for column in columns)


def _value(place: int, column: str) -> str:
    value = f"value->>{place}"
    if column == "digest":
        return f"unhex({value})"
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
