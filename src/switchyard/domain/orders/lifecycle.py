"""The order lifecycle as one table: (status, step) → status."""

from typing import Final, Literal

Status = Literal[
    "ACCEPTED",  # committed to the journal; no attempt is under way
    "SENDING",  # an attempt is committed; bytes may have left
    "UNKNOWN",  # in doubt: the venue may or may not have it
    "WORKING",  # the venue has it
    "PARTIALLY_FILLED",  # the venue has it, and a part of it is filled
    "CANCEL_REQUESTED",  # the venue has the order, or is about to get it, and a cancel is queued or sent
    "FILLED",  # the whole quantity is filled
    "CANCELED",  # it ended by a cancel; a part may be filled
    "REJECTED",  # a pre-trade check or the venue rejected it, or it could not be sent
    "EXPIRED",  # its time in force ended; a part may be filled
]

FINAL: Final[frozenset[Status]] = frozenset({"FILLED", "CANCELED", "REJECTED", "EXPIRED"})

Step = Literal[
    "attempt",  # an attempt to send begins
    "acknowledge",  # the venue has the order
    "acknowledge_with_cancel",  # the venue has an order that was in doubt, and a cancel of it is pending
    "unsent",  # proven: nothing reached the venue
    "doubt",  # the answer was lost or unreadable
    "reject",  # the venue's documented rejection
    "reject_part_filled",  # the venue reports an order as rejected that has fills: the rest of it has ended
    "expire",  # the time in force ended, here or at the venue
    "cancel",  # the account asks to cancel
    "cancel_rejected",  # the venue rejected the cancel of an order without fills
    "cancel_rejected_part_filled",  # the venue rejected the cancel of an order with fills
    "canceled",  # the venue reports it as cancelled
    "part_fill",  # a part of the quantity is filled now
    "fill",  # the whole quantity is filled now
    "reopen",  # the venue shows an order at work that had ended without a report of the venue
    "reopen_part_filled",  # the same, with a fill
]

_TABLE: Final[dict[Status, dict[Step, Status]]] = {
    "ACCEPTED": {
        "attempt": "SENDING",
        "cancel": "CANCELED",  # never sent, so there is nothing to cancel at the venue
        "reject": "REJECTED",
        "reject_part_filled": "CANCELED",
        "expire": "EXPIRED",
        # Evidence from the venue is applied in every status, also after an attempt that was taken for unsent.
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
        "reject_part_filled": "CANCELED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",  # a report may arrive before the answer to the send
        "fill": "FILLED",
    },
    "UNKNOWN": {
        "attempt": "UNKNOWN",  # a resend does not settle the earlier attempt
        "acknowledge": "WORKING",
        "acknowledge_with_cancel": "CANCEL_REQUESTED",
        "unsent": "ACCEPTED",
        "doubt": "UNKNOWN",
        "reject": "REJECTED",
        "reject_part_filled": "CANCELED",
        "expire": "EXPIRED",
        "cancel": "UNKNOWN",  # the cancel is queued, and sent once the order is known to be at the venue
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",
        "fill": "FILLED",
    },
    "WORKING": {
        "acknowledge": "WORKING",
        "reject": "REJECTED",
        "reject_part_filled": "CANCELED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",
        "fill": "FILLED",
    },
    "PARTIALLY_FILLED": {
        "acknowledge": "PARTIALLY_FILLED",
        "reject": "REJECTED",
        "reject_part_filled": "CANCELED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "canceled": "CANCELED",
        "part_fill": "PARTIALLY_FILLED",
        "fill": "FILLED",
    },
    "CANCEL_REQUESTED": {
        "attempt": "CANCEL_REQUESTED",  # a resend settles whether the venue has the order; the cancel follows
        "acknowledge": "CANCEL_REQUESTED",
        "unsent": "CANCELED",  # nothing is at the venue, and the account asked to cancel
        "doubt": "UNKNOWN",
        "reject": "REJECTED",
        "reject_part_filled": "CANCELED",
        "expire": "EXPIRED",
        "cancel": "CANCEL_REQUESTED",
        "cancel_rejected": "WORKING",
        "cancel_rejected_part_filled": "PARTIALLY_FILLED",
        "canceled": "CANCELED",
        "part_fill": "CANCEL_REQUESTED",
        "fill": "FILLED",
    },
    # Reports are applied after the end as well: a late fill has moved money.
    "FILLED": {
        "acknowledge": "FILLED",
        "reject": "FILLED",
        "reject_part_filled": "FILLED",
        "expire": "FILLED",
        "canceled": "FILLED",  # a cancel of nothing: the whole quantity is filled
        "part_fill": "FILLED",
        "fill": "FILLED",
        "doubt": "FILLED",
    },
    "CANCELED": {
        "acknowledge": "CANCELED",
        "reject": "CANCELED",
        "reject_part_filled": "CANCELED",
        "expire": "CANCELED",
        "canceled": "CANCELED",
        "part_fill": "CANCELED",  # the fill counts, the rest stays cancelled
        "fill": "FILLED",  # the fill and the cancel crossed on the wire
        "reopen": "WORKING",  # it was cancelled as never sent
        "reopen_part_filled": "PARTIALLY_FILLED",
        "doubt": "CANCELED",
    },
    "REJECTED": {
        "acknowledge": "REJECTED",
        "reject": "REJECTED",
        "reject_part_filled": "CANCELED",
        "expire": "REJECTED",
        "canceled": "REJECTED",
        "part_fill": "CANCELED",  # an order with a fill was not rejected; the rest of it has ended
        "fill": "FILLED",  # the venue contradicts its own rejection, and the position is real
        # A rejection in the answer to the send, and a report that came later: the same as if it had come before.
        "reopen": "WORKING",
        "reopen_part_filled": "PARTIALLY_FILLED",
        "doubt": "REJECTED",
    },
    "EXPIRED": {
        "acknowledge": "EXPIRED",
        "reject": "EXPIRED",
        "reject_part_filled": "EXPIRED",
        "expire": "EXPIRED",
        "canceled": "EXPIRED",
        "part_fill": "EXPIRED",
        "fill": "FILLED",
        "reopen": "WORKING",  # it expired as never sent, or as absent at the venue
        "reopen_part_filled": "PARTIALLY_FILLED",
        "doubt": "EXPIRED",
    },
}


class ImpossibleStep(Exception):
    """The table has no such row: a defect of Switchyard, not an error of the caller."""

    def __init__(self, status: Status, step: Step) -> None:
        super().__init__(f"the lifecycle has no step {step!r} from status {status}")
        self.status = status
        self.step = step


def is_final(status: Status) -> bool:
    """Whether the order has ended; late fills are still recorded."""
    return status in FINAL


def next_status(status: Status, step: Step) -> Status:
    """The status after the step."""
    after = _TABLE[status].get(step)
    if after is None:
        raise ImpossibleStep(status, step)
    return after
