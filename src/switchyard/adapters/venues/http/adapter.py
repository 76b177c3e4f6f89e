"""Our own HTTP protocol for brokers (`adapters.venues.wire`) as an adapter: requests of messages, and what a broker
said.

It reads no setting and decides nothing: the operator states the broker's rules in settings, and the bridge judges.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Literal, TypeVar
from urllib.parse import quote as quoted

import msgspec
from msgspec import UNSET

from switchyard.adapters.venues import wire as protocol
from switchyard.adapters.venues.wire import (
    BROKER_STATUS,
    IDEMPOTENCY_HEADER,
    ORDER_FINAL,
    REPORT_STATUS,
    REQUEST_EXPIRED,
    STALE_AMEND,
    TIME_HEADER,
    UNKNOWN_ORDER,
    CanceledAll,
    ErrorResponse,
    OpenOrders,
    OrderResponse,
    PlaceOrder,
    QuoteResponse,
    QuotesResponse,
    Reports,
    Statement,
    encode,
)
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.lines import stamp
from switchyard.domain.orders.order import TimeInForce
from switchyard.ports.clock import Clock
from switchyard.ports.venue import Capabilities, ProbeResult
from switchyard.venue.bridge import QUERIES, RESPONSE_SECONDS, SENDS, AnswerRules, Bridge, VenueNames, Way
from switchyard.venue.interface import (
    AmendOrder,
    Answer,
    CancelOrder,
    Descriptor,
    Fill,
    Found,
    Meaning,
    Members,
    Message,
    NewOrder,
    OrderRef,
    Page,
    Quote,
    Refused,
    Report,
    Request,
    Response,
    StatementLine,
    StatementLines,
    Took,
    Unclear,
    Unreadable,
    Wire,
)
from switchyard.venue.transport import Pool

_T = TypeVar("_T")

# Pairs of HTTP status and error code that the broker's documents call final; with None, every code of the status.
FinalErrors = frozenset[tuple[int, str | None]]

UNAUTHORIZED: Final = ("401", "403")
# What the protocol calls final.
FINAL_ERRORS: Final[FinalErrors] = frozenset({(400, None), (401, None), (403, None), (422, None)})

DESCRIPTOR: Final = Descriptor(
    kind="http",
    title="A broker that speaks Switchyard's own HTTP protocol",
    # A protocol guarantees nothing about the broker behind it: the operator states its rules.
    capabilities=Capabilities(dedupe="none", lookup="none"),
    states_rules=True,
    time_header=TIME_HEADER,
    members=Members(
        ids=frozenset({"client_order_id", "idempotency_key"}),
        # An order that the broker rejected may have these, too.
        taken=frozenset({"broker_order_id", "accepted_at", "amended_by", "replaced_by"}),
        filled=frozenset({"filled_qty", "fills", "fill", "exec_id"}),
        taken_statuses=frozenset(BROKER_STATUS.values()) - {"rejected"},
        amended=frozenset({"amended_by", "replaced_by"}),
    ),
    codes=MappingProxyType(
        {
            "429": "throttled",
            REQUEST_EXPIRED: "expired",  # final for this copy of the request only
            f"404:{UNKNOWN_ORDER}": "unknown_order",
            f"409:{ORDER_FINAL}": "order_final",
            f"409:{STALE_AMEND}": "stale_amend",
        }
    ),
)


_RULES: Final = AnswerRules(members=DESCRIPTOR.members)


def final_codes(errors: FinalErrors) -> dict[str, Meaning]:
    """The codes that the settings call final; those whose meaning the protocol gives keep it.

    401 and 403 are about the credential, unless the settings name the code too: the operator knows what that says.
    """
    codes = {str(status) if code is None else f"{status}:{code}": code for status, code in errors}
    return {
        key: "unauthorized" if key in UNAUTHORIZED else "rejected"
        for key, code in codes.items()
        if DESCRIPTOR.codes.keys().isdisjoint((key, code))
    }


class HttpProtocol:
    """One broker."""

    def __init__(
        self,
        *,
        headers: Callable[[], Mapping[str, str]] = dict,
        idempotency_header: bool = True,
        has_lookup: bool = True,
    ) -> None:
        """`headers`: the credentials at present. Without a lookup, any answer to one shows that the broker answers."""
        self._has_lookup = has_lookup
        self._headers = headers
        self._idempotency_header = idempotency_header
        self._probes = 0

    async def open(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to release."""

    async def send(self, message: Message, wire: Wire) -> Answer:
        """Send the message under its client order id, which is also its idempotency key."""
        match message:
            case NewOrder():
                request = self._request("POST", "/orders", encode(_place_order(message)), message.client_order_id)
                unreadable = "the answer cannot be read"
            case AmendOrder():
                path = _path(message.orig_client_order_id)
                request = self._request("PATCH", path, encode(_amend_order(message)), message.client_order_id)
                unreadable = "the answer does not show this amend"
            case CancelOrder():
                # Without a key, whose answer a broker may repeat.
                request = self._request("POST", f"{_path(message.client_order_id)}/cancel", b"")
                unreadable = "the answer is not about this order"
        return await wire.send(request, partial(_answer, unreadable=unreadable))

    async def find(self, ref: OrderRef, wire: Wire) -> Found | None:
        """Return the order as the broker has it."""
        return await wire.ask(self._query(_path(ref.client_order_id)), _found)

    async def open_orders(self, wire: Wire) -> AsyncIterator[Sequence[Found]]:
        """Yield every order that the broker may still fill, in pages."""
        path = "/orders?open=true"
        seen: set[str] = set()
        while True:
            page = await wire.ask(self._query(path), _reader(OpenOrders))
            yield [as_found(order) for order in page.orders]
            if page.next is None:
                return
            if page.next in seen:
                raise ValueError(f"the list of open orders does not end: {page.next!r} comes again")
            seen.add(page.next)
            path = f"/orders?open=true&after={quoted(page.next, safe='')}"

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        """Return the next execution reports; the broker holds the request briefly if there are none."""
        number = int(after or 0)
        page = await wire.ask(self._query(f"/reports?after={number}&limit={limit}"), _reader(Reports))
        # An empty page moves the cursor only if the numbering has started again.
        restarted = page.last_number < number
        last = page.last_number if page.reports or restarted else number
        return Page(reports=[_report(raw) for raw in page.reports], cursor=str(last), restarted=restarted)

    async def probe(self, wire: Wire) -> ProbeResult:
        """Look up an order id that does not exist.

        A proxy's 404 does not show that the broker behind it is working through its input.
        """
        # A new id each time, so that no cache has the answer.
        probe_id = f"probe-{wire.time.timestamp() * 1000:.0f}-{self._probes}"
        self._probes += 1
        return await wire.ask(self._query(_path(probe_id)), partial(self._probed, probe_id))

    async def cancel_all(self, wire: Wire) -> None:
        """Cancel every open order under our credentials."""
        await wire.ask(self._request("POST", "/orders/cancel-all", b""), _reader(CanceledAll))

    async def statement(self, after: str | None, limit: int, wire: Wire) -> StatementLines:
        """Return the next executions of the broker's books."""
        number = int(after or 0)
        page = await wire.ask(self._query(f"/statement?after={number}&limit={limit}"), _reader(Statement))
        lines = [_statement_line(line) for line in page.fills]
        return StatementLines(lines=lines, cursor=str(page.last_number), restarted=page.last_number < number)

    async def quotes(self, symbols: Sequence[str], wire: Wire) -> Sequence[Quote | Unreadable]:
        """Return the quotes of the symbols."""
        path = "/quotes?symbols=" + ",".join(quoted(symbol, safe="") for symbol in symbols)
        page = await wire.ask(self._query(path), _reader(QuotesResponse))
        return [_quote(raw) for raw in page.quotes]

    def _probed(self, probe_id: str, response: Response) -> ProbeResult:
        if response.status == 429:
            return "busy"
        if response.status not in (200, 404) or (self._has_lookup and not _is_unknown(probe_id, response)):
            raise ValueError(f"HTTP {response.status}")
        return "answered"

    def _request(self, method: Literal["POST", "PATCH"], path: str, body: bytes, key: str | None = None) -> Request:
        headers = {"Content-Type": "application/json", **self._headers()}
        if key is not None and self._idempotency_header:
            headers[IDEMPOTENCY_HEADER] = key
        return Request(method=method, path=path, headers=headers, body=body)

    def _query(self, path: str) -> Request:
        return Request(method="GET", path=path, headers=self._headers())


