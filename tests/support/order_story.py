"""Changes with every type of event, for checks of the published schemas."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain import decisions
from switchyard.domain.accounts.positions import account_total
from switchyard.domain.ids import (
    AccountId,
    VenueClientOrderId,
    VenueName,
    WorkerId,
    kill_id,
    order_id,
    venue_client_order_id,
)
from switchyard.domain.journal import events, facts
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.lines import GENESIS, head_text, link, stamp
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Candidate, Wanted, ranked
from switchyard.domain.orders import order
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.keys import AMEND_ORDER, PLACE_ORDER, KeyEntry
from switchyard.domain.orders.outbox import OrderState
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.risk.checks import Violation
from switchyard.domain.risk.kills import Kill
from switchyard.domain.values import digest

ACCOUNT = AccountId("acct-1")
VENUE = VenueName("sim")
NOW = datetime(2025, 3, 4, 9, 30, 0, 125, tzinfo=UTC)
ORDER_ID = order_id(1_741_080_600_000, 7)
LIMIT = {"symbol": "BTC", "side": "BUY", "type": "LIMIT", "qty": 2, "price": 64000}
MARKET = {"symbol": "BTC", "side": "SELL", "type": "MARKET", "qty": 2}


def checked(body: dict[str, Any]) -> order.OrderRequest:
    request = msgspec.json.decode(json.dumps(body), type=order.OrderRequest)
    return order.checked(request, Catalogue(allows_unlisted=True))


def line_of(event: events.Event) -> str:
    text = head_text(1, 0, 1, stamp(NOW)) + event.tail
    return events.JournalEvent(1, NOW, event.type, event.account_id, event.order_id, text, link(GENESIS, text)).line


def story() -> list[Change]:
    """Changes that together have every type of event and every field of their data."""
    key = "rebalance-17-1"
    client_id = venue_client_order_id("test", ACCOUNT, PLACE_ORDER, key, 0, ORDER_ID)
    keys = KeyEntry(
        account_id=ACCOUNT,
        operation=PLACE_ORDER,
        idempotency_key=key,
        generation=0,
        order_id=ORDER_ID,
        request_digest=digest(LIMIT),
        created_at=NOW,
        expires_at=NOW + timedelta(hours=24),
    )
    report = ExecutionReport(
        exec_id="sim-42-1",
        venue=VENUE,
        venue_client_order_id=client_id,
        venue_order_id="sim-42",
        status="PARTIALLY_FILLED",
        last_qty=Decimal(1),
        last_price=Decimal("63990.00000001"),
        filled_qty_total=Decimal(1),
        at=NOW,
    )
    accepted = decisions.accept(
        checked(LIMIT | {"tags": ["hedge"]}),
        account=ACCOUNT,
        order_id=ORDER_ID,
        venue=VENUE,
        venue_client_order_id=client_id,
        key=keys,
        quote=facts.Quote(bid=Decimal("63985.5"), ask=Decimal(63990), at=NOW, bid_size=Decimal(3), ask_size=Decimal(1)),
        now=NOW,
        route=_route(),
    )
    bare = decisions.accept(
        checked(MARKET),
        account=ACCOUNT,
        order_id=ORDER_ID,
        venue=VENUE,
        venue_client_order_id=client_id,
        key=None,
        quote=None,
        now=NOW,
    )
    denied = decisions.accept(
        checked(LIMIT | {"tags": ["hedge"]}),
        account=ACCOUNT,
        order_id=ORDER_ID,
        venue=VENUE,
        venue_client_order_id=client_id,
        key=keys,
        quote=facts.Quote(bid=Decimal("63985.5"), ask=Decimal(63990)),
        now=NOW,
        violation=Violation("RISK_MAX_QTY", "qty 2 is above 1"),
    )
    wished = decisions.accept(
        checked(
            LIMIT
            | {"postOnly": True, "reduceOnly": True, "displayQty": 1}
            | {"timeInForce": "GTD", "expireAt": "2025-03-31T17:00:00Z"}
        ),
        account=ACCOUNT,
        order_id=ORDER_ID,
        venue=VENUE,
        venue_client_order_id=client_id,
        key=None,
        quote=None,
        now=NOW,
        expires_at=datetime(2025, 3, 31, 17, tzinfo=UTC),
    )
    moved = decisions.reroute(_after(accepted), VenueName("other"), "5 faults in a row, the last: BROKER_DOWN", NOW)
    sending = decisions.begin_attempt(_after(accepted), accepted.outbox[0], WorkerId("worker-1"), NOW)
    sent = decisions.record_sent(_after(sending), sending.outbox[0], "sim-42", NOW)
    filled = decisions.apply_report(_after(sent), None, report, NOW)
    cancel = decisions.request_cancel(_after(filled, sent), NOW)
    assert cancel is not None
    cancel_sent = decisions.record_sent(_after(cancel), cancel.outbox[0], None, NOW)
    amend = Amend(
        client_order_id=VenueClientOrderId("test-amend"),
        orig_client_order_id=client_id,
        qty=Decimal(3),
        price=Decimal(64100),
        stop_price=Decimal(1),
        reserve_price=Decimal(64200),
        replaces=True,
        operation=AMEND_ORDER,
        key=key,
    )
    amend_keys = msgspec.structs.replace(keys, operation=AMEND_ORDER)
    amending = decisions.request_amend(_after(sent), amend, amend_keys, NOW, reducing=True)
    tried = decisions.begin_attempt(_after(amending), amending.outbox[0], WorkerId("worker-1"), NOW)
    ended = msgspec.structs.replace(report, status="CANCELED", last_qty=Decimal(0), last_price=None)
    replaced = decisions.apply_report(_after(tried), None, ended, NOW)
    amended = decisions.record_amended(_after(replaced, tried), tried.outbox[0], "sim-43", NOW)
    refused = decisions.record_amend_refused(_after(tried), tried.outbox[0], "ORDER_FINAL", NOW)
    late = decisions.apply_report(
        _after(amended), None, msgspec.structs.replace(report, leg_client_order_id=amend.client_order_id), NOW
    )
    doubt = decisions.record_doubt(_after(sending), sending.outbox[0], "NETWORK_TIMEOUT", None, NOW)
    said = facts.DecisionFact(verdict="sent", by="an operator", reason="seen on the venue's screen")
    decided = decisions.decide_by_hand(_after(doubt), doubt.outbox[0], said, NOW)
    rejected = decisions.record_rejected(_after(sending), sending.outbox[0], "BROKER_REJECTED", NOW)
    result = decisions.record_result(accepted.orders[0], 200, "{}", digest({}))
    cut = events.event(
        "AuditFileCut", events.SYSTEM_ACCOUNT, None, facts.CutFact(path="audit.log", expected_seq=2, found_seq=1)
    )
    opened = facts.EpochFact(cause="newest", installation="01J", tag="test", by="an operator", reason="the only one")
    kill = Kill(
        kill_id=kill_id("0" * 26), symbol="BTC", set_by="an operator", set_reason="drill", set_at=NOW, version=1
    )
    bust = msgspec.structs.replace(report, exec_id="bust", exec_type="CANCEL", ref_exec_id=report.exec_id)
    busted = facts.RevisionFact(
        **msgspec.structs.asdict(events.report_fact(bust, filled.orders[0])),
        revised=facts.Figures(qty=report.last_qty, price=Decimal(1)),
    )
    return [
        accepted,
        sending,
        sent,
        filled,
        cancel,
        cancel_sent,
        doubt,
        decided,
        denied,
        *(
            decisions.revise_execution(filled.orders[0], filled.positions[0], account_total(ACCOUNT, NOW), each, NOW)
            for each in (
                busted,
                msgspec.structs.replace(busted, exec_id="bust-2", early=True, revised=None),
                msgspec.structs.replace(busted, exec_id="bust-2", late=True),
            )
        ),
        decisions.unmatched_report(report),
        decisions.set_aside_report(report.venue, "a\0b", "its exec_id cannot be stored", VenueClientOrderId("lost")),
        Change(events=(cut,)),
        Change(events=(events.event("EpochOpened", events.SYSTEM_ACCOUNT, None, opened),)),
        result,
        bare,
        wished,
        moved,
        rejected,
        amending,
        tried,
        replaced,
        amended,
        refused,
        late,
        decisions.set_kill(kill),
        decisions.clear_kill(kill, "an operator", "it is over", NOW),
    ]


def _route() -> facts.RouteFact:
    """A choice by quality with every member, between this venue and one that is down."""
    best = Candidate(
        venue=VENUE,
        quote=facts.Quote(bid=Decimal("63985.5"), ask=Decimal(63990), ask_size=Decimal(1)),
        fee_percent=Decimal("0.1"),
        reject_rate=0.1,
        latency_seconds=0.003,
    )
    down = Candidate(venue=VenueName("other"), problem="its breaker is open")
    return ranked(Wanted("BUY", Decimal(2), Decimal(1)), [down, best])


def _after(change: Change, rows: Change | None = None) -> OrderState:
    return OrderState(order=change.orders[0], outbox=(rows or change).outbox)
