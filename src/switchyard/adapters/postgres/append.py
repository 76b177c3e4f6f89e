"""The append of a group on PostgreSQL: the arguments of `append_group` and its answers."""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import astuple

from switchyard.adapters.postgres.connection import Record
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.changes import Change, Committed, Conflict, Outcome, check_kills_alone
from switchyard.domain.orders.keys import KeyEntry
from switchyard.domain.orders.order import Order
from switchyard.domain.risk.claims import (
    NO_LIMITS,
    SUMS,
    Added,
    Breach,
    BreachCode,
    Claim,
    Limits,
    Reserved,
    added_by,
    claimed_by,
)
from switchyard.domain.risk.exposure import claimed_order
from switchyard.domain.risk.kills import Kill
from switchyard.domain.values import ZERO
from switchyard.ports.journal import Head

_encoder = msgspec.json.Encoder()  # decimals as strings, as `json_to_recordset` reads them
_breaches = msgspec.json.Decoder(dict[int, tuple[BreachCode, Decimal, Decimal, bool]])
_Bound = TypeVar("_Bound", int, Decimal)


class ClaimArguments(NamedTuple):
    """The arguments of `append_group` that start with `claim`; none where no change has a claim."""

    lines: str | None = None
    rows: str | None = None
    limits: str | None = None
    are_plain: bool = False
    """Whether the lines are all that the orders of the group change in the totals."""


class _Line(msgspec.Struct, omit_defaults=True):
    """An account, symbol and currency: what all claims of the group add, and their strictest limits.

    The first line of an account and currency has the same for these (`purse_`), the first one of an account also for
    its orders (`owner_`) and its window.
    """

    line: int
    purse: int
    owner: int
    account_id: str
    symbol: str
    currency: str
    buys: Decimal = ZERO
    sells: Decimal = ZERO
    orders: int = 0
    notional: Decimal = ZERO
    gross: Decimal | None = None
    """None where it is the notional."""
    reducing_buys: bool = False
    """Whether a BUY of the group was taken as reducing."""
    reducing_sells: bool = False
    orders_max: int | None = None
    notional_max: Decimal | None = None
    position_max: Decimal | None = None
    gross_max: Decimal | None = None
    whole: bool = False
    """Whether a claim has to leave nothing of the position: such claims are judged one by one."""
    needs_totals: bool = False
    """Whether a limit is on a sum over the account's symbols."""
    needs_positions: bool = False
    purse_notional: Decimal | None = None
    """None where the purse has this line alone; so with the other sums."""
    purse_gross: Decimal | None = None
    day: date | None = None
    purse_notional_max: Decimal | None = None
    purse_gross_max: Decimal | None = None
    purse_loss_max: Decimal | None = None
    owner_orders: int | None = None
    owner_orders_max: int | None = None
    since: OrderId | None = None
    window_max: int | None = None

    def limit(self, limits: Limits) -> None:
        self.orders_max = _stricter(self.orders_max, limits.symbol_open_orders)
        self.notional_max = _stricter(self.notional_max, limits.symbol_open_notional)
        self.position_max = _stricter(self.position_max, limits.position)
        self.gross_max = _stricter(self.gross_max, limits.symbol_gross_exposure)

    def limit_purse(self, limits: Limits) -> None:
        self.purse_notional_max = _stricter(self.purse_notional_max, limits.open_notional)
        self.purse_gross_max = _stricter(self.purse_gross_max, limits.gross_exposure)
        self.purse_loss_max = _stricter(self.purse_loss_max, limits.daily_loss)
        self.needs_positions = self.purse_gross_max is not None or self.purse_loss_max is not None
        self.needs_totals = self.needs_totals or self.needs_positions or self.purse_notional_max is not None

    def limit_owner(self, limits: Limits, since: OrderId | None) -> None:
        self.owner_orders_max = _stricter(self.owner_orders_max, limits.open_orders)
        if since is not None:
            self.window_max = _stricter(self.window_max, limits.window_orders)
        bounds = (self.owner_orders_max, self.window_max)
        self.needs_totals = self.needs_totals or any(bound is not None for bound in bounds)


def claim_arguments(changes: Sequence[Change]) -> ClaimArguments:
    """The claims of a group."""
    if not any(change.claims for change in changes):
        return ClaimArguments()
    rows = _Rows()
    for number, change in enumerate(changes):
        for claim in change.claims:
            rows.add(number, claim, claimed_order(change, claim))
    return rows.arguments(are_plain=all(_is_plain(change) for change in changes if change.orders))


def _is_plain(change: Change) -> bool:
    """Whether the change accepts one order, not as a reducing one, and has no other."""
    if len(change.claims) != 1 or change.orders[0].version != 1 or change.orders[0].reducing:
        return False
    return len(change.orders) == 1 or all(order.order_id == change.claims[0].order_id for order in change.orders)


def breaches_from(text: str | None) -> dict[int, Breach]:
    """The breaches by the number of their change."""
    return {} if text is None else {number: Breach(*parts) for number, parts in _breaches.decode(text).items()}


