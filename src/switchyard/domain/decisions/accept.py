"""Acceptance or rejection of a new order: the order, its idempotency key and its outbox row in one change."""

from datetime import datetime

from switchyard.domain.changes import Change
from switchyard.domain.decisions.rows import results_of
from switchyard.domain.events import accepted_order, event, key_fact
from switchyard.domain.facts import AcceptedFact, Quote, RejectedFact, RouteFact
from switchyard.domain.idempotency import KeyEntry
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.money import ONE, ZERO
from switchyard.domain.orders import Order, OrderRequest
from switchyard.domain.outbox import queued_row
from switchyard.domain.reasons import bounded_detail
from switchyard.domain.risk.claims import Claim
from switchyard.domain.risk.reasons import Violation, order_reason
from switchyard.domain.risk.reservations import Terms


def accept(
    request: OrderRequest,
    *,
    account: AccountId,
    order_id: OrderId,
    venue: VenueName,
    venue_client_order_id: VenueClientOrderId,
    key: KeyEntry | None,
    quote: Quote | None,
    now: datetime,
    trace_id: str | None = None,
    requested_at: datetime | None = None,
    violation: Violation | None = None,
    terms: Terms | None = None,
    claim: Claim | None = None,
    expires_at: datetime | None = None,
    route: RouteFact | None = None,
) -> Change:
    """Accept a checked request: the order, its key and its outbox row, in one change.

    With a violation the order is rejected instead, in the same form: it keeps its key, so that every repeat gets the
    same answer, and has no outbox row (ADR 18). `terms` say what an accepted order reserves while it is open, `claim`
    the limits that its commit has to keep (ADR 22), `expires_at` when the trading day of a DAY order ends, `route` how
    its venue was chosen, where there was a choice.
    """
    assert request.time_in_force is not None, "the request was not checked"
    order = Order(
        order_id=order_id,
        account_id=account,
        client_order_id=request.client_order_id,
        venue_client_order_id=venue_client_order_id,
        symbol=request.symbol,
        side=request.side,
        type=request.type,
        time_in_force=request.time_in_force,
        qty=request.qty,
        price=request.price,
        stop_price=request.stop_price,
        status="ACCEPTED" if violation is None else "REJECTED",
        filled_qty=ZERO,
        filled_notional=ZERO,
        venue=venue,
        venue_order_id=None,
        reason=None if violation is None else order_reason(violation),
        strategy=request.strategy,
        tags=request.tags,
        accepted_at=now,
        updated_at=now,
        version=1,
        trace_id=trace_id,
        requested_at=requested_at,
        operation=None if key is None else key.operation,
        idempotency_key=None if key is None else key.idempotency_key,
        currency=None if terms is None else terms.currency,
        multiplier=ONE if terms is None else terms.multiplier,
        reserve_price=request.price if terms is None else terms.price,
        reducing=terms is not None and terms.reducing,
        expires_at=expires_at,
        reduce_only=terms is not None and terms.reduce_only,
    )
    fact = AcceptedFact(
        order=accepted_order(order),
        venue_client_order_id=venue_client_order_id,
        idempotency=None if key is None else key_fact(key, now),
        quote=quote,
        route=route,
    )
    keys = () if key is None else (key,)
    if violation is not None:
        rejected = RejectedFact(
            order=fact.order,
            venue_client_order_id=venue_client_order_id,
            idempotency=fact.idempotency,
            quote=quote,
            route=route,
            reason=violation.reason,
            detail=bounded_detail(violation.detail) or "",
        )
        rejection = event("RiskRejected", account, order_id, rejected)
        return Change(events=(rejection,), orders=(order,), keys=keys, results=results_of(order))
    return Change(
        events=(event("OrderAccepted", account, order_id, fact),),
        orders=(order,),
        keys=keys,
        outbox=(queued_row(order, "new", 1, now),),
        claims=() if claim is None else (claim,),
    )
