"""Interprets a broker's answers: pure functions from an HTTP exchange to the outcome of an attempt."""

import json
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, TypeVar, assert_never

import msgspec

from switchyard.adapters.venues.http.transport import BrokerResponse, Exchange, Lost, NotSent
from switchyard.adapters.venues.wire import (
    BROKER_STATUS,
    ORDER_FINAL,
    REQUEST_EXPIRED,
    STALE_AMEND,
    UNKNOWN_ORDER,
    ErrorResponse,
    OrderResponse,
)
from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders.amends import Amend, Amounts, current_id
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reasons import described
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent, VenueRejected

# A venue that asks for a longer pause is down, not busy: send again after this time.
RETRY_AFTER_MAX = timedelta(hours=1)

# Pairs of HTTP status and error code that the broker's documents call final; with None, every code of the status.
FinalErrors = frozenset[tuple[int, str | None]]
# What the protocol of `wire` calls final.
FINAL_ERRORS: Final[FinalErrors] = frozenset({(400, None), (401, None), (403, None), (422, None)})

# The members of a body that name an order.
_NAMES: Final = frozenset({"client_order_id", "idempotency_key"})
# The states of an order that the broker has taken.
_TAKEN: Final = frozenset(BROKER_STATUS.values()) - {"rejected"}
# Members that only an order which the broker has taken has; an order that it rejected may have the first ones, too.
_TAKEN_MEMBERS: Final = frozenset({"broker_order_id", "accepted_at", "amended_by", "replaced_by"})
_FILLED_MEMBERS: Final = frozenset({"filled_qty", "fills", "fill", "exec_id"})
# Words of an answer that ends an order.
_ENDS: Final = (b"rejected", b"canceled", b"expired")

_Members = list[tuple[str, object]]

_Wire = TypeVar("_Wire")


class AnswerRules(msgspec.Struct, frozen=True):
    """What the broker's documents say about its answers."""

    final_errors: FinalErrors = FINAL_ERRORS
    dedupes_permanently: bool = False


RULES: Final = AnswerRules()


def submitted(order: Order, exchange: Exchange, now: datetime, rules: AnswerRules = RULES) -> SendOutcome:
    """The outcome of sending an order."""
    outcome = _unless_shown(_submitted(order, exchange, now, rules.final_errors), exchange, _shows_taken)
    return _located(_if_answered(order.venue_client_order_id, (), outcome, exchange, rules), exchange)


def cancelled(
    order: Order, client_id: VenueClientOrderId, exchange: Exchange, now: datetime, rules: AnswerRules = RULES
) -> SendOutcome:
    """The outcome of sending a cancel of the order under this one of its client order ids."""
    outcome = _cancelled(client_id, exchange, now, rules.final_errors)
    return _located(_if_answered(client_id, _ids(order), outcome, exchange, rules), exchange)


def amended(order: Order, amend: Amend, exchange: Exchange, now: datetime, rules: AnswerRules = RULES) -> SendOutcome:
    """The outcome of sending an amend.

    A denial of it must be the only response at every broker: an amend is not sent again, so the recognition of repeated
    orders does not put a wrong denial right.
    """
    outcome = _amended(amend, exchange, now, rules.final_errors)
    outcome = _unless_shown(outcome, exchange, partial(_names_carried_out, amend.client_order_id))
    ids = (*_ids(order), amend.orig_client_order_id)
    answered = _if_answered(amend.client_order_id, ids, outcome, exchange, AnswerRules(rules.final_errors))
    return _located(answered, exchange)


def _ids(order: Order) -> tuple[VenueClientOrderId, ...]:
    return order.venue_client_order_id, current_id(order)


