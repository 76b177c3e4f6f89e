"""Codes, amounts and times in words."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

from switchyard.domain.amends import Amend
from switchyard.domain.idempotency import CLOSE_POSITION, DERIVED_CLOSE, DERIVED_ORDER, DO_ORDER, PLACE_ORDER
from switchyard.domain.money import plain
from switchyard.domain.orders import Order, TimeInForce

CODES: Final[Mapping[str, str]] = {
    # The venue's final rejections.
    "BAD_REQUEST": "the venue rejected the request as invalid",
    "UNAUTHORIZED": "the venue rejected our credentials",
    "CONFLICT": "the venue reported a conflict with another order",
    "BROKER_REJECTED": "the venue's own rules reject it",
    "UNKNOWN_ORDER": "the venue does not have the order",
    "ORDER_FINAL": "the order had already ended at the venue",
    # Attempts of which nothing reached the venue, or that it did not process.
    "BROKER_DOWN": "the venue could not be reached",
    "VENUE_DOWN": "the connection to the venue was not open",
    "VENUE_BUSY": "the venue had no room for more orders",
    "RATE_LIMITED": "the venue asked us to slow down",
    "TURN_TIMEOUT": "the order before it in the same symbol was not sent in time",
    "ATTEMPT_STALE": "our process was paused just before it would have sent it",
    "DEADLINE_PASSED": "its send deadline passed while it waited for its turn",
    "KILL_SWITCH": "a kill switch stopped it",
    "REPLACED": "an amend had put another order in its place at the venue",
    # Attempts with an unknown outcome.
    "NETWORK_TIMEOUT": "no answer came in time",
    "NETWORK_DISCONNECTED": "the connection broke before the whole answer came",
    "BROKER_5XX": "the venue answered with an internal error",
    "REQUEST_EXPIRED": "the venue says that this copy of the request came too late",
    "UNKNOWN": "the venue's answer could not be understood",
    "ADAPTER_FAILED": "our connection to the venue failed unexpectedly",
    "SENDER_DIED": "the process that was sending it ended before it had an answer",
    "STUCK": "the attempt took so long that its outcome counts as unknown",
    "EXECUTED_BEFORE": "the venue had reported on this order before we sent it",
    "RESTORED": "an older backup of the database was restored",
    "TOO_LATE_TO_RESEND": "its send deadline has passed, so it is not sent again",
    # Doubts that ended.
    "ABSENT_AT_VENUE": "the venue was asked and does not have it",
    "NOT_SENT_BY_DECISION": "a person decided that the venue did not get it",
    "CANCEL_IN_DOUBT": "it is not known whether the venue got the cancel, and repeating a cancel is harmless",
    # Ends and peculiarities.
    "BROKER_TIMEOUT": "it waited until its send deadline had passed",
    "NOT_PROCESSED": "the venue did not process it before its send deadline had passed",
    "RETRY_EXHAUSTED": "it could not be sent within the attempts and the time that are allowed",
    "CANCELED_BEFORE_SENDING": "it was cancelled before anything was sent",
    "AMENDED_BEFORE_SENDING": "it was changed before anything was sent",
    "CANCEL_REQUESTED": "the order was to be cancelled by then",
    "QTY_FILLED": "as much as its quantity was filled by then",
    "FOUND_ENDED_AT_VENUE": "the venue shows that it has ended",
    "COLLAR": "its price is outside of the price collar by now",
    "NOT_REDUCING": "the position that it should close is too small for it by now",
    "CONFLICT_PROCESSED": "the venue had it already from an earlier attempt",
    "CONTRADICTED": "the venue rejected it although it has shown to have it",
    # The paper exchange's and the simulator's own words.
    "CANCELED_BY_REQUEST": "the cancel was carried out",
}
"""Codes of `domain/reasons.py` → words; a test compares the two."""

_TIMES_IN_FORCE: Final[Mapping[TimeInForce, str]] = {
    "IOC": "immediate or cancel",
    "FOK": "fill or kill",
    "GTC": "good till cancelled",
    "DAY": "good for the day",
}
_OPERATIONS: Final[Mapping[str, str]] = {
    PLACE_ORDER: "POST /orders with the idempotency key {key}",
    DERIVED_ORDER: "POST /orders with a key derived from its content",
    DO_ORDER: "POST /do/order with the idempotency key {key}",
    CLOSE_POSITION: "a request to close the position, with the idempotency key {key}",
    DERIVED_CLOSE: "a request to close the position, with a key derived from its content",
}


def because(code: str | None, detail: str | None = None) -> str:
    """A code in words, with the detail in brackets."""
    words = CODES.get(code or "", code or "no reason was given")
    return f"{words} ({detail})" if detail else words


def key_words(operation: str, key: str) -> str:
    """The idempotency key that an order was accepted under."""
    return _OPERATIONS.get(operation, operation + " with the idempotency key {key}").format(key=key)


def terms(order: Order) -> str:
    """What the order asks for."""
    price = "at the market" if order.price is None else f"at {plain(order.price)} or better"
    stop = "" if order.stop_price is None else f", triggered at {plain(order.stop_price)}"
    in_force = _TIMES_IN_FORCE[order.time_in_force]
    reduce_only = ", to close a position" if order.reduce_only else ""
    return f"{order.side} {plain(order.qty)} {order.symbol} {price}{stop}, {in_force}{reduce_only}"


def amounts(order: Order, amend: Amend) -> str:
    """What an amend changes."""
    changes = [
        f"{name} from {'none' if before is None else plain(before)} to {plain(after)}"
        for name, before, after in (
            ("quantity", order.qty, amend.qty),
            ("price", order.price, amend.price),
            ("stop price", order.stop_price, amend.stop_price),
        )
        if after is not None and after != before
    ]
    return ", ".join(changes) or "nothing"


def now_words(order: Order | None) -> str:
    """The amounts of an order after an amend; nothing where they are not known."""
    if order is None:
        return "see its present terms"
    price = "" if order.price is None else f" at {plain(order.price)}"
    stop = "" if order.stop_price is None else f", triggered at {plain(order.stop_price)}"
    return f"the order is for {plain(order.qty)}{price}{stop}"


def position_words(qty: Decimal) -> str:
    """A position as traders say it."""
    if not qty:
        return "flat"
    return f"long {plain(qty)}" if qty > 0 else f"short {plain(-qty)}"


def clock(at: datetime, now: datetime) -> str:
    """A time of day, with the date where it is not that of `now`."""
    return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}"
