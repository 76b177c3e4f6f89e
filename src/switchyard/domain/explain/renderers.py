"""One renderer for each type of event that an order can have; a new type gets its own here.

A renderer returns what a trader has to know of the event, and tells the `Teller` what it changed.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from switchyard.domain import fold
from switchyard.domain.amends import current_id
from switchyard.domain.events import EventType, JournalEvent
from switchyard.domain.explain.teller import Said, Teller
from switchyard.domain.explain.words import amounts, because, clock, key_words, now_words, position_words
from switchyard.domain.facts import AcceptedFact, OrderFact, OutboxFact, ReportFact
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.lifecycle import is_final
from switchyard.domain.lines import (
    data_of,
    decode_accepted_fact,
    decode_order_fact,
    decode_rejected_fact,
    decode_report_fact,
    decode_result_fact,
    decode_revision_fact,
)
from switchyard.domain.money import plain
from switchyard.domain.reasons import split_reason
from switchyard.domain.risk.reasons import RISK_REASONS
from switchyard.domain.risk.reservations import reserved

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
    teller.accept(fold.accepted(AccountId(event.account_id), OrderId(event.order_id or ""), fact))


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
