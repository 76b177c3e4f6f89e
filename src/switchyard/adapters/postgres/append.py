"""Builds the call of the server-side function `append_group` (`schema/programs/append.sql`) and reads its result."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import msgspec

from switchyard.adapters.postgres.claims import breaches_from, claim_arguments
from switchyard.adapters.postgres.connection import Record
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome, check_kills_alone
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.risk.kills import Kill
from switchyard.ports.journal import Head

_encoder = msgspec.json.Encoder()  # decimals as strings, times in RFC 3339, as `json_populate_recordset` reads them
_taken = msgspec.json.Decoder(dict[int, KeyEntry])
_killed = msgspec.json.Decoder(dict[int, Kill])


class AppendArguments(NamedTuple):
    """The parameters of `append_group`, by name; `…_changes` are numbers of changes within the group."""

    to_shard: int
    new_group_id: str
    commit_time: datetime
    change_count: int
    # Events travel column by column: as JSON, their lines would be escaped here and unescaped on the server.
    event_changes: Sequence[int]
    event_types: Sequence[str]
    event_accounts: Sequence[str]
    event_orders: Sequence[str | None]
    event_data: Sequence[str]
    order_changes: Sequence[int]
    order_rows: str
    order_bases: Sequence[int]
    key_changes: Sequence[int]
    key_rows: str
    outbox_changes: Sequence[int]
    outbox_rows: str
    outbox_bases: Sequence[int]
    outbox_events: Sequence[int]
    execution_changes: Sequence[int]
    execution_rows: str
    cursor_changes: Sequence[int]
    cursor_rows: str
    position_changes: Sequence[int]
    position_rows: str
    position_bases: Sequence[int]
    result_changes: Sequence[int]
    result_rows: str
    claim_lines: str | None
    claim_rows: str | None
    claim_limits: str | None
    claims_are_plain: bool
    kill_row: str | None
    # The head that this process saw last; the database must still have it.
    seen_epoch: int | None
    seen_seq: int | None
    seen_hash: str | None


# The SQLSTATE of a rejected group: the database does not have the head that the process saw last.
ANOTHER_HISTORY = "SY001"
_NAMED = ", ".join(f"{name} => ${place}" for place, name in enumerate(AppendArguments._fields, 1))
APPEND = f"""
SELECT seq_before, conflicts, taken, killed, breaches, head_epoch, head_seq, head_hash,
    current_setting('synchronous_standby_names') AS standby_names FROM append_group({_NAMED})
"""


def arguments_of(shard: int, group_id: str, changes: Sequence[Change], now: datetime) -> AppendArguments:
    """The arguments that append the changes as one group."""
    check_kills_alone(changes)
    events = [(number, event) for number, change in enumerate(changes) for event in change.events]
    orders = [(number, *move) for number, change in enumerate(changes) for move in change.order_updates()]
    outbox = [(number, *move) for number, change in enumerate(changes) for move in change.outbox_updates()]
    positions = [(number, *move) for number, change in enumerate(changes) for move in change.position_updates()]
    key_changes, key_rows = _numbered(changes, "keys")
    execution_changes, execution_rows = _numbered(changes, "executions")
    cursor_changes, cursor_rows = _numbered(changes, "cursors")
    result_changes, result_rows = _numbered(changes, "results")
    claims = claim_arguments(changes)
    return AppendArguments(
        to_shard=shard,
        new_group_id=group_id,
        commit_time=now,
        change_count=len(changes),
        event_changes=[number for number, _ in events],
        event_types=[event.type for _, event in events],
        event_accounts=[event.account_id for _, event in events],
        event_orders=[event.order_id for _, event in events],
        event_data=[event.data for _, event in events],
        order_changes=[number for number, _, _ in orders],
        order_rows=_json([row for _, _, row in orders]),
        order_bases=[base for _, base, _ in orders],
        key_changes=key_changes,
        key_rows=key_rows,
        outbox_changes=[number for number, _, _ in outbox],
        outbox_rows=_json([row for _, _, row in outbox]),
        outbox_bases=[base for _, base, _ in outbox],
        outbox_events=_events_of_rows(changes),
        execution_changes=execution_changes,
        execution_rows=execution_rows,
        cursor_changes=cursor_changes,
        cursor_rows=cursor_rows,
        position_changes=[number for number, _, _ in positions],
        position_rows=_json([row for _, _, row in positions]),
        position_bases=[base for _, base, _ in positions],
        result_changes=result_changes,
        result_rows=result_rows,
        claim_lines=claims.lines,
        claim_rows=claims.rows,
        claim_limits=claims.limits,
        claims_are_plain=claims.are_plain,
        kill_row=_kill_row(changes),
        seen_epoch=None,
        seen_seq=None,
        seen_hash=None,
    )


def with_seen(arguments: AppendArguments, seen: Head | None) -> AppendArguments:
    """The arguments with the head that this process saw last; it is known when the append before has ended."""
    if seen is None:
        return arguments
    return arguments._replace(seen_epoch=seen.epoch, seen_seq=seen.seq, seen_hash=seen.hash)


def outcomes_of(changes: Sequence[Change], result: Record) -> list[Outcome]:
    """The outcome of each change, from the result of `append_group`."""
    conflicts = set(result["conflicts"])
    taken = _taken.decode(result["taken"]) if result["taken"] else {}
    breaches = breaches_from(result["breaches"])
    killed = _killed.decode(result["killed"]) if result["killed"] else {}
    next_seq = result["seq_before"] + 1
    outcomes: list[Outcome] = []
    for number, change in enumerate(changes):
        if number in conflicts:
            # A repeat gets its order, also under a kill.
            outcomes.append(
                Conflict(taken[number])
                if number in taken
                else Conflict(kill=killed.get(number), breach=breaches.get(number))
            )
            continue
        outcomes.append(Committed(next_seq if change.events else 0))
        next_seq += len(change.events)
    return outcomes


def _kill_row(changes: Sequence[Change]) -> str | None:
    """The kill of a change, which is alone in its group."""
    kills = [kill for change in changes for kill in change.kills]
    assert len(kills) < 2, "a change has one kill at most"
    return _encoder.encode(kills[0]).decode() if kills else None


def _numbered(
    changes: Sequence[Change], part: Literal["keys", "executions", "cursors", "results"]
) -> tuple[list[int], str]:
    """The rows of one part of the changes as JSON, and the number of the change of each row."""
    numbered = [(number, row) for number, change in enumerate(changes) for row in getattr(change, part)]
    return [number for number, _ in numbered], _json([row for _, row in numbered])


def _events_of_rows(changes: Sequence[Change]) -> list[int]:
    """For each outbox row the event that describes it, counted from 1 within the group."""
    events: list[int] = []
    first = 1
    for change in changes:
        events += [first + change.event_place(row) for _, row in change.outbox_updates()]
        first += len(change.events)
    return events


def _json(structs: Sequence[Any]) -> str:
    return _encoder.encode(structs).decode()
