"""What must hold after the demo's day: read from the API, the metrics, and the venues' own records."""

from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from switchyard.entrypoints.cli.demo.desk import Desk
from switchyard.entrypoints.cli.demo.processes import VENUES
from switchyard.entrypoints.cli.demo.trading import OPEN_STATUSES, Trading

# A venue without a lookup does not tell which orders are open.
NOT_COMPARABLE: Final = {f"open_orders:{venue.name}" for venue in VENUES if venue.lookup == "none"}


class Finding(NamedTuple):
    """One check."""

    ok: bool
    text: str


class _VenueEvent(msgspec.Struct):
    """What is read of a line of a venue's record."""

    event: str
    client_order_id: str = ""


async def settle(desk: Desk) -> Counter[str]:
    """Cancel what is open, wait until nothing is open or in doubt; return how many orders have which status."""
    for client in desk.clients.values():
        await client.cancel_all()

    async def is_settled() -> bool:
        for client in desk.clients.values():
            async for _ in client.orders(statuses=OPEN_STATUSES, limit=1):
                return False
        return True

    await desk.until("every order ends", is_settled)
    return Counter([order.status for client in desk.clients.values() async for order in client.orders()])


async def findings(desk: Desk, trading: Trading) -> list[Finding]:
    """Every check of the day."""
    found = [await _nothing_lost(desk, trading), _one_key_one_order(trading), _nothing_twice(desk)]
    found += [await _books_agree(desk)]
    return found


async def _nothing_lost(desk: Desk, trading: Trading) -> Finding:
    known = {order.order_id for client in desk.clients.values() async for order in client.orders()}
    lost = trading.acknowledged.keys() - known
    count = len(trading.acknowledged)
    return Finding(not lost, f"{count} acknowledged orders, {len(lost)} lost")


def _one_key_one_order(trading: Trading) -> Finding:
    unequal = len(trading.unequal_repeats)
    return Finding(not unequal, f"{trading.repeats} repeated requests, {unequal} made a second order")


def _nothing_twice(desk: Desk) -> Finding:
    accepted: Counter[tuple[str, str]] = Counter()
    for venue in VENUES:
        accepted.update((venue.name, event.client_order_id) for event in _orders(desk.site.venue_log(venue)))
    twice = [name for name, count in accepted.items() if count > 1]
    return Finding(not twice, f"{len(accepted)} orders in the venues' own records, {len(twice)} executed twice")


def _orders(path: Path) -> list[_VenueEvent]:
    text = path.read_bytes()
    lines = text[: text.rfind(b"\n") + 1].splitlines()  # the last line may be half written
    events = [msgspec.json.decode(line, type=_VenueEvent) for line in lines]
    return [event for event in events if event.event == "order"]


async def _books_agree(desk: Desk) -> Finding:
    states: Counter[str] = Counter()

    async def are_compared() -> bool:
        done = await desk.books("POST", "/admin/reconcile")
        found = (await desk.books("GET", "/admin/breaks"))["breaks"]
        states.clear()
        states.update(each["state"] for each in found)
        missing = {each["scope"] for each in done["notCompared"]} - NOT_COMPARABLE
        return not missing and not states["suspected"]

    await desk.until("the books are compared with the gateway and the venues", are_compared)
    counts = f"{states['open']} unexplained breaks, {states['explained']} explained"
    return Finding(not states["open"], f"books compared with gateway and venues: {counts}")
