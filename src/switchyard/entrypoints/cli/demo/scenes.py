"""The events of the demo's day, one function each: they call the API as users and operators do, and tell about it."""

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from switchyard.client import ApiError
from switchyard.domain.values import plain
from switchyard.entrypoints.cli.demo.desk import OPERATOR, Desk
from switchyard.entrypoints.cli.demo.plan import ACCOUNTS, TRADERS
from switchyard.entrypoints.cli.demo.processes import DemoFailed
from switchyard.entrypoints.cli.demo.trading import Trading

# Longer than the pause between two passes of the reconciliation, which shall meet it.
OUTAGE_SECONDS = 5
# Long enough for a scrape to see it.
KILL_SECONDS = 6
# Deposits of the morning, in the currencies that the accounts trade.
DEPOSITS = {"JPY": Decimal(50_000_000), "USD": Decimal(500_000)}


class Scene(NamedTuple):
    """An event of the day, and when it begins: as a part of the day's length."""

    begins: float
    play: Callable[[Desk, Trading], Awaitable[None]]


async def open_the_day(desk: Desk, _trading: Trading) -> None:
    """Deposits in the books, strategies in the registry."""
    for account in ACCOUNTS:
        for currency, amount in DEPOSITS.items():
            entry = {"type": "Deposit", "accountId": account, "currency": currency, "amount": amount}
            entry |= {"key": f"open-{currency}", "reason": "opening of the day"}
            await desk.books("POST", "/admin/ledger", entry)
    for trader in TRADERS:
        body = {
            "owner": trader.owner,
            "tags": ["daily"],
            "capital": {"amount": DEPOSITS[trader.currency], "currency": trader.currency},
            "thresholds": {"reject_rate": {"degraded": Decimal("0.1"), "unhealthy": Decimal("0.6")}},
        }
        await desk.pdca("PUT", f"/pdca/strategies/{trader.strategy}?account={trader.account}", body)
    desk.story.tell(f"{len(ACCOUNTS)} accounts deposit JPY and USD; {len(TRADERS)} strategies begin to trade")


async def partial_fill(desk: Desk, trading: Trading) -> None:
    """An order that is filled in parts."""
    price = await desk.through_market("atlas", "USDJPY", "BUY")
    placed = await desk.clients["atlas"].place("USDJPY", "BUY", 9000, limit_price=price, strategy="trend.h1")
    trading.acknowledged[placed.order_id] = "atlas"
    order = await desk.until_status("atlas", placed.order_id, "FILLED")
    kinds = [event.type async for event in desk.clients["atlas"].events(order_id=order.order_id)]
    average = "" if order.avg_price is None else f" at {plain(order.avg_price)} on average"
    desk.story.tell(f"Tokyo fills an order of 9000 USDJPY in {kinds.count('ExecutionReport')} parts{average}")


async def outage(desk: Desk, trading: Trading) -> None:
    """London loses answers, then does not answer at all: doubts that end by themselves."""
    client = desk.clients["borealis"]
    doubts: dict[str, str] = {}
    async with trading.paused():  # for seconds only: the others' orders shall not all be in doubt
        # First the one that London does not have: it takes longer to prove.
        for fault, what in (("refused_5xx", "London answered 503"), ("drop_answer", "the answer was lost")):
            price = await desk.away_from_market("borealis", "EURUSD", "BUY")
            await desk.faults("london", **{fault: 1})
            placed = await client.place("EURUSD", "BUY", 3000, limit_price=price, strategy="meanrev.m1")
            trading.acknowledged[placed.order_id] = "borealis"
            await desk.until_event("borealis", placed.order_id, "OrderUncertain")
            await desk.faults("london", **{fault: 0})
            doubts[placed.order_id] = what
        await desk.faults("london", refuse_connections=OUTAGE_SECONDS)
    desk.story.tell(f"two orders to London came into doubt, and London goes down for {OUTAGE_SECONDS} s")
    for order_id, what in doubts.items():
        order = await desk.until_status("borealis", order_id, "WORKING", "PARTIALLY_FILLED", "FILLED")
        kinds = [event.type async for event in client.events(order_id=order_id)]
        how = "proven absent and sent again" if kinds.count("OrderSending") > 1 else "found at the venue"
        desk.story.tell(f"{what}: the order was {how} without a person, and is {order.status}")


async def decided_by_a_person(desk: Desk, trading: Trading) -> None:
    """New York cannot be asked about an order: a person decides, with the command of the runbook."""
    async with trading.paused():
        price = await desk.away_from_market("cirrus", "AAPL", "BUY")
        await desk.faults("newyork", refused_5xx=1)
        placed = await desk.clients["cirrus"].place("AAPL", "BUY", 10, limit_price=price, strategy="pairs.d1")
        trading.acknowledged[placed.order_id] = "cirrus"
        await desk.until_status("cirrus", placed.order_id, "UNKNOWN")
        await desk.faults("newyork", refused_5xx=0)
    for one in msgspec.json.decode(await desk.site.command("outbox", "list", "--json")):
        if one["row"]["venue"] == "newyork":
            verdict = "sent" if await desk.has_arrived("newyork", one["row"]) else "not-sent"
            decided = ("--as", verdict, "--by", OPERATOR, "--reason", "looked up on the venue's screen")
            await desk.site.command("outbox", "resolve", one["id"], *decided)
    await desk.until_status("cirrus", placed.order_id, "CANCELED")
    desk.story.tell("New York has no lookup: an operator looks at its screen and runs `outbox resolve --as not-sent`")


