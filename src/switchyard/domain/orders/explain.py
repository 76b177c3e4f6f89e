"""The life of an order in words that a trader understands, from its events. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal, NamedTuple

import msgspec

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal import replay
from switchyard.domain.journal.events import EventType, JournalEvent
from switchyard.domain.journal.facts import AcceptedFact, OrderChange, OrderFact, OutboxFact, ReportFact
from switchyard.domain.journal.lines import (
    data_of,
    decode_accepted_fact,
    decode_order_fact,
    decode_rejected_fact,
    decode_report_fact,
    decode_result_fact,
    decode_revision_fact,
)
from switchyard.domain.orders.amends import Amend, current_id
from switchyard.domain.orders.keys import CLOSE_POSITION, DERIVED_CLOSE, DERIVED_ORDER, DO_ORDER, PLACE_ORDER
from switchyard.domain.orders.lifecycle import Status, is_final
from switchyard.domain.orders.order import Order, TimeInForce, average_price, remaining_qty
from switchyard.domain.orders.outbox import OutboxKind
from switchyard.domain.orders.reasons import split_reason
from switchyard.domain.risk.checks import RISK_REASONS
from switchyard.domain.risk.claims import reserved
from switchyard.domain.values import average, plain

Kind = Literal["check", "route", "send", "doubt", "decision", "report", "amend", "cancel", "position", "end", "result"]


class Said(NamedTuple):
    """One sentence about an event."""

    kind: Kind
    text: str


class Teller:
    """An order as its events so far have made it; `row` is the order as it is now."""

    def __init__(self, row: Order, checks: Sequence[str]) -> None:
        self.row = row
        self.checks = checks
        """The names of the checks that a new order of this kind has today."""
        self.order: Order | None = None
        """None until the event that made its first version."""
        self.status = row.status
        self.report: ReportFact | None = None
        """The last report, until the event that shows its effect."""
        self._attempts: dict[tuple[OutboxKind, int], int] = {}
        self.in_doubt: set[tuple[OutboxKind, int]] = set()

    @property
    def venue(self) -> str:
        """The venue that has or gets the order at this moment."""
        return self.row.venue if self.order is None else self.order.venue

    def accept(self, order: Order) -> None:
        """Begin with the first version."""
        self.order = order
        self.status = order.status

    def change(self, change: OrderChange) -> bool:
        """Apply a later event; returns whether the order has ended with it."""
        had_ended = is_final(self.status)
        if self.order is not None and change.version == self.order.version + 1:
            self.order = replay.changed(self.order, change, self.report)
        self.status, self.report = change.status, None
        return is_final(change.status) and not had_ended

    def attempt(self, fact: OutboxFact) -> int:
        """The attempt of a row that an event is about."""
        key = (fact.kind, fact.number)
        if fact.attempt is not None:
            self._attempts[key] = fact.attempt
        return self._attempts.get(key, 1)

    def doubted(self, fact: OutboxFact) -> None:
        """Note a doubt about a row."""
        self.in_doubt.add((fact.kind, fact.number))

    def settled(self, fact: OutboxFact) -> bool:
        """End the doubt about a row; returns whether there was one."""
        key = (fact.kind, fact.number)
        was = key in self.in_doubt
        self.in_doubt.discard(key)
        return was

    def fills(self) -> str:
        """What is filled, of how much, and at which average."""
        order = self.order or self.row
        if not order.filled_qty:
            return f"nothing of {plain(order.qty)} is filled"
        mean = average_price(order)
        price = "" if mean is None else f" at an average of {plain(mean)}"
        rest = remaining_qty(order)
        left = f", {plain(rest)} left" if rest and not is_final(order.status) else ""
        return f"{plain(order.filled_qty)} of {plain(order.qty)} filled{price}{left}"

    def filled_with(self, report: ReportFact) -> str:
        """The running total with a report, of how much, and at which average."""
        if self.order is None:
            return f"{plain(report.filled_qty_total)} of {plain(self.row.qty)} so far"
        filled, notional = replay.with_fill(self.order, report)
        return f"{plain(filled)} of {plain(self.order.qty)} so far, at an average of {plain(average(notional, filled))}"


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
    "ATTEMPT_STALE": "our process was paused, or the order amended, just before it would have been sent",
    "CREDENTIAL_PAUSED": "the venue rejected our credential, so it waited for one that works",
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
    "LOOKUP_EXPIRED": "the venue does not find the order, and no longer keeps orders of this age",
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
"""Codes of `domain/orders/reasons.py` → words; a test compares the two."""

_TIMES_IN_FORCE: Final[Mapping[TimeInForce, str]] = {
    "IOC": "immediate or cancel",
    "FOK": "fill or kill",
    "GTC": "good till cancelled",
    "DAY": "good for the day",
    "GTD": "good till a date",
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
    if order.time_in_force == "GTD" and order.expires_at is not None:
        in_force += f" ({order.expires_at.isoformat().replace('+00:00', 'Z')})"
    wishes = [
        *(["to close a position"] if order.reduce_only else []),
        *(["reduce only"] if order.venue_reduce_only else []),
        *(["post only"] if order.post_only else []),
        *([] if order.display_qty is None else [f"{plain(order.display_qty)} of it shown"]),
    ]
    return ", ".join((f"{order.side} {plain(order.qty)} {order.symbol} {price}{stop}", in_force, *wishes))


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


Renderer = Callable[[Teller, JournalEvent], Iterator[Said]]


def accepted(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The order passed its checks and was routed."""
    fact = decode_accepted_fact(data_of(event))
    _begin(teller, event, fact)
    order = teller.order
    assert order is not None
    yield Said("check", "accepted: every pre-trade check passed")
    if teller.checks:
        yield Said("check", f"the checks of such an order today: {', '.join(teller.checks)}")
    if order.reducing:
        yield Said("check", "it can only reduce the position, so limits on exposure do not apply to it")
    if fact.idempotency is not None:
        yield Said("check", f"{key_words(fact.idempotency.operation, fact.idempotency.key)}: a repeat gets this order")
    held = reserved(order)
    if held is not None and held.notional:
        money = f"{plain(held.notional)} {order.currency or ''}".strip()
        each = "" if order.reserve_price is None else f" ({plain(held.qty)} at {plain(order.reserve_price)})"
        yield Said("check", f"while it is open it reserves {money}{each}")
    quote = fact.quote
    market = "" if quote is None else f"; the market there was {plain(quote.bid)} bid, {plain(quote.ask)} ask"
    yield Said("route", f"routed to {order.venue}, {_choice(fact, order.symbol)}{market}")
    for candidate in () if fact.route is None else fact.route.candidates[1:]:
        yield Said("route", f"not to {candidate.venue}: {candidate.reason}")


