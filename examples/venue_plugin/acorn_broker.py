"""Acorn, a fictional broker in one file, to try its adapter on: `python acorn_broker.py --port 9900 --log acorn.jsonl`.

It checks what its documents promise (signature, age of a request, ids of open orders) itself, and keeps every order and
execution in an fsynced log, which it reads again at its start: the judge of what was executed. `POST /control` sets
faults and fills resting orders, `GET /control/REF` tells what was executed under a client order id.
"""

import argparse
import asyncio
import hashlib
import hmac
import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

# Bid and ask, which never move.
MARKET = {"USD/JPY": ("149.99", "150.01"), "EUR/USD": ("1.0999", "1.1001"), "BTC/USD": ("59990", "60010")}
WINDOW_MAX_MS = 10_000
EARLY_MAX_MS = 1_000
AMOUNT_MAX = Decimal(10_000_000)
PAGE_MAX = 100
DAY_MS = 86_400_000
GUARD_MAX_SECONDS = 3_600
STEP_SECONDS = 0.05
LIVE = ("live", "part")
# With these codes, the broker's documents say that the order may still be carried out; here it is.
CARRIED_OUT = ("ENGINE_LATE",)

Json = dict[str, Any]


class Refusal(Exception):
    """The broker's own error, which it sends with HTTP 200."""

    def __init__(self, code: str, order: Json | None = None) -> None:
        super().__init__(code)
        self.body: Json = {"ok": False, "code": code} | ({} if order is None else {"data": order})


def is_uuid(ref: str) -> bool:
    """Whether it is a random UUID as the documents ask for: version 4, in lower case, with hyphens."""
    return str(UUID(ref)) == ref and UUID(ref).version == 4


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


