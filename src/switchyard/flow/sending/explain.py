"""Explains an outbox row to an operator: what happened, what is awaited, when it is decided, what a person can do.

Reads nothing: the caller gives the row and what the process says that settles its doubts. The waiting time of a running
process is not in the rows, so a decision is announced as 'after so many seconds of answering'.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, assert_never

import msgspec

from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.facts import DoubtFact
from switchyard.domain.journal.lines import data_of, decode_order_fact
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.orders.reasons import described
from switchyard.flow.sending.declared import Decider
from switchyard.flow.sending.operator import outbox_id

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
            if settling.lookup == "none":
                return "report"
            is_provable = settling.absent_after_seconds is not None and row.last_error != "EXECUTED_BEFORE"
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
            return (
                f"a worker asks {row.venue}, but 'absent' proves nothing there: a report or a person has to settle it "
                "unless the order is found"
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
        decided=_decided(row, step, wait),
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
    if step == "found":
        return (
            "never by itself if the venue does not find it: that needs VENUE_LOOKUP_ all, VENUE_WINDOW_SEC_ and "
            "deduplication"
        )
    if step == "report":
        return "never by itself"
    if step == "unknown":
        return "cannot be told here; not while no worker of the venue runs"
    return "" if step == "none" else "by the running worker"


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