def _choice(fact: AcceptedFact, symbol: str) -> str:
    """How the venue was chosen."""
    if fact.route is None:
        return f"as configured for {symbol}"
    best = fact.route.candidates[0]
    if fact.route.by == "preference":
        return best.reason
    cost = "" if best.effective_price is None else f", at {plain(best.effective_price)} with its fee"
    return f"the best venue for {symbol}{cost}: {best.reason}"


def rerouted(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """Nothing of the order had left for its venue, and it goes to another one."""
    move = _changed(teller, event).reroute
    assert move is not None, "only this event moves an order"
    yield Said(
        "route", f"moved from {move.from_venue} to {move.to}: nothing of it was sent, and {move.from_venue} fails"
    )
    yield Said("route", f"{move.from_venue}: {move.reason}")


def rejected(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """A pre-trade check rejected the order."""
    fact = decode_rejected_fact(data_of(event))
    _begin(teller, event, fact)
    meaning = RISK_REASONS.get(fact.reason, fact.reason)
    yield Said("check", f"rejected by the check {fact.reason}: {meaning}")
    yield Said("check", fact.detail)
    yield Said("end", "ended REJECTED: nothing was sent to a venue")


def sending(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """An attempt begins."""
    fact = _changed(teller, event)
    for row in fact.outbox:
        what = _what(row)
        yield Said("send", f"attempt {teller.attempt(row)} to send {what} to {teller.venue} begins")


def sent(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The venue has the order."""
    fact, has_ended = _told(teller, event)
    order = teller.order or teller.row
    name = "" if order.venue_order_id is None else f" as {order.venue_order_id}"
    for row in fact.outbox:
        if row.last_error == "CONTRADICTED":
            answer = f"the venue answered with a rejection ({row.error_detail})"
            yield Said("send", f"{answer}, but it has shown that it has the order, and that counts")
        was_in_doubt = teller.settled(row)
        if row.last_error == "CONFLICT_PROCESSED":
            yield Said("send", f"{teller.venue} has the order{name}, from an earlier attempt; it is there once")
        elif was_in_doubt:
            yield Said("doubt", f"the doubt is settled: {teller.venue} has the order{name}")
        else:
            yield Said("send", f"{teller.venue} has the order{name}")
    yield from _ended(teller, has_ended)


def uncertain(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The outcome of an attempt is unknown."""
    fact = _changed(teller, event)
    for row in fact.outbox:
        teller.doubted(row)
        what = _what(row)
        detail = row.error_detail if fact.doubt is None else fact.doubt.detail
        yield Said(
            "doubt",
            f"in doubt: {because(row.last_error, detail)}; {teller.venue} may or may not have {what}",
        )
        if row.status == "failed" and row.next_attempt_at is not None:
            at = clock(row.next_attempt_at, event.at)
            yield Said("doubt", f"it is sent again at {at} under the same id, by which {teller.venue} recognises it")
        else:
            yield Said("doubt", "it is not sent again before the venue was asked, a report comes or a person decides")


def decided(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """An operator ended a doubt."""
    fact, has_ended = _told(teller, event)
    for row in fact.outbox:
        teller.settled(row)
    if fact.decision is not None:
        verdict = "has it" if fact.decision.verdict == "sent" else "does not have it"
        again = ", and to send it again" if fact.decision.resend else ""
        person, reason = fact.decision.by, fact.decision.reason
        yield Said("decision", f"{person} decided that {teller.venue} {verdict}{again}; the reason given: {reason}")
    yield from _ended(teller, has_ended)


def updated(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """Another change: the effect of a report, or the end of an attempt or of the order."""
    followed_report = teller.report is not None
    fact, has_ended = _told(teller, event)
    for row in fact.outbox:
        if not followed_report:
            yield from _row(teller, row, event, has_ended)
        elif teller.settled(row) and row.kind == "new":
            yield Said("doubt", f"the report settles the doubt: {teller.venue} has the order")
        elif row.kind == "amend" and row.status == "sent":
            yield Said("amend", f"the report shows that the amend was carried out: {now_words(teller.order)}")
        elif row.kind == "amend" and row.status == "dead":
            yield Said("amend", f"the amend had no effect: {because(row.last_error, row.error_detail)}")
    if fact.position is not None:
        text = f"the position in {teller.row.symbol} is {position_words(fact.position.qty)} now"
        yield Said("position", text)
    yield from _ended(teller, has_ended)


def cancel_requested(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The account asked to cancel."""
    before = teller.status
    _, has_ended = _told(teller, event)
    if has_ended:
        yield Said("cancel", "a cancel was requested before anything was sent, so it ended at once")
    elif before in ("SENDING", "UNKNOWN"):
        yield Said("cancel", "a cancel was requested; it waits until it is known whether the venue has the order")
    else:
        yield Said("cancel", f"a cancel was requested; until {teller.venue} confirms it, the rest can still be filled")
    yield from _ended(teller, has_ended)


def amend_requested(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The account asked to amend."""
    before = teller.order or teller.row
    fact = _changed(teller, event)
    for row in fact.outbox:
        if row.amend is not None:
            yield Said("amend", f"an amend was requested: {amounts(before, row.amend)}")
    if before.status in ("SENDING", "UNKNOWN"):
        yield Said("amend", "it waits until it is known whether the venue has the order")
    held = None if teller.order is None else reserved(teller.order)
    if held is not None and held.notional:
        money = f"{plain(held.notional)} {before.currency or ''}".strip()
        yield Said("amend", f"until it is settled, the larger amounts are reserved: {money}")


def amended(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The order has its new amounts."""
    fact, has_ended = _told(teller, event)
    for row in fact.outbox:
        was_in_doubt = teller.settled(row)
        if row.kind == "amend" and row.last_error == "AMENDED_BEFORE_SENDING":
            yield Said("amend", f"nothing was sent yet, so it was changed at once: {now_words(teller.order)}")
        elif row.kind == "amend" and row.amend is not None:
            words = f"{teller.venue} has an amend of before the restore that this database had lost"
            yield Said("amend", f"{words}: {now_words(teller.order)}")
        elif row.kind == "amend":
            doubt = "the doubt is settled: " if was_in_doubt else ""
            yield Said("amend", f"{doubt}{teller.venue} has carried the amend out: {now_words(teller.order)}")
    yield from _ended(teller, has_ended)


def amend_refused(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The amend ended without effect."""
    fact, has_ended = _told(teller, event)
    for row in fact.outbox:
        was_in_doubt = teller.settled(row)
        if row.kind == "amend":
            doubt = "the doubt is settled: " if was_in_doubt else ""
            why = because(row.last_error, row.error_detail)
            yield Said("amend", f"{doubt}the amend had no effect: {why}; {now_words(teller.order)}")
    yield from _ended(teller, has_ended)


def cancel_sent(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The venue has the cancel."""
    fact, has_ended = _told(teller, event)
    for row in fact.outbox:
        teller.settled(row)
    yield Said("cancel", f"{teller.venue} has received the cancel")
    yield from _ended(teller, has_ended)


def reported(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The venue reported on the order; the next event shows what that changed."""
    report = decode_report_fact(data_of(event))
    teller.report = report
    if report.last_qty:
        price = "an unknown price" if report.last_price is None else plain(report.last_price)
        late = ", after the order had ended; it counts all the same" if is_final(teller.status) else ""
        total = teller.filled_with(report)
        yield Said("report", f"filled {plain(report.last_qty)} at {price}{_fee(report)}; {total}{late}")
    match report.status:
        case "WORKING" if not report.last_qty:
            yield Said("report", f"{teller.venue} reports that the order is open")
        case "CANCELED" | "REJECTED" | "EXPIRED" if _is_of_earlier_leg(teller, report):
            yield Said("report", f"{teller.venue} reports the end of the order that an amend has replaced there")
        case "CANCELED" | "REJECTED" | "EXPIRED":
            reason = f": {report.reason}" if report.reason else ""
            yield Said("report", f"{teller.venue} reports that the order is {report.status}{reason}")
        case _:
            pass


def revised(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The venue corrected or voided an execution; the order stays as it is."""
    report = decode_revision_fact(data_of(event))
    if report.exec_type == "CANCEL":
        what = "voided"
    else:
        price = "an unknown price" if report.last_price is None else plain(report.last_price)
        what = f"corrected to {plain(report.last_qty)} at {price}"
    if report.early:
        follows = "before it reported it: it counts as revised when it is reported"
    elif report.late:
        follows = "which came before its report: the position follows now"
    else:
        follows = "the position and the books follow, the order stays"
    yield Said("report", f"{teller.venue} {what} the execution {report.ref_exec_id}: {follows}")


def result_recorded(teller: Teller, event: JournalEvent) -> Iterator[Said]:
    """The answer of `/do/order` is fixed."""
    status = decode_result_fact(data_of(event)).http_status
    yield Said("result", f"repeats of its POST /do/order request get the stored result from now on (HTTP {status})")


RENDERERS: Final[Mapping[EventType, Renderer]] = {
    "OrderAccepted": accepted,
    "RiskRejected": rejected,
    "OrderSending": sending,
    "OrderRerouted": rerouted,
    "OrderSent": sent,
    "OrderUpdated": updated,
    "OrderUncertain": uncertain,
    "OperatorDecision": decided,
    "ResultRecorded": result_recorded,
    "CancelRequested": cancel_requested,
    "CancelSent": cancel_sent,
    "AmendRequested": amend_requested,
    "Amended": amended,
    "AmendRefused": amend_refused,
    "ExecutionReport": reported,
    "ExecutionRevised": revised,
}

OF_NO_ORDER: Final[frozenset[EventType]] = frozenset(
    {
        "ReportUnmatched",
        "ReportSetAside",
        "EpochOpened",
        "AuditFileCut",
        "KillSwitchSet",
        "KillSwitchCleared",
    }
)
"""The events that are about no order of this database."""


def _begin(teller: Teller, event: JournalEvent, fact: AcceptedFact) -> None:
    teller.accept(replay.accepted(AccountId(event.account_id), OrderId(event.order_id or ""), fact))


def _told(teller: Teller, event: JournalEvent) -> tuple[OrderFact, bool]:
    """Apply the event; returns its data and whether the order ended with it."""
    fact = decode_order_fact(data_of(event))
    return fact, teller.change(fact.order)


def _changed(teller: Teller, event: JournalEvent) -> OrderFact:
    return _told(teller, event)[0]


def _fee(report: ReportFact) -> str:
    if not report.fee:
        return ""
    kind = "fee" if report.fee > 0 else "rebate"
    return f", {kind} {plain(abs(report.fee))} {report.fee_currency or ''}".rstrip()


def _row(teller: Teller, row: OutboxFact, event: JournalEvent, has_ended: bool) -> Iterator[Said]:
    """Say what an outcome without a report did to a row."""
    is_cancel, what = row.kind == "cancel", _what(row)
    was_in_doubt = teller.settled(row)
    why = because(row.last_error, row.error_detail)
    if row.status == "failed":
        again = "" if row.next_attempt_at is None else f" at {clock(row.next_attempt_at, event.at)}"
        settled = "the doubt is settled: " if was_in_doubt else f"{what} was not sent: "
        same_id = " under the same id" if was_in_doubt and not is_cancel else ""
        yield Said("doubt" if was_in_doubt else "send", f"{settled}{why}; it is sent again{again}{same_id}")
    elif row.status == "dead" and is_cancel and not has_ended:
        yield Said("cancel", f"the cancel failed: {why}; the order stays open")
    elif row.status == "dead" and was_in_doubt and not is_cancel:
        yield Said("doubt", f"the doubt is settled: {why}")
    elif row.status == "sent" and was_in_doubt:
        yield Said("doubt", f"the doubt is settled: {teller.venue} has {what}")


def _is_of_earlier_leg(teller: Teller, report: ReportFact) -> bool:
    order = teller.order
    return order is not None and (report.leg_client_order_id or order.venue_client_order_id) != current_id(order)


def _what(row: OutboxFact) -> str:
    return "the order" if row.kind == "new" else f"the {row.kind}"


def _ended(teller: Teller, has_ended: bool) -> Iterator[Said]:
    if not has_ended:
        return
    reason = (teller.order or teller.row).reason
    why = "" if reason is None or teller.status == "FILLED" else f" because {because(*_reason(reason))}"
    yield Said("end", f"ended {teller.status}{why}: {teller.fills()}")


def _reason(reason: str) -> tuple[str, str | None]:
    code, detail = split_reason(reason)
    return code, detail or None


# The events that are told: those of an order with 240 partial fills. The rest is in `GET /orders/{id}/events`.
EVENTS_MAX = 500


class Step(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One sentence about an event; an event may have several."""

    seq: int
    at: datetime
    event: EventType
    kind: Kind
    text: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `GET /orders/{id}/explain`; the texts are for people and may change, the other members may not."""

    order_id: OrderId
    account_id: AccountId
    status: Status
    steps: tuple[Step, ...]
    lines: tuple[str, ...]
    """The whole story as text: a heading, the steps with their times, and where the order stands."""
    has_more: bool
    """Whether the order has more events than are told."""


def explain_order(
    order: Order, events: Sequence[JournalEvent], checks: Sequence[str], doubt: str | None = None
) -> Explanation:
    """Explain an order, given its row and its first events, in journal order.

    `checks`: the names of the pre-trade checks that the settings of today have for it. `doubt`: how a doubt about it
    ends, as the worker of its venue says.
    """
    told = events[:EVENTS_MAX]
    teller = Teller(order, checks)
    steps = tuple(
        Step(seq=event.seq, at=event.at, event=event.type, kind=said.kind, text=said.text)
        for event in told
        if event.type in RENDERERS
        for said in RENDERERS[event.type](teller, event)
    )
    has_more = len(events) > len(told)
    return Explanation(
        order_id=order.order_id,
        account_id=order.account_id,
        status=order.status,
        steps=steps,
        lines=tuple(_lines(order, steps, has_more, doubt)),
        has_more=has_more,
    )


def _lines(order: Order, steps: Sequence[Step], has_more: bool, doubt: str | None) -> Iterator[str]:
    yield f"Order {order.order_id} of account {order.account_id}"
    strategy = "" if order.strategy is None else f", for the strategy {order.strategy}"
    yield f"{terms(order)}{strategy}"
    day = None
    seq = None
    for step in steps:
        if step.at.date() != day:
            day = step.at.date()
            yield f"On {day} (UTC)"
        time = f"{step.at:%H:%M:%S}.{step.at.microsecond // 1000:03}" if step.seq != seq else " " * 12
        seq = step.seq
        yield f"  {time}  {step.text}"
    if has_more:
        yield f"  The first {EVENTS_MAX} events are told; all are in GET /orders/{order.order_id}/events."
    yield f"Now: {_standing(order)}"
    if doubt is not None:
        yield f"The doubt: {doubt}"


def _standing(order: Order) -> str:
    teller = Teller(order, ())
    match order.status:
        case "ACCEPTED":
            where = f"it waits to be sent to {order.venue}"
        case "SENDING":
            where = f"it is being sent to {order.venue}"
        case "UNKNOWN":
            where = f"it is in doubt whether {order.venue} has it"
        case "CANCEL_REQUESTED":
            where = f"a cancel is on its way to {order.venue}"
        case status:
            where = "it has ended" if is_final(status) else f"it is open at {order.venue}"
    return f"{order.status}, {where}; {teller.fills()}"


__all__ = ["EVENTS_MAX", "Explanation", "Step", "explain_order"]
