"""The nemesis's judge: looks at a site from outside only, once it is at rest.

Reads the venue's log, the client's journal, GET /orders, `outbox list`, `audit verify` and `/metrics`.
"""

import asyncio
import json
import math
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp

from tests.support.figures import scrape
from tests.support.nemesis_site import Site
from tests.support.orders import FINAL, Snapshot, all_orders

UNFINISHED = ("queued", "sending", "failed", "uncertain")
AT_VENUE = ("WORKING", "PARTIALLY_FILLED", "CANCEL_REQUESTED")
# The longest that the end is waited for: some backoffs, and a proof of absence on PostgreSQL.
REST_SECONDS_MAX = 180.0
# At class `none`, nothing ends a doubt by itself.
PATIENCE_SECONDS = 5.0


@dataclass
class Verdict:
    """What a run at one site came to."""

    site: str
    orders: int = 0
    acknowledged: int = 0
    executed: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Orders whose end contradicts the venue's log, and answers that contradict each other."""
    hidden: list[str] = field(default_factory=list)
    """Unfinished orders that `outbox list` or the metrics do not show."""
    unsettled: list[str] = field(default_factory=list)
    """Rows in doubt at a venue that can be asked and proves absence: its worker has to settle them by itself."""
    in_doubt: int = 0
    audit: str = ""
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def holds(self) -> bool:
        """Whether the promise was kept."""
        return not (self.lost or self.twice or self.wrong or self.hidden or self.unsettled or self.audit)

    def complaints(self) -> list[str]:
        """Everything that was wrong, in words."""
        named = (
            ("lost", self.lost),
            ("executed twice", self.twice),
            ("wrong", self.wrong),
            ("hidden", self.hidden),
            ("unsettled", self.unsettled),
        )
        lines = [f"{self.site}: {name}: {item}" for name, items in named for item in items]
        return [*lines, f"{self.site}: {self.audit}"] if self.audit else lines


def upper_bound(events: int, trials: int) -> float:
    """The 95 % upper bound of a rate; without any event it is the rule of three, 3 / trials."""
    low, high = 0.0, 20.0 + 3.0 * events
    for _ in range(60):
        middle = (low + high) / 2
        at_most = sum(math.exp(-middle) * middle**count / math.factorial(count) for count in range(events + 1))
        low, high = (middle, high) if at_most > 0.05 else (low, middle)
    return min(1.0, high / trials) if trials else 1.0


async def at_rest(site: Site) -> list[Snapshot]:
    """The orders once nothing moves any more: all final; at class `none` also in doubt, which only a person ends."""
    deadline = time.monotonic() + REST_SECONDS_MAX
    last: Counter[str] = Counter()
    since = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        while True:
            orders = await all_orders(session, site.gateway)
            now = Counter(order["status"] for order in orders)
            if now != last:
                last, since = now, time.monotonic()
            is_still = site.dedupe == "none" and time.monotonic() - since > PATIENCE_SECONDS
            is_still = is_still and set(now) <= {*FINAL, "UNKNOWN"}
            if set(now) <= FINAL or is_still or time.monotonic() > deadline:
                return orders
            await asyncio.sleep(0.5)