class Broker:
    """The orders and events of the log; every change is a line of it first."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.orders: list[Json] = []
        self.events: list[Json] = []
        self.by_name: dict[str, Json] = {}
        """The last order of each client order id, and of the id of each change."""
        self.faults: Json = {}
        self.may_trade = True
        """Whether the key has the permission to send more than questions."""
        self.numbers: dict[str, bool] = {}
        """Of each numbered request: whether it has arrived. One that was asked about before that is never taken."""
        self.sessions: list[str] = []
        """The sessions that requests named, one after the other."""
        self.aged_ms = 0
        """By so much every order is older than its time says, for tests."""
        self.requests: dict[str, int] = {}
        """How many requests to place an order have arrived, by client order id."""
        self.guarded_until: int | None = None
        """When all open orders are cancelled, in milliseconds; None: not at all."""
        path: Path = options.log
        for line in path.read_bytes().splitlines() if path.exists() else []:
            self._apply(json.loads(line))
        self._log = path.open("ab")

    def _write(self, event: Json) -> None:
        self._log.write(json.dumps(event).encode() + b"\n")
        self._log.flush()
        os.fsync(self._log.fileno())
        self._apply(event)

    def _apply(self, event: Json) -> None:
        if event["what"] == "guarded":
            self.guarded_until = event["ms"] + event["seconds"] * 1000 if event["seconds"] else None
            self.events.append(event)
            return
        order = event["order"]
        if event["what"] == "opened":
            self.orders.append(order)
        else:
            self.orders[int(order["oid"][2:]) - 1] = order
        for name in (order["ref"], order["change"]):
            if name is not None:
                self.by_name[name] = order
        self.events.append(event)

    def _step(self, what: str, order: Json, **facts: Any) -> Json:
        self._write({"what": what, "ms": now_ms(), "order": order, **facts})
        return order

    # What clients can do.

    def place(self, body: Json) -> Json:
        try:
            amount, limit = Decimal(body["amount"]), body["limit"]
            fields = {"ref": str(body["ref"]), "pair": body["pair"], "dir": body["dir"], "amount": body["amount"]}
            is_known = body["pair"] in MARKET and body["dir"] in "BS" and body["tif"] in ("gtc", "ioc", "till")
            has_end = body.get("till") is not None
            if has_end != (body["tif"] == "till") or (has_end and body["till"] <= now_ms()):
                raise ValueError
            if not is_known or amount <= 0 or (limit is not None and Decimal(limit) <= 0) or not is_uuid(body["ref"]):
                raise ValueError
        except (KeyError, ValueError, ArithmeticError):
            raise Refusal("BAD_FIELD") from None
        if amount > AMOUNT_MAX:
            raise Refusal("NO_FUNDS")
        known = self.by_name.get(fields["ref"])
        if known is not None and (known["state"] in LIVE or self.options.permanent):
            raise Refusal("REF_IN_USE")
        if body.get("maker") and (limit is None or self._crosses(body["pair"], body["dir"], limit)):
            raise Refusal("WOULD_TRADE")
        order = {
            **fields,
            "tif": body["tif"],
            "oid": f"A-{len(self.orders) + 1}",
            "limit": limit,
            "maker": bool(body.get("maker")),
            "till": body.get("till"),
            "state": "live",
            "done": "0",
            "opened": now_ms(),
            "fills": [],
            "change": None,
        }
        self._step("opened", order)
        return self._match(order, body["tif"] == "ioc")

    def _crosses(self, pair: str, direction: str, limit: str | None) -> bool:
        bid, ask = MARKET[pair]
        if limit is None:
            return True
        return Decimal(limit) >= Decimal(ask) if direction == "B" else Decimal(limit) <= Decimal(bid)

    def _match(self, order: Json, ends: bool = False) -> Json:
        if self._crosses(order["pair"], order["dir"], order["limit"]):
            price = MARKET[order["pair"]][order["dir"] == "B"]
            return self.trade(order, Decimal(order["amount"]) - Decimal(order["done"]), price)
        return self._step("ended", {**order, "state": "dead"}) if ends else order

    def trade(self, order: Json, amount: Decimal, price: str) -> Json:
        """Execute a part of an order; executions are numbered for each pair."""
        number = 1 + sum(e["what"] == "traded" and e["order"]["pair"] == order["pair"] for e in self.events)
        fill = {"fid": str(number), "amount": str(amount), "price": price, "ms": now_ms()}
        done = Decimal(order["done"]) + amount
        state = "done" if done == Decimal(order["amount"]) else "part"
        traded = {**order, "state": state, "done": str(done), "fills": [*order["fills"], fill]}
        return self._step("traded", traded, fill={"fid": None} if self.take("damage") else fill)

    def change(self, body: Json) -> Json:
        """Change an open order in place; only the change that names the last one is carried out."""
        order = self.named(body["of"])
        if any(e["what"] == "changed" and e["order"]["change"] == body["ref"] for e in self.events):
            raise Refusal("REF_IN_USE", self.by_name[body["ref"]])
        if order["state"] not in LIVE:
            raise Refusal("ORDER_OVER", order)
        if body["of"] != (order["change"] or order["ref"]):
            raise Refusal("OLD_CHANGE")
        if Decimal(body["amount"]) <= Decimal(order["done"]) or not is_uuid(body["ref"]):
            raise Refusal("BAD_FIELD")
        if order["maker"] and self._crosses(order["pair"], order["dir"], body["limit"]):
            raise Refusal("WOULD_TRADE")
        changed = {**order, "amount": body["amount"], "limit": body["limit"], "change": body["ref"]}
        return self._match(self._step("changed", changed))

    def cancel(self, body: Json) -> Json:
        order = self.named(body["ref"])
        if order["state"] not in LIVE:
            raise Refusal("ORDER_OVER", order)
        return self._step("ended", {**order, "state": "dead"})

    def cancel_all(self) -> Json:
        """Cancel every open order."""
        live = [order for order in self.orders if order["state"] in LIVE]
        for order in live:
            self._step("ended", {**order, "state": "dead"})
        return {"cancelled": len(live)}

    def guard(self, body: Json) -> Json:
        """Set the dead man's switch, or with 0 switch it off."""
        seconds = body.get("seconds")
        if not isinstance(seconds, int) or not 0 <= seconds <= GUARD_MAX_SECONDS:
            raise Refusal("BAD_FIELD")
        self._write({"what": "guarded", "ms": now_ms(), "seconds": seconds})
        return {"seconds": seconds}

    def advance(self) -> None:
        """End the orders whose time is over, and all of them if nobody has renewed the dead man's switch."""
        if self.guarded_until is not None and now_ms() >= self.guarded_until:
            self.cancel_all()
            self._write({"what": "guarded", "ms": now_ms(), "seconds": 0})
        for order in self.orders:
            if order["state"] in LIVE and order["till"] is not None and now_ms() >= order["till"]:
                self._step("ended", {**order, "state": "over"})

    def named(self, name: str, pair: str | None = None) -> Json:
        order = self.by_name.get(name)
        if order is not None:
            order = self.orders[int(order["oid"][2:]) - 1]
        is_forgotten = order is not None and order["state"] not in LIVE and self.is_old(order)
        if order is None or is_forgotten or pair not in (None, order["pair"]):
            raise Refusal("NO_ORDER")
        return order

    def take_number(self, number: str) -> None:
        """Note that a numbered request has arrived; raises Refusal if it was asked about before."""
        if not self.numbers.setdefault(number, True) and not self.options.takes_passed:
            raise Refusal("NUMBER_PASSED")
        self.numbers[number] = True

    def pass_numbers(self, numbers: list[str]) -> bool:
        """Pass the numbers that have not arrived, as a gap fill does; whether none of them has."""
        arrived = [self.numbers.setdefault(number, False) for number in numbers]
        return not any(arrived)

    def is_old(self, order: Json) -> bool:
        """Whether an order that has ended is not kept any more."""
        age_ms: float = now_ms() + self.aged_ms - order["opened"]
        return age_ms > float(self.options.keeps_days) * DAY_MS

    def open_page(self, start: int, count: int) -> Json:
        live = [order for order in self.orders[start:] if order["state"] in LIVE]
        following = live[count]["oid"][2:] if len(live) > count else None
        return {"orders": live[:count], "next": None if following is None else f"o{int(following) - 1}"}

    def event_page(self, cursor: str, count: int, kinds: tuple[str, ...]) -> Json:
        start = int(cursor[1:] or 0)
        read = [(at, event) for at, event in enumerate(self.events) if at >= start and event["what"] in kinds][:count]
        return {"events": [event for _, event in read], "cursor": f"e{read[-1][0] + 1 if read else start}"}

    # The wire.

    def answer(self, method: str, target: str, headers: dict[str, str], raw: bytes) -> Json:
        """The answer to a signed request; raises Refusal."""
        if target == "/v2/time":
            return {}
        signed = "\n".join((method, target, headers.get("acorn-ms", ""), headers.get("acorn-window", ""), ""))
        wanted = hmac.new(self.options.secret.encode(), signed.encode() + raw, hashlib.sha256).hexdigest()
        if headers.get("acorn-key") != self.options.key or not hmac.compare_digest(headers["acorn-sign"], wanted):
            raise Refusal("BAD_SIGN")
        if method == "POST" and not self.may_trade:
            raise Refusal("BAD_SIGN")
        if (session := headers.get("acorn-session")) and [session] != self.sessions[-1:]:
            self.sessions.append(session)
        sent_at, window = int(headers["acorn-ms"]), int(headers["acorn-window"])
        if window > WINDOW_MAX_MS:
            raise Refusal("BAD_FIELD")
        age = now_ms() - sent_at
        if age < -EARLY_MAX_MS or (age > window and not self.options.ignores_expiry):
            raise Refusal("TOO_LATE")
        path, _, query = target.partition("?")
        asked, body = dict(parse_qsl(query)), json.loads(raw or b"{}")
        count = min(int(asked.get("count", PAGE_MAX)), PAGE_MAX)
        match method, path:
            case "POST", "/v2/orders":
                if "acorn-number" in headers:
                    self.take_number(headers["acorn-number"])
                return self.place(body)
            case "POST", "/v2/orders/change":
                return self.change(body)
            case "POST", "/v2/orders/cancel":
                return self.cancel(body)
            case "GET", "/v2/numbers/pass":
                return {"passed": self.pass_numbers(asked["numbers"].split(","))}
            case "POST", "/v2/orders/cancel-all":
                return self.cancel_all()
            case "POST", "/v2/orders/guard":
                return self.guard(body)
            case "GET", "/v2/orders/lookup":
                return self.named(asked["ref"], asked["pair"])
            case "GET", "/v2/orders/open":
                return self.open_page(int(asked.get("from", "o0")[1:]), count)
            case "GET", "/v2/events":
                return self.event_page(asked.get("from", "e"), count, ("traded", "ended"))
            case "GET", "/v2/statement":
                return self.event_page(asked.get("from", "e"), count, ("traded",))
            case "GET", "/v2/quotes":
                pairs = [pair for pair in asked["pairs"].split(",") if pair in MARKET]
                return {
                    "quotes": [{"pair": p, "bid": MARKET[p][0], "ask": MARKET[p][1], "ms": now_ms()} for p in pairs]
                }
            case _:
                raise Refusal("NO_ROUTE")

    def control(self, method: str, target: str, raw: bytes) -> Json:
        """Faults, fills and the record, for tests."""
        if method == "POST":
            wanted = json.loads(raw)
            self.faults |= wanted.get("faults", {})
            self.options.key, self.options.secret = wanted.get("keys", (self.options.key, self.options.secret))
            self.may_trade = wanted.get("may_trade", self.may_trade)
            self.aged_ms += wanted.get("age_ms", 0)
            for order in [one for one in self.orders if one["ref"] == wanted.get("fill") and one["state"] in LIVE]:
                rest = Decimal(order["amount"]) - Decimal(order["done"])
                self.trade(order, Decimal(wanted.get("amount", rest)), order["limit"] or MARKET[order["pair"]][1])
            return {"faults": self.faults, "sessions": self.sessions}
        ref = target.rpartition("/")[2]
        done = sum((Decimal(one["done"]) for one in self.orders if one["ref"] == ref), Decimal())
        counts = {"requests": self.requests.get(ref, 0), "all": sum(self.requests.values())}
        return {"executed": str(done), **counts, "order": self.by_name.get(ref)}

    def take(self, name: str) -> Any:
        """The fault, if it is set; each is set for one request."""
        return self.faults.pop(name, None)


