"""Operator decisions: end a doubt that no venue can settle, and say what this process knows about it.

Reads the order and what the venue declares; commits an `OperatorDecision`.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, assert_never

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import InvalidField, LookupPending, NotFound, NotInDoubt
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.changes import Change, Cursor
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.facts import DecisionFact, DoubtFact
from switchyard.domain.journal.lines import data_of, decode_order_fact
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OrderState, OutboxKind, OutboxRow
from switchyard.domain.orders.reasons import described
from switchyard.domain.values import check_label
from switchyard.flow.commit.sequencer import Commit, decide
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import Capabilities, Lookup

# Doubts in which 'absent' proves nothing, whatever the venue's lookup can do otherwise.
UNPROVABLE: Final = ("EXECUTED_BEFORE", "LOOKUP_EXPIRED")
REASON_LENGTH_MAX = 500
# The events of an order in which an earlier decision is searched; it is one of the last.
EVENTS_MAX = 50
# Long enough for any order id, and for more rows than an order can have.
_ROW_ID = re.compile(r"([!-9;-~]{1,64})(?::new:1|:(cancel|amend):([0-9]{1,9}))?")


def outbox_id(row: OutboxRow) -> str:
    """The id of an outbox row for people: the order's id, and for a cancel or an amend its kind and number as well."""
    return row.order_id if row.kind == "new" else f"{row.order_id}:{row.kind}:{row.number}"


def parse_outbox_id(text: str) -> tuple[OrderId, OutboxKind, int]:
    """The row of such an id."""
    matched = _ROW_ID.fullmatch(text)
    if matched is None:
        raise InvalidField("ID", "must look like ord_…, ord_…:cancel:1 or ord_…:amend:1")
    order_id, kind, number = matched.groups()
    if number is None:
        return OrderId(order_id), "new", 1
    return OrderId(order_id), "cancel" if kind == "cancel" else "amend", int(number)


def no_such_row(row_id: str) -> NotFound:
    """The error for an id that no outbox row has."""
    return NotFound(f"the outbox row {row_id} was not found; `switchyard outbox list` shows the ids")


def check_decision(row_id: str, decision: DecisionFact) -> None:
    """Raise InvalidField for a malformed decision; needs no database."""
    check_label("by", decision.by)
    check_label("reason", decision.reason, REASON_LENGTH_MAX)
    parse_outbox_id(row_id)
    if decision.resend and decision.verdict != "not-sent":
        raise InvalidField("resend", "goes together with `--as not-sent` only")


async def end_doubt(
    journal: Journal,
    queries: Queries,
    commit: Commit,
    clock: Clock,
    *,
    row_id: str,
    decision: DecisionFact,
    lookup_decides: Callable[[VenueName], Awaitable[bool]],
) -> Order:
    """Record an operator's decision about a row in doubt; returns the order after the decision.

    `lookup_decides` tells whether a venue's own lookup settles such a doubt: a person may then not decide `not-sent`.
    """
    fact = decision
    check_decision(row_id, fact)
    order_id, kind, number = parse_outbox_id(row_id)
    state = (await journal.load([order_id])).get(order_id)
    if state is None:
        raise no_such_row(row_id)
    is_pending = fact.verdict == "not-sent" and kind != "cancel" and await lookup_decides(state.order.venue)

    def decide_newest(state: OrderState) -> Change:
        row = next((row for row in state.outbox if row.key == (order_id, kind, number)), None)
        if row is None:
            raise no_such_row(row_id)
        change = decisions.decide_by_hand(state, row, fact, clock.now())
        if is_pending and row.last_error not in UNPROVABLE:
            raise LookupPending(
                f"{row.venue} can still be asked about this order, and its answer decides; only `--as sent` is "
                f"possible. If {row.venue} is gone for good, start a worker with VENUE_LOOKUP_{row.venue.upper()}=none"
            )
        return change

    try:
        change = await decide(journal, commit, order_id, decide_newest)
    except NotInDoubt as error:
        raise await _with_decider(error, queries, order_id) from None
    assert change is not None, "a decision always changes the row, or raises NotInDoubt"
    return change.orders[0]


async def _with_decider(error: NotInDoubt, queries: Queries, order_id: OrderId) -> NotInDoubt:
    """The error, naming the operator who decided before, if one did."""
    for event in reversed(await queries.last_events(order_id=order_id, limit=EVENTS_MAX)):
        if event.type == "OperatorDecision":
            earlier = decode_order_fact(data_of(event)).decision
            if earlier is not None:
                return NotInDoubt(
                    error.status, f"{earlier.by} decided {earlier.verdict} at {event.at:%Y-%m-%d %H:%M:%S}Z"
                )
    return error


class Settling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker does about a row in doubt at a venue."""

    lookup: Lookup
    absent_after_seconds: float | None
    """How long the venue must have been answering, since the sender gave up, before absence is proven; None: never."""
    sequence_proof: bool = False
    """Whether the venue can prove that it never received the message."""


class Decider(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that settles the doubts at a venue, as other processes see it."""

    settling: Settling | None = None
    """What the one that started last declared; None if none has opened the venue on this database."""
    is_running: bool = False
    """Whether a process that has this venue is known to run now."""