def _if_answered(
    client_id: VenueClientOrderId,
    other_ids: Collection[VenueClientOrderId],
    outcome: SendOutcome,
    exchange: Exchange,
    rules: AnswerRules,
) -> SendOutcome:
    """The outcome, or doubt if the response may be the answer to another request.

    A response that names an order other than this one, which has `other_ids` too, is never the answer. One that names
    none, or this one, may be a second response to another request or a copy of the answer to an earlier attempt: unless
    it shows that the order was accepted, it must be the only response on its connection; or a repeated id must never
    be executed again, and nothing may have arrived behind it yet.
    """
    if not isinstance(exchange, BrokerResponse) or isinstance(outcome, Ambiguous):
        return outcome
    names = named_orders(exchange.body)
    if names is None:
        return Ambiguous("UNKNOWN", "the answer cannot be read")
    if not names <= {client_id, *other_ids}:
        return Ambiguous("UNKNOWN", "the answer names another order")
    if exchange.is_followed and not isinstance(outcome, Accepted):
        return Ambiguous("UNKNOWN", f"HTTP {exchange.status} has another response behind it")
    if isinstance(outcome, Accepted) or exchange.is_only_response or rules.dedupes_permanently:
        return outcome
    return Ambiguous("UNKNOWN", f"HTTP {exchange.status} may answer another request")


def may_deny(status: int, body: bytes) -> bool:
    """Whether the response may say that the broker has not taken the request, or does not have the order."""
    return status >= 400 or b"rejected" in body


def may_end(status: int, body: bytes) -> bool:
    """Whether the answer to a lookup may say that the order has ended, or that the broker does not have it."""
    return status >= 400 or any(word in body for word in _ENDS)


def named_orders(body: bytes) -> set[str] | None:
    """The client order ids that the body names, wherever they are; None if it is neither empty nor JSON."""
    objects = _objects(body)
    if objects is None:
        return None
    return {str(value) for members in objects for name, value in members if name in _NAMES and value is not None}


def _objects(body: bytes) -> list[_Members] | None:
    """The members of every object in the body, wherever it is; None if the body is neither empty nor JSON."""
    objects: list[_Members] = []
    try:
        # Not msgspec: it drops the first of two equal members.
        json.loads(body or b"{}", object_pairs_hook=objects.append)
    except (ValueError, RecursionError):
        return None
    return objects


def shows_taken_order(body: bytes) -> bool:
    """Whether the body shows an order that the broker has taken, wherever it is in the body."""
    return any(map(_shows_taken, _objects(body) or ()))


def _unless_shown(outcome: SendOutcome, exchange: Exchange, shows: Callable[[_Members], bool]) -> SendOutcome:
    """The outcome, or doubt if it denies a request whose result its own body shows, wherever that is in the body.

    A broker may answer so, and a broken error response may have swallowed the answer that follows it.
    """
    if not isinstance(exchange, BrokerResponse) or not isinstance(outcome, VenueRejected | Unsent):
        return outcome
    if any(map(shows, _objects(exchange.body) or ())):
        return Ambiguous("UNKNOWN", f"HTTP {exchange.status} shows that the request was carried out")
    return outcome


def _shows_taken(members: _Members) -> bool:
    """Whether the object shows an order that the broker has taken, whatever became of it since."""
    statuses = {value.lower() for name, value in members if name == "status" and isinstance(value, str)}
    shown = {name for name, value in members if value}
    if statuses & _TAKEN or shown & _FILLED_MEMBERS:
        return True
    return "rejected" not in statuses and bool(shown & _TAKEN_MEMBERS)


def _names_carried_out(amend_id: VenueClientOrderId, members: _Members) -> bool:
    """Whether the object shows an order that has this amend: in place, or as the order that replaced another one."""
    if any(name in ("amended_by", "replaced_by") and value == amend_id for name, value in members):
        return True
    return _shows_taken(members) and any(name in _NAMES and value == amend_id for name, value in members)


def _located(outcome: SendOutcome, exchange: Exchange) -> SendOutcome:
    """The outcome with the address that the request went to, where that matters: in doubt."""
    if isinstance(outcome, Ambiguous) and not isinstance(exchange, NotSent):
        return msgspec.structs.replace(outcome, address=exchange.address)
    return outcome


