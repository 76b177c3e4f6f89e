"""The Do-Layer's desk: place an order, wait for what the broker makes of it, answer the same to every repeat."""

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import structlog

from switchyard.domain.canonical import digest
from switchyard.domain.changes import Change
from switchyard.domain.do_order import (
    DO_ORDER,
    DoFill,
    DoOrderRequest,
    ExecResult,
    as_order,
    do_order_request,
    exec_result,
    lots_of,
    result_digest,
)
from switchyard.domain.errors import (
    BrokerFailed,
    IdempotencyConflict,
    KeyMismatch,
    QueueDelayed,
    QueueFull,
    SwitchyardError,
)
from switchyard.domain.events import ReportFact, ResultFact, encode, event
from switchyard.domain.idempotency import LedgerEntry, checked_key
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.instruments import Catalogue
from switchyard.domain.lifecycle import is_final
from switchyard.domain.orders import Order, is_proven_unsent
from switchyard.flow.constraints import Constraints
from switchyard.flow.decide import Commit
from switchyard.flow.duplicates import DuplicateWatch
from switchyard.flow.intents import Intent, Placed, Placing
from switchyard.flow.metrics import Metrics
from switchyard.flow.remember import Remembered
from switchyard.flow.routes import Routes
from switchyard.flow.stream import StreamHub
from switchyard.ports.clock import Clock
from switchyard.ports.ledger import Ledger
from switchyard.ports.queries import Queries

log = structlog.get_logger()

# The broker's time-outs by time in force, and a little for the way there and back.
PATIENCE_SECONDS = {"IOC": 2.5, "FOK": 5.0, "GTC": 5.0}
MARGIN_SECONDS = 0.5
# News come by themselves; this is for the case that one got lost.
LOOK_SECONDS = 0.5
# Each fill is an event; an order in more parts than this shows its newest ones.
EVENTS_MAX = 1_000


class DoAnswer(msgspec.Struct, frozen=True):
    """The answer's status and body; `replayed` where an earlier request had placed the order."""

    http_status: int
    body: bytes
    result_status: str
    reason_code: str | None = None
    replayed: bool = False


class _ReportLine(msgspec.Struct):
    data: ReportFact


_report_line = msgspec.json.Decoder(_ReportLine)