def _path(client_id: str) -> str:
    return f"/orders/{quoted(client_id, safe='')}"


def _place_order(message: NewOrder) -> PlaceOrder:
    meta = {"source": "Switchyard"}
    if message.requested_at is not None:
        meta["requested_at"] = stamp(message.requested_at)
    return PlaceOrder(
        idempotency_key=message.client_order_id,
        client_order_id=message.client_order_id,
        symbol=message.symbol,
        intent=message.side,
        qty=message.qty,
        type=message.type,
        time_in_force=message.time_in_force,
        limit_price=message.price,
        stop_price=message.stop_price,
        trace_id=message.trace_id,
        meta=meta,
        expires_at=message.expires_at or UNSET,
        account=message.account or UNSET,
        reduce_only=message.reduce_only or UNSET,
        post_only=message.post_only or UNSET,
        display_qty=message.display_qty or UNSET,
        good_till=message.good_till or UNSET,
    )


def _amend_order(message: AmendOrder) -> protocol.AmendOrder:
    """All amounts of the order, changed or not."""
    return protocol.AmendOrder(
        client_order_id=message.client_order_id,
        qty=message.qty,
        limit_price=message.price,
        stop_price=message.stop_price,
        expires_at=message.expires_at or UNSET,
    )


# What the broker says. Pure.