async def declare(
    journal: Journal, commit: Commit, venue: VenueName, settling: Settling, *, lookup_decides: bool
) -> None:
    """Record what this process's settings say; called before the first send to the venue."""
    cursor = declaration(venue, settling, lookup_decides=lookup_decides)
    if await journal.cursor(cursor.name) != cursor:
        await commit(Change(cursors=(cursor,)))


async def declared(journal: Journal, venue: VenueName) -> bool | None:
    """Whether lookups settle all doubts, as the workers declared; None if no worker did."""
    mark = await journal.cursor(declared_name(venue))
    return None if mark is None else bool(mark.seq)


def declaration(venue: VenueName, settling: Settling, *, lookup_decides: bool) -> Cursor:
    """The cursor that keeps the declaration: its number is 1 or 0, its text is how doubts are settled."""
    text = msgspec.json.encode(settling).decode()
    return Cursor(name=declared_name(venue), epoch=0, seq=int(lookup_decides), hash=text)


def class_text(capabilities: Capabilities) -> str:
    """The capabilities that decide what becomes of an order in doubt and of a report, in the words of the settings."""
    told = {
        "dedupe": capabilities.dedupe,
        "dedupe_ttl_sec": _seconds(capabilities.dedupe_ttl),
        "lookup": capabilities.lookup,
        "window_sec": _seconds(capabilities.acceptance_window),
        "hop_hold_sec": _seconds(capabilities.hop_hold),
        "request_expiry": str(capabilities.request_expiry).lower(),
        "exec_id_scope": capabilities.execution_ids,
        "amend": capabilities.amend,
    }
    if capabilities.lookup_keeps is not None:
        told["lookup_keeps_sec"] = _seconds(capabilities.lookup_keeps)
    if capabilities.sessions != "shared":
        told["sessions"] = capabilities.sessions
    if capabilities.sequence_proof:
        told["sequence_proof"] = "true"
    return " ".join(f"{name}={value}" for name, value in told.items())


def settling_in(text: str | None) -> Settling | None:
    """How doubts are settled, out of the text of a declaration."""
    return msgspec.json.decode(text, type=Settling) if text else None


def _seconds(time: timedelta | None) -> str:
    return "unset" if time is None else f"{time.total_seconds():g}"


def declared_name(venue: VenueName) -> str:
    """The name of the cursor."""
    return f"declared:{venue}"


NextStep = Literal[
    "send",  # a worker sends it when it is due
    "outcome",  # a worker is sending it: its outcome is recorded, or recovery brings the row into doubt
    "lookup",  # the venue is asked; found settles, and absent proves absence after the waiting time
    "found",  # the venue is asked; found settles, absent proves nothing
    "report",  # the venue cannot be asked: an execution report settles
    "unknown",  # no process that would settle it is known to run, so nothing can be said about it
    "none",  # settled
]

_STEPS: dict[NextStep, str] = {
    "send": "send",
    "outcome": "wait for the outcome",
    "lookup": "ask the venue",
    "found": "ask the venue; absent proves nothing",
    "report": "wait for a report or a person",
    "unknown": "no worker of its venue runs",
    "none": "",
}


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One outbox row for a person; the texts are not parsed by anything."""

    id: str
    row: OutboxRow
    age_seconds: float
    """Since the row last changed; a row in doubt came into doubt then."""
    next_step: NextStep
    decided_after_seconds: float | None
    """How long the venue must have been answering, since the sender gave up, before absence is proven."""
    doubt: DoubtFact | None
    """What the journal says about the last doubt of this row; none in lists."""
    happened: str
    awaited: str
    decided: str
    can_do: str


def next_step(row: OutboxRow, decider: Decider) -> NextStep:
    """What happens next to the row."""
    match row.status:
        case "queued" | "failed":
            return "send"
        case "sending":
            return "outcome"
        case "sent" | "dead":
            return "none"
        case "uncertain":
            settling = decider.settling
            if settling is None or not decider.is_running:
                return "unknown"
            if settling.lookup == "none" and not settling.sequence_proof:
                return "report"
            is_provable = settling.absent_after_seconds is not None and row.last_error not in UNPROVABLE
            return "lookup" if is_provable else "found"
        case unreachable:
            assert_never(unreachable)


def describe_step(step: NextStep) -> str:
    """The next step in a few words."""
    return _STEPS[step]


def last_doubt(row: OutboxRow, events: Sequence[JournalEvent]) -> DoubtFact | None:
    """What the newest `OrderUncertain` event about this row says; `events` come newest first."""
    for event in events:
        fact = decode_order_fact(data_of(event))
        if any((changed.kind, changed.number) == (row.kind, row.number) for changed in fact.outbox):
            return fact.doubt
    return None


def standing(rows: Sequence[OutboxRow], decider: Decider) -> str | None:
    """How the doubt about one of an order's rows ends, in a sentence; None if there is no doubt."""
    row = next((row for row in rows if row.status == "uncertain"), None)
    if row is None:
        return None
    step = next_step(row, decider)
    wait = None if decider.settling is None else decider.settling.absent_after_seconds
    match step:
        case "lookup":
            return f"it settles by itself: {row.venue} is asked, and its 'absent' counts after {wait:g} s of answering"
        case "found":
            why = "there any more, because it no longer keeps orders of this age" * (row.last_error == "LOOKUP_EXPIRED")
            return (
                f"a worker asks {row.venue}, but 'absent' proves nothing {why or 'there'}: a report or a person has to "
                "settle it unless the order is found"
            )
        case "report":
            return f"it does not settle by itself: {row.venue} has no lookup, so a report or a person has to"
        case _:
            return (
                f"it cannot be told whether it settles by itself, because no worker that sends to {row.venue} is known "
                "to run: start one, then ask again"
            )