def _submitted(order: Order, exchange: Exchange, now: datetime, final_errors: FinalErrors) -> SendOutcome:
    match exchange:
        case BrokerResponse(200 | 201 | 202, body):
            return _accepted(order, decoded(body, OrderResponse))
        case BrokerResponse(409, body):
            problem = decoded(body, ErrorResponse)
            shown = None if problem is None else problem.order
            if shown is not None and shows(order, shown):
                return Accepted(shown.broker_order_id, already_processed=True, accepted_at=shown.accepted_at)
            rejected = _final_rejection(exchange, final_errors)
            return rejected or Ambiguous("CONFLICT", problem.error if problem else "no reason given")
        case _:
            return _common_outcome(exchange, now, final_errors)


def _cancelled(
    client_id: VenueClientOrderId, exchange: Exchange, now: datetime, final_errors: FinalErrors
) -> SendOutcome:
    match exchange:
        case BrokerResponse(200 | 201 | 202, body):
            answer = decoded(body, OrderResponse)
            if answer is None or not _is_about(client_id, answer):
                return Ambiguous("UNKNOWN", "the answer is not about this order")
            return Accepted(answer.broker_order_id)
        case BrokerResponse(404, body) if _error_code(body) == UNKNOWN_ORDER:
            return VenueRejected("UNKNOWN_ORDER")
        case BrokerResponse(409, body) if (problem := decoded(body, ErrorResponse)) and problem.error == ORDER_FINAL:
            if problem.order is not None and problem.order.replaced_by is not None:
                return Unsent("REPLACED", problem.order.replaced_by, bytes_sent=True)
            return VenueRejected("ORDER_FINAL")
        case _:
            return _common_outcome(exchange, now, final_errors)


def _amended(amend: Amend, exchange: Exchange, now: datetime, final_errors: FinalErrors) -> SendOutcome:
    match exchange:
        case BrokerResponse(200 | 201 | 202, body):
            answer = decoded(body, OrderResponse)
            if answer is None or not _shows_amend(amend, answer):
                return Ambiguous("UNKNOWN", "the answer does not show this amend")
            return Accepted(answer.broker_order_id)
        case BrokerResponse(404, body) if _error_code(body) == UNKNOWN_ORDER:
            return VenueRejected("UNKNOWN_ORDER")
        case BrokerResponse(409, body) if (problem := decoded(body, ErrorResponse)) is not None:
            shown = problem.order
            if shown is not None and _shows_amend(amend, shown):
                return Accepted(shown.broker_order_id, already_processed=True)
            if shown is not None and amend.client_order_id in (*_amend_ids(shown), shown.replaced_by):
                return Ambiguous("CONFLICT", "carried out before, perhaps with other amounts")
            if problem.error == ORDER_FINAL:
                return VenueRejected("ORDER_FINAL")
            if problem.error == STALE_AMEND:
                return VenueRejected("CONFLICT", STALE_AMEND)
            return _final_rejection(exchange, final_errors) or Ambiguous("CONFLICT", problem.error)
        case _:
            return _common_outcome(exchange, now, final_errors)


def _shows_amend(amend: Amend, answer: OrderResponse) -> bool:
    """Whether the answer proves that the broker has carried this amend out, with these amounts.

    After a restore, a client may repeat the key of an amend with other amounts than the lost one had.
    """
    is_equal = not _amounts(answer).differ(amend.qty, amend.price, amend.stop_price)
    return is_equal and amend.client_order_id in _amend_ids(answer)


def _amend_ids(answer: OrderResponse) -> tuple[str | None, str]:
    return answer.amended_by, answer.client_order_id or answer.idempotency_key


def _amounts(answer: OrderResponse) -> Amounts:
    return Amounts(qty=answer.qty, price=answer.limit_price, stop_price=answer.stop_price)


def shows(order: Order, answer: OrderResponse) -> bool:
    """Whether the answer proves that the broker has this order: in a 2xx, a 409 and a lookup alike.

    It names the order's id, as every answer must, and none of the members that a broker may leave out differs.
    """
    pairs = (answer.symbol, order.symbol), (answer.intent, order.side)
    is_equal = all(theirs is None or theirs == ours for theirs, ours in pairs)
    is_equal = is_equal and not _amounts(answer).differ(order.qty, order.price, order.stop_price)
    return is_equal and _is_about(order.venue_client_order_id, answer)


