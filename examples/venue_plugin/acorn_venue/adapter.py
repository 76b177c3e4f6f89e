"""Acorn's REST API as an adapter: requests of messages, and what the broker said. It decides nothing."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode
from uuid import uuid4

from acorn_venue.descriptor import WINDOW
from switchyard.venue import (
    AmendOrder,
    Answer,
    CancelOrder,
    Configuration,
    Fill,
    Found,
    Message,
    NewOrder,
    OrderRef,
    Page,
    ProbeResult,
    Quote,
    Refused,
    Report,
    ReportStatus,
    Request,
    Response,
    Side,
    StatementLine,
    StatementLines,
    TimeInForce,
    Took,
    Unreadable,
    Wire,
)

Json = dict[str, Any]
_T = TypeVar("_T")

PAGES_MAX: Final = 10_000
STATUS: Final[dict[str, ReportStatus]] = {
    "live": "WORKING",
    "part": "PARTIALLY_FILLED",
    "done": "FILLED",
    "dead": "CANCELED",
    "over": "EXPIRED",
    "void": "REJECTED",
}
SIDE: Final[dict[str, Side]] = {"B": "BUY", "S": "SELL"}
TIF: Final[dict[TimeInForce, str]] = {"GTC": "gtc", "IOC": "ioc", "GTD": "till"}


class AcornError(Exception):
    """An answer to a question that does not answer it."""


class WrongTime(AcornError):
    """The request's time is too far from Acorn's."""


class AcornAdapter:
    """One Acorn account."""

    def __init__(self, configuration: Configuration) -> None:
        self._secret = configuration.secret
        self._desk = configuration.options["desk"]

    async def open(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to release."""

    async def send(self, message: Message, wire: Wire) -> Answer:
        """Send the message, signed with the time of its attempt."""
        match message:
            case NewOrder():
                path, body = "/v2/orders", self._order(message)
            case AmendOrder():
                path, body = "/v2/orders/change", _change(message)
            case CancelOrder():
                path, body = "/v2/orders/cancel", {"ref": message.client_order_id}
        content = json.dumps(body).encode()
        return await wire.send(self._signed("POST", path, message.attempted_at, content), _answer)

    def _order(self, message: NewOrder) -> Json:
        return {
            "ref": message.client_order_id,
            "pair": message.symbol,
            "dir": message.side[0],
            "tif": TIF[message.time_in_force],
            "amount": str(message.qty),
            "limit": None if message.price is None else str(message.price),
            "maker": message.post_only,
            "till": None if message.good_till is None else _ms(message.good_till),
            "desk": message.account or self._desk,
        }

    def _signed(self, method: Literal["GET", "POST"], path: str, at: datetime, content: bytes | None = None) -> Request:
        at_ms, window_ms = str(_ms(at)), str(WINDOW // timedelta(milliseconds=1))
        signed = "\n".join((method, path, at_ms, window_ms, "")).encode() + (content or b"")
        headers = {
            "Content-Type": "application/json",
            "Acorn-Key": self._secret("key"),
            "Acorn-Ms": at_ms,
            "Acorn-Window": window_ms,
            "Acorn-Sign": hmac.new(self._secret("secret").encode(), signed, hashlib.sha256).hexdigest(),
        }
        return Request(method=method, path=path, headers=headers, body=content)

    async def _ask(self, wire: Wire, read: Callable[[Response], _T], path: str, **values: str) -> _T:
        """Ask a question; before the first answer, `wire.time` is our own clock, which may be wrong."""
        path = f"{path}?{urlencode(values)}"
        try:
            return await wire.ask(self._signed("GET", path, wire.time), read)
        except WrongTime:
            await wire.ask(Request(method="GET", path="/v2/time"), _data)
            return await wire.ask(self._signed("GET", path, wire.time), read)

    async def find(self, ref: OrderRef, wire: Wire) -> Found | None:
        """Look the order up; Acorn needs its pair."""
        if ref.symbol is None:
            raise ValueError("Acorn looks up no order without its pair")
        return await self._ask(wire, _found, "/v2/orders/lookup", pair=ref.symbol, ref=ref.client_order_id)

    async def probe(self, wire: Wire) -> ProbeResult:
        """Look up an order that does not exist, under a new id each time."""
        return await self._ask(wire, _probed, "/v2/orders/lookup", pair="PROBE", ref=str(uuid4()))

    async def open_orders(self, wire: Wire) -> AsyncIterator[Sequence[Found]]:
        """Yield the open orders in pages, until Acorn names no next one."""
        start = "o0"
        for _ in range(PAGES_MAX):
            page = await self._ask(wire, _data, "/v2/orders/open", **{"from": start})
            yield [_order(order) for order in page["orders"]]
            if page["next"] is None:
                return
            start = page["next"]
        raise AcornError("the list of open orders does not end")

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        """Return the next executions and ends of orders."""
        page = await self._ask(wire, _data, "/v2/events", **{"from": after or "e0", "count": str(limit)})
        return Page(reports=[_report(event) for event in page["events"]], cursor=page["cursor"])

    async def statement(self, after: str | None, limit: int, wire: Wire) -> StatementLines:
        """Return the next executions of Acorn's books."""
        page = await self._ask(wire, _data, "/v2/statement", **{"from": after or "e0", "count": str(limit)})
        return StatementLines(lines=[_line(event) for event in page["events"]], cursor=page["cursor"])

    async def quotes(self, symbols: Sequence[str], wire: Wire) -> Sequence[Quote | Unreadable]:
        """Return the quotes of the pairs; Acorn leaves out those without a market."""
        page = await self._ask(wire, _data, "/v2/quotes", pairs=",".join(symbols))
        return [
            Quote(symbol=raw["pair"], bid=Decimal(raw["bid"]), ask=Decimal(raw["ask"]), at=_time(raw["ms"]))
            for raw in page["quotes"]
        ]

    async def cancel_all(self, wire: Wire) -> None:
        """Cancel every open order."""
        await self._command(wire, "/v2/orders/cancel-all", {})

    async def cancel_all_after(self, seconds: int, wire: Wire) -> None:
        """Set Acorn's guard, which cancels every open order after this time."""
        await self._command(wire, "/v2/orders/guard", {"seconds": seconds})

    async def _command(self, wire: Wire, path: str, body: Json) -> None:
        """Ask for something that concerns all orders; a repeat does no harm."""
        content = json.dumps(body).encode()
        try:
            await wire.ask(self._signed("POST", path, wire.time, content), _data)
        except WrongTime:
            await wire.ask(Request(method="GET", path="/v2/time"), _data)
            await wire.ask(self._signed("POST", path, wire.time, content), _data)


def _change(message: AmendOrder) -> Json:
    return {
        "ref": message.client_order_id,
        "of": message.orig_client_order_id,
        "amount": str(message.qty),
        "limit": None if message.price is None else str(message.price),
    }


# What Acorn says. Pure.


def _answer(response: Response) -> Answer:
    """What an answer says about a message: with errors of its own, too, the status is 200."""
    if response.status == 429:
        return Refused(code="429")  # perhaps from a proxy, and not in JSON
    body = json.loads(response.body)
    shown = _order(body["data"]) if "data" in body else None
    if body["ok"] and shown is not None:
        return Took(venue_order_id=shown.venue_order_id, order=shown)
    return Refused(code=body["code"], order=shown)


def _found(response: Response) -> Found | None:
    """The order; None only if Acorn itself says that it has none."""
    if response.status == 200 and json.loads(response.body).get("code") == "NO_ORDER":
        return None
    return _order(_data(response))


def _probed(response: Response) -> ProbeResult:
    if response.status == 429:
        return "busy"
    if _found(response) is not None:
        raise AcornError("an order that does not exist was found")
    return "answered"


def _data(response: Response) -> Json:
    """The data of an answer to a question; raises for every other answer."""
    body = json.loads(response.body)
    if body.get("code") == "TOO_LATE":
        raise WrongTime
    if response.status != 200 or not body["ok"]:
        raise AcornError(f"HTTP {response.status} {body.get('code')}")
    data: Json = body["data"]
    return data


def _order(raw: Json) -> Found:
    return Found(
        client_order_id=raw["ref"],
        venue_order_id=raw["oid"],
        status=STATUS[raw["state"]],
        filled_qty=Decimal(raw["done"]),
        fills=tuple(map(_fill, raw["fills"])),
        qty=Decimal(raw["amount"]),
        price=None if raw["limit"] is None else Decimal(raw["limit"]),
        symbol=raw["pair"],
        side=SIDE[raw["dir"]],
        accepted_at=_time(raw["opened"]),
        amended_by=raw["change"],
    )


def _fill(raw: Json) -> Fill:
    return Fill(exec_id=raw["fid"], qty=Decimal(raw["amount"]), price=Decimal(raw["price"]), at=_time(raw["ms"]))


def _report(event: Json) -> Report | Unreadable:
    """An event as a report; one that cannot be read does not hold up the others."""
    try:
        order = _order(event["order"])
        fill = _fill(event["fill"]) if event["what"] == "traded" else None
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return Unreadable(text=json.dumps(event), error=repr(error))
    return Report(
        exec_id=f"end-{order.venue_order_id}" if fill is None else fill.exec_id,
        client_order_id=order.client_order_id,
        venue_order_id=order.venue_order_id,
        status=order.status,
        at=_time(event["ms"]),
        qty=Decimal() if fill is None else fill.qty,
        price=None if fill is None else fill.price,
        filled_qty=order.filled_qty,
    )


def _line(event: Json) -> StatementLine:
    order = _order(event["order"])
    assert order.symbol is not None and order.side is not None, "an order has both"
    return StatementLine(
        client_order_id=order.client_order_id,
        venue_order_id=order.venue_order_id,
        symbol=order.symbol,
        side=order.side,
        fill=_fill(event["fill"]),
    )


def _ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