def explain(row: OutboxRow, decider: Decider, now: datetime, doubt: DoubtFact | None = None) -> Explanation:
    """The row in words."""
    step = next_step(row, decider)
    wait = None if decider.settling is None or step != "lookup" else decider.settling.absent_after_seconds
    return Explanation(
        id=outbox_id(row),
        row=row,
        age_seconds=max((now - row.updated_at).total_seconds(), 0.0),
        next_step=step,
        decided_after_seconds=wait,
        doubt=doubt,
        happened=_happened(row, doubt),
        awaited=_awaited(row, step, decider),
        decided=_decided(row, step, wait) + _decided_by_proof(step, decider),
        can_do=_can_do(row, step),
    )


def _happened(row: OutboxRow, doubt: DoubtFact | None) -> str:
    what = "the order" if row.kind == "new" else f"the {row.kind}"
    error = "" if row.last_error is None else f", last {described(row.last_error, row.error_detail)}"
    if row.bytes_sent:
        written = f"bytes of {what} may have reached the venue"
    else:
        written = f"no byte of {what} was written to the venue"
    address = "" if doubt is None or doubt.address is None else f" at {doubt.address}"
    since = "" if doubt is None else f"; the attempt in doubt began at {doubt.since:%Y-%m-%d %H:%M:%S} UTC"
    return f"{row.attempt} attempt(s){error}; {written}{address}{since}"


def _awaited(row: OutboxRow, step: NextStep, decider: Decider) -> str:
    match step:
        case "send":
            idle = "" if decider.is_running else f"; no worker that sends to {row.venue} is known to run now"
            return f"the next attempt, not before {row.next_attempt_at:%Y-%m-%d %H:%M:%S} UTC{idle}"
        case "outcome":
            return f"the outcome of the attempt by worker {row.worker}, or proof that the worker is gone"
        case "lookup":
            gone = "" if row.worker is None else f"proof that worker {row.worker} is gone, and "
            return f"{gone}the venue's answer to a lookup of {row.venue_client_order_id}, or an execution report"
        case "found":
            return f"a lookup that finds {row.venue_client_order_id}, an execution report, or a person's decision"
        case "report":
            return "an execution report or a person's decision: the venue has no lookup"
        case "unknown":
            return f"a worker that sends to {row.venue}: none is known to run, and only it can tell how this is settled"
        case "none":
            return "nothing: the row is settled"
        case unreachable:
            assert_never(unreachable)


def _decided(row: OutboxRow, step: NextStep, wait: float | None) -> str:
    if wait is not None:
        return (
            f"at once if the venue finds it; as absent after {wait:g} s of answering since its sender "
            "gave up (metric venue_answering_seconds; a failed probe or a restart of the worker starts it anew)"
        )
    if step == "found" and row.last_error == "EXECUTED_BEFORE":
        return "never by itself if the venue does not find it: the venue has reported on this client order id before"
    if step == "found" and row.last_error == "LOOKUP_EXPIRED":
        return (
            f"never by itself if the venue does not find it: {row.venue} finds orders that have ended for a limited "
            "time only (VENUE_LOOKUP_KEEPS_SEC_), which has passed since the order was accepted"
        )
    if step == "found":
        return (
            "never by itself if the venue does not find it: what is declared of its lookup, its window and its "
            "deduplication proves no absence (`switchyard venues describe`)"
        )
    if step == "report":
        return "never by itself"
    if step == "unknown":
        return "cannot be told here; not while no worker of the venue runs"
    return "" if step == "none" else "by the running worker"


def _decided_by_proof(step: NextStep, decider: Decider) -> str:
    if decider.settling is None or not decider.settling.sequence_proof or step not in ("lookup", "found"):
        return ""
    return "; sooner if the venue proves that it never received the message"


def _can_do(row: OutboxRow, step: NextStep) -> str:
    if step in ("found", "report", "unknown"):
        start = "" if step != "unknown" else f"start the worker that has {row.venue} and ask again, or "
        return (
            f"{start}look for {row.venue_client_order_id} in the venue's own console, then run "
            f"`switchyard outbox resolve {outbox_id(row)} --as sent|not-sent --by NAME --reason TEXT`"
        )
    if step == "lookup":
        return (
            "wait; if the venue's console shows the order, `switchyard outbox resolve … --as sent` ends the doubt now"
        )
    return "nothing is needed"