def decoded(body: bytes, kind: type[_Wire]) -> _Wire | None:
    """The body as `kind`, or none where it does not fit."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def describe(exchange: Exchange) -> str:
    """Why the exchange has no usable answer, for people."""
    match exchange:
        case BrokerResponse(200):
            return "the response cannot be decoded"
        case BrokerResponse(status):
            return f"HTTP {status}"
        case NotSent(code, detail) | Lost(code, detail):
            return described(code, detail)
        case _:
            assert_never(exchange)


def _error_code(body: bytes) -> str | None:
    problem = decoded(body, ErrorResponse)
    return None if problem is None else problem.error


def _accepted(order: Order, answer: OrderResponse | None) -> SendOutcome:
    if answer is None:
        return Ambiguous("UNKNOWN", "the answer cannot be read")
    if not shows(order, answer):
        return Ambiguous("UNKNOWN", "the answer is about another order")
    if answer.status == "rejected":
        return VenueRejected("BROKER_REJECTED")
    return Accepted(answer.broker_order_id, accepted_at=answer.accepted_at)


def _is_about(client_id: VenueClientOrderId, answer: OrderResponse) -> bool:
    return (answer.idempotency_key, answer.client_order_id or answer.idempotency_key) == (client_id, client_id)


def _common_outcome(exchange: Exchange, now: datetime, final_errors: FinalErrors) -> SendOutcome:
    """The outcomes that orders and cancels share."""
    if (rejected := _final_rejection(exchange, final_errors)) is not None:
        return rejected
    match exchange:
        case NotSent(code, detail):
            return Unsent(code, detail)
        case Lost(code, detail):
            return Ambiguous(code, detail)
        case BrokerResponse(429, _, retry_after):
            return Unsent("RATE_LIMITED", retry_after=_pause(retry_after, now), bytes_sent=True)
        case BrokerResponse(400, body) if _error_code(body) == REQUEST_EXPIRED:
            # A lookup finds the order, or it is absent and sent again with a new expiry.
            return Ambiguous("REQUEST_EXPIRED")
        case BrokerResponse(status) if status >= 500:
            return Ambiguous("BROKER_5XX")
        case BrokerResponse(status):
            # A redirect, a proxy's time-out or a page of another server is not a documented rejection.
            return Ambiguous("UNKNOWN", f"HTTP {status}")
        case unreachable:
            assert_never(unreachable)


def _final_rejection(exchange: Exchange, final_errors: FinalErrors) -> VenueRejected | None:
    """The rejection, if the broker's documents call this pair of status and error code final."""
    if not isinstance(exchange, BrokerResponse):
        return None
    problem = decoded(exchange.body, ErrorResponse)
    if problem is not None and problem.error == REQUEST_EXPIRED:
        return None  # final for this copy of the request only
    if problem is None or final_errors.isdisjoint({(exchange.status, None), (exchange.status, problem.error)}):
        return None
    match exchange.status:
        case 401 | 403:
            return VenueRejected("UNAUTHORIZED", problem.error)
        case 409:
            return VenueRejected("CONFLICT", problem.error)
        case _:
            return VenueRejected("BAD_REQUEST", problem.error)


def _pause(retry_after: str | None, now: datetime) -> timedelta | None:
    """The Retry-After header, in seconds or as a date, limited to RETRY_AFTER_MAX; none where it cannot be read."""
    if retry_after is None:
        return None
    try:
        if retry_after.isascii() and retry_after.isdigit():
            pause = timedelta(seconds=min(int(retry_after), RETRY_AFTER_MAX.total_seconds()))
        else:
            pause = parsedate_to_datetime(retry_after) - now
    except (ValueError, TypeError, OverflowError):
        return None
    return max(timedelta(), min(pause, RETRY_AFTER_MAX))