class _Totals:
    """The claims of one account, symbol and currency; their purse and window are in the first lines of these."""

    __slots__ = ("limit_number", "limits", "line", "owner", "purse", "reducing")

    def __init__(self, line: _Line, purse: _Line, owner: _Line) -> None:
        self.line = line
        self.purse = purse
        self.owner = owner
        self.limits: Limits | None = None
        """Of the claim before; most claims of an account and symbol share one object."""
        self.limit_number = 0
        self.reducing = ZERO
        """The part of the notional that belongs to reducing orders."""

    def add(self, order: Order, held: Reserved) -> None:
        line = self.line
        if order.side == "BUY":
            line.buys = SUMS.add(line.buys, held.qty)
            line.reducing_buys = line.reducing_buys or order.reducing
        else:
            line.sells = SUMS.add(line.sells, held.qty)
            line.reducing_sells = line.reducing_sells or order.reducing
        line.orders += 1
        line.notional = SUMS.add(line.notional, held.notional)
        if order.reducing:
            self.reducing = SUMS.add(self.reducing, held.notional)

    def add_amend(self, order: Order, added: Added) -> None:
        # What an amend takes from a total makes no room here: the claims before it must fit without it.
        notional, gross = max(added.notional, ZERO), max(added.gross, ZERO)
        self.add(order, Reserved(max(added.qty, ZERO), notional))
        self.line.orders -= 1
        counted = ZERO if order.reducing else notional
        self.reducing = SUMS.add(self.reducing, SUMS.subtract(counted, gross))

    def sum_up(self) -> None:
        """Add the line to its purse and to its owner, where it is not their first."""
        line, purse, owner = self.line, self.purse, self.owner
        if self.reducing:
            line.gross = SUMS.subtract(line.notional, self.reducing)
        if purse is not line:
            purse.purse_notional = SUMS.add(_first(purse.purse_notional, purse.notional), line.notional)
            gross = _first(purse.purse_gross, purse.gross, purse.notional)
            purse.purse_gross = SUMS.add(gross, _first(line.gross, line.notional))
        if owner is not line:
            owner.owner_orders = _first(owner.owner_orders, owner.orders) + line.orders


class _Rows:
    def __init__(self) -> None:
        self._totals: dict[tuple[str, str, str], _Totals] = {}
        self._purses: dict[tuple[str, str], _Line] = {}
        self._owners: dict[str, _Line] = {}
        self._limits: dict[Limits, int] = {}
        self._claims: list[tuple[object, ...]] = []

    def add(self, number: int, claim: Claim, order: Order) -> None:
        """Add a claim; `order` is its order."""
        held = claimed_by(order)
        added = added_by(claim, order, held)
        key = (order.account_id, order.symbol, order.currency or "")
        totals = self._totals.get(key)
        if totals is None:
            totals = self._totals[key] = self._new(*key)
        if claim.before is None:
            totals.add(order, held)
        else:
            totals.add_amend(order, added)
        if claim.whole:
            totals.line.whole = True
        limits = NO_LIMITS if order.reducing else claim.limits  # a reducing order has none
        if limits is not totals.limits:
            totals.limits = limits
            totals.limit_number = self._limits.setdefault(limits, len(self._limits) + 1)
            totals.line.limit(limits)
            totals.purse.limit_purse(limits)
            totals.owner.limit_owner(limits, claim.since)
        if claim.day is not None:
            totals.purse.day = claim.day
        owner = totals.owner
        if claim.since is not None and (owner.since is None or claim.since < owner.since):
            owner.since = claim.since
        numbers = (number, totals.line.line, totals.limit_number)
        amounts = (order.side, added.qty, added.notional, order.reducing, claim.whole, added.orders, added.gross)
        self._claims.append((*numbers, *amounts))

    def arguments(self, *, are_plain: bool) -> ClaimArguments:
        """All claims that were added."""
        for totals in self._totals.values():
            totals.sum_up()
        return ClaimArguments(
            lines=_encoder.encode([totals.line for totals in self._totals.values()]).decode(),
            rows=_encoder.encode(self._claims).decode(),
            limits=_encoder.encode([astuple(limits) for limits in self._limits]).decode(),
            are_plain=are_plain,
        )

    def _new(self, account: str, symbol: str, currency: str) -> _Totals:
        purse, owner = self._purses.get((account, currency)), self._owners.get(account)
        line = _Line(
            line=len(self._totals) + 1,
            purse=purse.purse if purse else len(self._purses) + 1,
            owner=owner.owner if owner else len(self._owners) + 1,
            account_id=account,
            symbol=symbol,
            currency=currency,
        )
        if purse is None:
            purse = self._purses[account, currency] = line
        if owner is None:
            owner = self._owners[account] = line
        return _Totals(line, purse, owner)


def _first(*amounts: _Bound | None) -> _Bound:
    """The first amount that there is."""
    return next(amount for amount in amounts if amount is not None)


def _stricter(one: _Bound | None, other: _Bound | None) -> _Bound | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


# decimals as strings, times in RFC 3339, as `json_populate_recordset` reads them
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
    orders = [(number, *move) for number, change in enumerate(changes) for move in change.order_updates]
    outbox = [(number, *move) for number, change in enumerate(changes) for move in change.outbox_updates]
    positions = [(number, *move) for number, change in enumerate(changes) for move in change.position_updates]
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
        events += [first + change.event_place(row) for _, row in change.outbox_updates]
        first += len(change.events)
    return events


def _json(structs: Sequence[Any]) -> str:
    return _encoder.encode(structs).decode()