async def serve(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request, its faults, and its answer; then the connection ends."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    if target.startswith("/control"):
        return write(writer, 200, broker.control(method, target, raw))
    if method == "GET" and target != "/v2/time" and (answer := broker.take("question")):
        return write(writer, answer[0], answer[1].encode())
    is_order = (method, target) == ("POST", "/v2/orders")
    if is_order and broker.take("lose_request"):
        return writer.transport.abort()
    if is_order and (seconds := broker.take("delay")):
        await asyncio.sleep(seconds)
    if is_order:
        ref = json.loads(raw).get("ref")
        broker.requests[ref] = broker.requests.get(ref, 0) + 1
        if code := broker.take("answer"):
            if code in CARRIED_OUT:
                broker.answer(method, target, headers, raw)
            return write(writer, int(code) if code.isdigit() else 200, {"ok": False, "code": code})
        if broker.take("deny_first"):
            write(writer, 200, {"ok": False, "code": "NO_FUNDS"})
        if broker.take("duplicate"):
            broker.requests[ref] += 1
            broker.answer(method, target, headers, raw)
    try:
        body = {"ok": True, "data": broker.answer(method, target, headers, raw)}
    except Refusal as refusal:
        body = refusal.body
    if is_order and broker.take("lose_answer"):
        return writer.transport.abort()
    if is_order and (status := broker.take("fail_after")):
        return write(writer, status, {"ok": False, "code": "SERVER"})
    write(writer, 200, body)
    if is_order and broker.take("second_response"):
        write(writer, 200, {"ok": False, "code": "NO_FUNDS"})
    return None


def write(writer: asyncio.StreamWriter, status: int, body: Json | bytes) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    time = datetime.now(UTC).isoformat()
    head = f"HTTP/1.1 {status} X\r\nAcorn-Now: {time}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + content)


async def main(options: argparse.Namespace) -> None:
    broker = Broker(options)

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(broker, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", options.port)
    print(f"Acorn listens on {options.port}", flush=True)
    while server.is_serving():
        broker.advance()
        await asyncio.sleep(STEP_SECONDS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A fictional broker.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--key", default="key")
    parser.add_argument("--secret", default="secret")
    parser.add_argument("--permanent", action="store_true", help="never take a ref twice")
    parser.add_argument("--keeps-days", type=float, default=7, help="how long orders that have ended are looked up")
    parser.add_argument("--takes-passed", action="store_true", help="take requests whose number was passed")
    parser.add_argument("--ignores-expiry", action="store_true", help="take requests of any age")
    asyncio.run(main(parser.parse_args()))