class DoDesk:
    """`POST /do/order` over the same ledger, journal and outbox as every other order."""

    def __init__(
        self,
        *,
        commit: Commit,
        queries: Queries,
        ledger: Ledger,
        placing: Placing,
        catalogue: Catalogue,
        routes: Routes,
        constraints: Constraints,
        remembered: Remembered,
        duplicates: DuplicateWatch,
        hub: StreamHub,
        clock: Clock,
        metrics: Metrics,
        key_ttl: timedelta,
    ) -> None:
        self._commit = commit
        self._queries = queries
        self._ledger = ledger
        self._placing = placing
        self._catalogue = catalogue
        self._routes = routes
        self._constraints = constraints
        self._remembered = remembered
        self._duplicates = duplicates
        self._hub = hub
        self._clock = clock
        self._metrics = metrics
        self._key_ttl = key_ttl

    async def place(self, account: AccountId, body: Mapping[str, Any], header_key: str | None) -> DoAnswer:
        """Place the order once, however often this is called, and answer with what is known of it."""
        request = do_order_request(body)
        if header_key != request.idempotency_key:
            raise KeyMismatch
        intent = Intent(
            account_id=account,
            operation=DO_ORDER,
            key=checked_key(header_key),
            digest=digest(body),
            created_at=self._clock.now(),
            ttl=self._key_ttl,
        )
        known = await self._remembered.find(account, DO_ORDER, intent.key, intent.digest)
        if known is not None and known.response is not None and known.http_status is not None:
            self._duplicates.found(account, intent.key, known.order_id)
            return _recorded(known.http_status, known.response)
        taken = await self._ledger.entry(account, DO_ORDER, intent.key)
        if taken is not None and not await self._begins_anew(taken):
            return await self._repeat(intent, request, taken)
        return await self._first(intent, request)

    async def _first(self, intent: Intent, request: DoOrderRequest) -> DoAnswer:
        order_request = as_order(request, self._catalogue)
        try:
            to = self._routes.open_way(order_request)
        except QueueDelayed as error:
            raise BrokerFailed(str(error)) from error
        await self._constraints.check(intent.account_id, request, to.venue)
        begun = self._clock.monotonic()
        placed = await self._placing.place_once(intent, order_request, to, self._begins_anew)
        assert placed.entry is not None, "it has a key"
        if placed.replayed:
            return await self._repeat(intent, request, placed.entry)
        self._duplicates.placed()
        order = await self._outcome(placed, request)
        self._metrics.broker_latency.observe((self._clock.monotonic() - begun) * 1000)
        return await self._answer(placed.entry, request, order, http_status=201)

    async def _repeat(self, intent: Intent, request: DoOrderRequest, taken: LedgerEntry) -> DoAnswer:
        if taken.request_digest != intent.digest:
            self._metrics.do_conflicts.inc()
            raise IdempotencyConflict(intent.key)
        self._duplicates.found(intent.account_id, intent.key, taken.order_id)
        if taken.response_payload_json is not None and taken.http_status is not None:
            self._keep(taken)
            return _recorded(taken.http_status, taken.response_payload_json)
        order = await self._order(taken.order_id)
        answer = await self._answer(taken, request, order, http_status=200)
        return msgspec.structs.replace(answer, replayed=True)

    async def _begins_anew(self, taken: LedgerEntry) -> bool:
        """Whether the key is free again: its order never left, or it has ended and the key's time is over."""
        order = await self._queries.order(taken.order_id)
        if order is None or is_proven_unsent(order):
            return True
        if self._clock.now() < taken.expires_at or not is_final(order.status):
            return False
        self._metrics.expired_reuse.inc()
        log.warning("an expired key is used again", account_id=taken.account_id, idempotency_key=taken.idempotency_key)
        return True

    async def _outcome(self, placed: Placed, request: DoOrderRequest) -> Order:
        """The order once the broker's word is known, or as it stands when the broker's time is over."""
        ends_at = self._clock.monotonic() + PATIENCE_SECONDS[request.time_in_force] + MARGIN_SECONDS
        try:
            async with self._hub.subscribe("order", placed.order_id) as subscription:
                order = await self._order(placed.order_id)
                async with contextlib.aclosing(subscription.batches(LOOK_SECONDS)) as news:
                    while not _is_known(order) and self._clock.monotonic() < ends_at:
                        if await anext(news, None) is None:
                            break  # the streams are closing, and this process with them
                        order = await self._order(placed.order_id)
                return order
        except QueueFull:
            return await self._order(placed.order_id)  # too many wait already: this one is told what is known now

    async def _order(self, order_id: OrderId) -> Order:
        order = await self._queries.order(order_id)
        assert order is not None, "a key and its order are written together, and orders are never removed"
        return order

    async def _answer(self, entry: LedgerEntry, request: DoOrderRequest, order: Order, *, http_status: int) -> DoAnswer:
        failure = _failure(order, is_first=http_status == 201)
        if failure is not None:
            code, status = failure
            body = encode(
                {
                    "error": code,
                    "message": _MESSAGES[code],
                    "order_id": request.order_id,
                    "idempotency_key": request.idempotency_key,
                    "reason_code": order.reason,
                    "trace_id": request.trace_id,
                }
            )
            if order.status == "REJECTED" and not is_proven_unsent(order):
                await self._record(entry, "failed", status, body, digest({"error": code, "reason_code": order.reason}))
            return DoAnswer(status, body, code, order.reason)
        result = await self._result(request, order)
        body = encode(result)
        if is_final(order.status):
            await self._record(entry, "succeeded", 200, body, result_digest(result))
        return DoAnswer(http_status, body, result.status, order.reason)

    async def _result(self, request: DoOrderRequest, order: Order) -> ExecResult:
        instrument = self._catalogue.find(order.symbol)
        fills = []
        if order.filled_qty:
            events = await self._queries.last_events(order_id=order.order_id, limit=EVENTS_MAX)
            reports = [_report_line.decode(one.text + "}").data for one in events if one.type == "ExecutionReport"]
            fills = [
                DoFill(
                    exec_id=report.exec_id,
                    qty=lots_of(report.last_qty, instrument),
                    price=report.last_price,
                    at=report.at,
                )
                for report in reports
                if report.last_qty
            ]
        return exec_result(request, order, fills, instrument, trace_id=request.trace_id)

    async def _record(self, entry: LedgerEntry, status: str, http_status: int, body: bytes, of: str) -> None:
        """Keep the final answer beside its key; whoever is faster has written the same."""
        kept = msgspec.structs.replace(
            entry,
            status=status,
            http_status=http_status,
            response_payload_json=body.decode(),
            result_digest=of,
            version=entry.version + 1,
        )
        fact = ResultFact(
            operation=kept.operation,
            key=kept.idempotency_key,
            status=kept.status,
            http_status=http_status,
            response=body.decode(),
            result_digest=of,
            version=kept.version,
        )
        with contextlib.suppress(SwitchyardError):  # the answer stands; the next repeat writes it
            await self._commit(
                Change(events=(event("ResultRecorded", kept.account_id, kept.order_id, fact),), ledger=(kept,))
            )
        self._keep(kept)

    def _keep(self, entry: LedgerEntry) -> None:
        self._remembered.keep(
            entry,
            "completed" if entry.status == "succeeded" else "failed",
            now=self._clock.now(),
            http_status=entry.http_status,
            response=entry.response_payload_json,
        )


_MESSAGES = {
    "BROKER_REJECTED": "the broker refused the order",
    "BROKER_DOWN": "the broker could not be reached and the order was not sent: repeat with the same key",
    "BROKER_TIMEOUT": "the broker did not answer in time: repeat with the same key to learn what became of it",
}


def _is_known(order: Order) -> bool:
    """Whether the broker's word is known; an order that may rest is, once the broker has it."""
    if is_final(order.status) or order.status == "UNKNOWN":
        return True
    return order.time_in_force == "GTC" and order.status not in ("ACCEPTED", "SENDING")


def _failure(order: Order, *, is_first: bool) -> tuple[str, int] | None:
    """The error that an order's end is for its client, and its HTTP status."""
    if is_proven_unsent(order):
        return ("BROKER_TIMEOUT", 504) if order.reason == "BROKER_TIMEOUT" else ("BROKER_DOWN", 503)
    if order.status == "REJECTED":
        return "BROKER_REJECTED", 409 if (order.reason or "").startswith("CONFLICT") else 400
    if order.status == "UNKNOWN" and is_first:
        return "BROKER_TIMEOUT", 504
    return None


def _recorded(http_status: int, body: str) -> DoAnswer:
    """A final answer as it was kept."""
    shown = msgspec.json.decode(body, type=dict[str, Any])
    return DoAnswer(
        http_status, body.encode(), shown.get("status") or shown["error"], shown.get("reason_code"), replayed=True
    )