async def judge(site: Site) -> Verdict:
    """Compare what the venue, the client and the product say about every intent."""
    orders = await at_rest(site)
    verdict = Verdict(site.name, orders=len(site.client.intents))
    lines = site.simulator.events("order")
    by_qty = Counter(int(float(line["qty"])) for line in lines)
    by_client_id = Counter(line["client_order_id"] for line in lines)
    intents = {intent.qty: intent for intent in site.client.intents}
    verdict.executed = len(by_qty)
    verdict.twice = [f"{intents[qty].key} {count} times" for qty, count in sorted(by_qty.items()) if count > 1]
    repeated_ids = sum(count > 1 for count in by_client_id.values())
    if repeated_ids and not verdict.twice:
        verdict.twice.append(f"{repeated_ids} client order ids")
    _judge_client(site, verdict, orders)
    filled = _filled_at_venue(site)
    for order in orders:
        name = f"{order['clientOrderId']} is {order['status']}"
        if order["status"] in ("FILLED", *AT_VENUE) and not by_qty[int(order["qty"])]:
            verdict.wrong.append(f"{name}, and the venue does not have it")
        if order["status"] == "FILLED" and order["reason"] is not None:
            verdict.wrong.append(f"{name}, and was said to have ended before: {order['reason']}")
        if order["status"] in FINAL and order["status"] != "FILLED" and _is_filled(site, order):
            verdict.wrong.append(f"{name}, and the venue filled it")
        if order["filledQty"] > filled[int(order["qty"])]:
            verdict.wrong.append(f"{name}, and counts more fills than the venue made")
    await _judge_visibility(site, verdict, orders)
    code, output = await site.tool("audit", "verify")
    verdict.audit = "" if code == 0 else f"audit verify: {output.strip()}"
    return verdict


def _judge_client(site: Site, verdict: Verdict, orders: list[Snapshot]) -> None:
    ids = {order["orderId"] for order in orders}
    labels = {order["clientOrderId"] for order in orders}
    verdict.wrong += site.client.unexpected
    for intent in site.client.intents:
        if intent.told == "ok":
            verdict.acknowledged += 1
            if not intent.order_ids <= ids or intent.key not in labels:
                verdict.lost.append(intent.key)


def _is_filled(site: Site, order: Snapshot) -> bool:
    """Whether the venue filled more of the order than the product says."""
    placed = {line["venue_order_id"] for line in site.simulator.events("order") if line["trace_id"] == order["orderId"]}
    filled = sum(float(line["qty"]) for line in site.simulator.events("fill") if line["venue_order_id"] in placed)
    return filled > float(order["filledQty"])


def _filled_at_venue(site: Site) -> Counter[int]:
    """The quantity that the venue filled, by the order's quantity: every intent has its own, also after a restore."""
    ordered = {line["venue_order_id"]: int(float(line["qty"])) for line in site.simulator.events("order")}
    filled: Counter[int] = Counter()
    for line in site.simulator.events("fill"):
        filled[ordered[line["venue_order_id"]]] += int(float(line["qty"]))
    return filled


async def _judge_visibility(site: Site, verdict: Verdict, orders: list[Snapshot]) -> None:
    unfinished = [order for order in orders if order["status"] not in FINAL]
    listed: set[str] = set()
    uncertain: dict[str, str] = {}
    for status in UNFINISHED if unfinished else ():
        code, output = await site.tool("outbox", "list", "--status", status, "--json")
        assert code == 0, output
        rows = json.loads(output)
        listed |= {row["row"]["order_id"] for row in rows}
        if status == "uncertain":
            uncertain = {row["row"]["order_id"]: f"{row['happened']}; awaited: {row['awaited']}" for row in rows}
    async with aiohttp.ClientSession() as session:
        figures = await scrape(session, site.sender.url)
        # A doubt that was settled while the lists were read is not hidden.
        now = {order["orderId"]: order["status"] for order in await all_orders(session, site.gateway)}
    unfinished = [order for order in unfinished if now[order["orderId"]] == order["status"]]
    verdict.in_doubt = sum(order["status"] == "UNKNOWN" for order in unfinished)
    for order in unfinished:
        if order["orderId"] in uncertain and site.dedupe != "none":
            verdict.unsettled.append(f"{order['clientOrderId']}: {uncertain[order['orderId']]}")
        if order["orderId"] not in listed and order["status"] not in AT_VENUE:
            verdict.hidden.append(f"{order['clientOrderId']} is {order['status']}, and not in `outbox list`")
    if verdict.in_doubt and not figures.get("outbox_uncertain"):
        verdict.hidden.append(f"{verdict.in_doubt} orders are in doubt, and `outbox_uncertain` is 0")