async def kill_switch(desk: Desk, trading: Trading) -> None:
    """A strategy is stopped and released."""
    price = await desk.away_from_market("atlas", "BTC", "BUY")
    placed = await desk.clients["atlas"].place("BTC", "BUY", "0.05", limit_price=price, strategy="breakout.m5")
    trading.acknowledged[placed.order_id] = "atlas"
    killed = await desk.operator.kill(strategy="breakout.m5", reason="the model repeats itself")
    desk.story.tell(f"kill switch: breakout.m5 is stopped, {len(killed.orders)} open orders are cancelled")
    try:
        await desk.clients["atlas"].place("BTC", "BUY", "0.01", strategy="breakout.m5")
    except ApiError as error:
        trading.rejected[error.reason] += 1
    else:
        raise DemoFailed("an order of a killed strategy was accepted")

    async def is_drained() -> bool:
        return (await desk.operator.kill_state(killed.kill_id)).drained

    await desk.until("the kill is drained", is_drained)
    await asyncio.sleep(KILL_SECONDS)
    await desk.operator.clear_kill(killed.kill_id, reason="the model was corrected")
    desk.story.tell("kill switch: breakout.m5 was corrected and trades again")


async def correction_and_bust(desk: Desk, trading: Trading) -> None:
    """Tokyo corrects the price of one fill and voids another."""
    async with trading.paused():
        for fault in ("correct_fills", "bust_fills"):
            await desk.faults("tokyo", **{fault: 1}, partial_fills=0)
            placed = await desk.clients["atlas"].place("EURJPY", "BUY", 2000, strategy="trend.h1")
            trading.acknowledged[placed.order_id] = "atlas"
            await desk.until_status("atlas", placed.order_id, "FILLED", "CANCELED", "EXPIRED")
            await desk.faults("tokyo", **{fault: 0}, partial_fills=3)
    desk.story.tell("Tokyo corrects the price of one fill and voids another: the books follow both")


async def trade_by_telephone(desk: Desk, _trading: Trading) -> None:
    """A fill that Switchyard did not send becomes a break."""
    await desk.place_by_telephone("london", "GBPUSD", "SELL", 7000)
    desk.story.tell("someone sells 7000 GBPUSD in London by telephone: the reconciliation will find it")


async def breaks(desk: Desk, _trading: Trading) -> None:
    """An operator works through the breaks: adopts the foreign fill, explains the bust."""
    found: list[dict[str, str]] = []

    async def are_confirmed() -> bool:
        found[:] = (await desk.books("GET", "/admin/breaks?state=open"))["breaks"]
        return any(one["kind"] == "fill" for one in found) and any(one["kind"] == "order" for one in found)

    await desk.until("the reconciliation finds the trade by telephone and the bust", are_confirmed)
    for one in found:
        path = f"/admin/breaks/{one['breakId']}"
        if one["kind"] == "fill" and one["class"] == "missing_here":
            await desk.books("POST", f"{path}/adopt", {"reason": "traded by telephone", "accountId": "borealis"})
            desk.story.tell("the trade by telephone is adopted into the books of borealis")
        elif one["kind"] == "order":
            await desk.books("POST", f"{path}/explain", {"reason": "bust by the venue, confirmed"})
            desk.story.tell(
                "the break of the voided fill is explained: the gateway keeps counting it, the books do not"
            )


async def close_positions(desk: Desk, trading: Trading) -> None:
    """An account closes what it has."""
    closed = []
    async for position in desk.clients["cirrus"].positions():
        try:
            placed = await desk.clients["cirrus"].close_position(position.symbol)
        except ApiError as error:
            trading.rejected[error.reason] += 1
        else:
            trading.acknowledged[placed.order_id] = "cirrus"
            closed.append(position.symbol)
    desk.story.tell(f"cirrus closes its positions: {', '.join(closed) or 'none is open'}")


async def recheck(desk: Desk, _trading: Trading) -> None:
    """PDCA looks at the strategies of the day."""
    body = {"filter": {"tags_any": ["daily"]}, "window": {"lookback_days": 1}, "reason": "end of the day"}
    accepted = await desk.pdca("POST", "/pdca/recheck_all", body, key="demo-recheck")
    shown: dict[str, Any] = {}

    async def has_ended() -> bool:
        shown.update(await desk.pdca("GET", f"/pdca/recheck/{accepted['request_id']}?page_size=50"))
        return shown["state"] not in ("queued", "running")

    await desk.until("the strategies are rechecked", has_ended)
    health = ", ".join(f"{item['strategy']} {item['health'] or item['state']}" for item in shown["items"])
    desk.story.tell(f"PDCA rechecks the strategies: {health}")


DAY = (
    Scene(0.0, open_the_day),
    Scene(0.05, partial_fill),
    Scene(0.15, correction_and_bust),
    Scene(0.2, trade_by_telephone),
    Scene(0.25, outage),
    Scene(0.6, decided_by_a_person),
    Scene(0.65, kill_switch),
    Scene(0.75, breaks),
    Scene(0.85, close_positions),
    Scene(0.9, recheck),
)
