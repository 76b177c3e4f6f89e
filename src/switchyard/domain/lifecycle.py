"""The order lifecycle as one table: (status, what happened) → status."""

from typing import Final, Literal

Status = Literal[
    "ACCEPTED",  # durable here, nothing sent yet
    "SENDING",  # an attempt is committed; bytes may be on their way
    "UNKNOWN",  # doubt: the venue may or may not have it
    "WORKING",  # the venue has it
    "PARTIALLY_FILLED",
    "CANCEL_REQUESTED",  # the venue has it, or will have, and is asked to drop it
    "FILLED",
    "CANCELED",
    "REJECTED",
    "EXPIRED",
]

FINAL: Final[frozenset[Status]] = frozenset({"FILLED", "CANCELED", "REJECTED", "EXPIRED"})

Step = Literal[
    "attempt",  # we are about to send
    "acknowledge",  # the venue has the order
    "unsent",  # proven: nothing reached the venue
    "doubt",  # the answer was lost or unreadable
    "reject",  # the venue's documented rejection
    "expire",
    "cancel",  # the account asks to cancel
    "cancel_rejected",  # the venue would not cancel; the order goes on, unfilled
    "cancel_rejected_part_filled",  # the same, for an order that has fills
    "canceled",
    "part_fill",
    "fill",  # the whole quantity is filled now
]

_TABLE: Final[dict[Status, dict[Step, Status]]] = {
    "ACCEPTED": {
        "attempt": "SENDING",
        "cancel": "CANCELED",  # it never left the house, so nobody has to be asked
        "reject": "REJECTED",
        "expire": "EXPIRED",
        # The venue knows better than our 'unsent': evidence is taken in every state.
        "acknowledge": "WORKING",
        "doubt": "UNKNOWN",
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",
        "fill": "FILLED",
    },
    "SENDING": {
        "acknowledge": "WORKING",
        "unsent": "ACCEPTED",
        "doubt": "UNKNOWN",
        "reject": "REJECTED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",  # a report may overtake the answer to the send
        "fill": "FILLED",
    },
    "UNKNOWN": {
        "attempt": "UNKNOWN",  # a resend does not end the doubt about the send before it
        "acknowledge": "WORKING",
        "unsent": "ACCEPTED",
        "doubt": "UNKNOWN",
        "reject": "REJECTED",
        "expire": "EXPIRED",
        "cancel": "UNKNOWN",  # doubt outlives the wish to cancel; the cancel waits for the order's fate
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",
        "fill": "FILLED",
    },
    "WORKING": {
        "acknowledge": "WORKING",
        "reject": "REJECTED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",
        "fill": "FILLED",
    },
    "PARTIALLY_FILLED": {
        "acknowledge": "PARTIALLY_FILLED",
        "reject": "REJECTED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",
        "fill": "FILLED",
    },
    "CANCEL_REQUESTED": {
        "attempt": "CANCEL_REQUESTED",  # the resend that settles the order's fate, before its cancel
        "acknowledge": "CANCEL_REQUESTED",
        "unsent": "CANCELED",  # nothing is at the venue and nobody wants it there any more
        "doubt": "UNKNOWN",
        "reject": "REJECTED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "cancel_rejected": "WORKING",
        "cancel_rejected_part_filled": "PARTIALLY_FILLED",
        "canceled": "CANCELED",
        "part_fill": "CANCEL_REQUESTED",
        "fill": "FILLED",
    },
    # After the end nothing is dropped: a late fill is money that moved.
    "FILLED": {
        "acknowledge": "FILLED",
        "reject": "FILLED",
        "expire": "FILLED",
        "canceled": "FILLED",  # fills win over cancels
        "part_fill": "FILLED",
        "fill": "FILLED",
        "doubt": "FILLED",
    },
    "CANCELED": {
        "acknowledge": "CANCELED",
        "reject": "CANCELED",
        "expire": "CANCELED",
        "canceled": "CANCELED",
        "part_fill": "CANCELED",  # the quantity counts, the rest stays cancelled
        "fill": "FILLED",  # the fill crossed our cancel on the wire
        "doubt": "CANCELED",
    },
    "REJECTED": {
        "acknowledge": "REJECTED",
        "reject": "REJECTED",
        "expire": "REJECTED",
        "canceled": "REJECTED",
        "part_fill": "REJECTED",
        "fill": "FILLED",  # the venue contradicts its own rejection; the position is real all the same
        "doubt": "REJECTED",
    },
    "EXPIRED": {
        "acknowledge": "EXPIRED",
        "reject": "EXPIRED",
        "expire": "EXPIRED",
        "canceled": "EXPIRED",
        "part_fill": "EXPIRED",
        "fill": "FILLED",
        "doubt": "EXPIRED",
    },
}


class ImpossibleStep(Exception):
    """The table has no such row: a defect here, never the caller's fault."""

    def __init__(self, status: Status, step: Step) -> None:
        super().__init__(f"no step {step!r} from {status}")
        self.status = status
        self.step = step


def is_final(status: Status) -> bool:
    """Whether the order has ended (late fills are recorded all the same)."""
    return status in FINAL


def next_status(status: Status, step: Step) -> Status:
    """Where the step leads."""
    found = _TABLE[status].get(step)
    if found is None:
        raise ImpossibleStep(status, step)
    return found