def _answer(response: Response, unreadable: str) -> Answer:
    if response.status in (200, 201, 202):
        try:
            shown = as_found(_decoded(response, OrderResponse))
        except ValueError:
            return Unclear(text=unreadable)
        return Took(venue_order_id=shown.venue_order_id, order=shown)
    try:
        problem = _decoded(response, ErrorResponse)
    except ValueError:
        # Throttled perhaps before its body was made.
        return Refused(code="429") if response.status == 429 else Unclear(text=f"HTTP {response.status}")
    shown_order = None if problem.order is None else as_found(problem.order)
    return Refused(code=problem.error, order=shown_order)


def _found(response: Response) -> Found | None:
    """The order, or None if the broker itself says that it is unknown: any other 404 may come from a proxy."""
    if response.status == 404 and _decoded(response, ErrorResponse).error == UNKNOWN_ORDER:
        return None
    return as_found(_reader(OrderResponse)(response))


def _is_unknown(probe_id: str, response: Response) -> bool:
    """Whether the broker itself says that it has no order with this id."""
    objects = _RULES.objects(response.body)
    if objects is None or not _RULES.names(objects) <= {probe_id} or any(map(_RULES.shows_taken, objects)):
        return False
    return _found(response) is None


def as_found(order: OrderResponse) -> Found:
    """The order as the broker shows it."""
    return Found(
        client_order_id=order.client_order_id or order.idempotency_key,
        venue_order_id=order.broker_order_id,
        status=REPORT_STATUS[order.status],
        filled_qty=order.filled_qty,
        fills=tuple(map(_fill, order.fills)),
        qty=order.qty,
        price=order.limit_price,
        stop_price=order.stop_price,
        symbol=order.symbol,
        side=order.intent,
        accepted_at=order.accepted_at,
        amended_by=order.amended_by,
        replaced_by=order.replaced_by,
    )


def _fill(fill: protocol.Fill | protocol.StatementLine) -> Fill:
    return Fill(
        exec_id=fill.exec_id,
        qty=fill.qty,
        price=fill.price,
        at=fill.at,
        fee=fill.fee,
        fee_currency=fill.fee_currency,
        exec_type=fill.exec_type,
        ref_exec_id=fill.ref_exec_id,
    )


def _statement_line(line: protocol.StatementLine) -> StatementLine:
    return StatementLine(
        client_order_id=line.client_order_id,
        venue_order_id=line.broker_order_id,
        symbol=line.symbol,
        side=line.intent,
        fill=_fill(line),
        account=line.account,
    )


def _report(raw: msgspec.Raw) -> Report | Unreadable:
    """The report; one that cannot be read does not hold up the others."""
    try:
        report = _decode_report(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Unreadable(text=bytes(raw).decode("utf-8", "replace"), error=str(error))
    return Report(
        exec_id=report.exec_id,
        client_order_id=report.client_order_id,
        venue_order_id=report.broker_order_id,
        status=REPORT_STATUS[report.status],
        at=report.at,
        qty=report.last_qty,
        price=report.last_price,
        filled_qty=report.filled_qty,
        reason=report.reason,
        fee=report.fee,
        fee_currency=report.fee_currency,
        exec_type=report.exec_type,
        ref_exec_id=report.ref_exec_id,
    )


def _quote(raw: msgspec.Raw) -> Quote | Unreadable:
    try:
        read = _decode_quote(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Unreadable(text=bytes(raw).decode("utf-8", "replace"), error=str(error))
    return Quote(
        symbol=read.symbol, bid=read.bid, ask=read.ask, at=read.at, bid_size=read.bid_size, ask_size=read.ask_size
    )


_decode_report = msgspec.json.Decoder(protocol.Report).decode
_decode_quote = msgspec.json.Decoder(QuoteResponse).decode


def _decoded(response: Response, kind: type[_T]) -> _T:
    """The body as `kind`; raises ValueError."""
    try:
        return msgspec.json.decode(response.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the response cannot be decoded: {error}") from error


def _reader(kind: type[_T]) -> Callable[[Response], _T]:
    """Read a response with status 200; raises ValueError for any other."""

    def read(response: Response) -> _T:
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}")
        return _decoded(response, kind)

    return read


def http_venue(
    name: VenueName,
    *,
    url: str,
    capabilities: Capabilities,
    clock: Clock,
    final_errors: FinalErrors = FINAL_ERRORS,
    idempotency_header: bool = True,
    names: VenueNames | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    sends: Pool = SENDS,
    queries: Pool = QUERIES,
    response_seconds: Mapping[TimeInForce, float] = RESPONSE_SECONDS,
    note_unasked: Callable[[], None] = lambda: None,
) -> Bridge:
    """A broker whose rules the operator states; `headers` are its credentials, `note_unasked` as in `Transport`."""
    adapter = HttpProtocol(
        headers=lambda: headers, idempotency_header=idempotency_header, has_lookup=capabilities.lookup != "none"
    )
    return Bridge(
        name,
        DESCRIPTOR,
        adapter,
        clock=clock,
        way=Way(url, sends=sends, queries=queries, note_unasked=note_unasked),
        capabilities=capabilities,
        codes=final_codes(final_errors),
        names=names,
        response_seconds=response_seconds,
    )
