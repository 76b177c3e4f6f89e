"""One day of the demo from its start to its checks, and where to look afterwards.

The checks read the API and the venues' own records.
"""

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import typer

from switchyard.entrypoints.cli.demo.desk import Desk, Story
from switchyard.entrypoints.cli.demo.plan import planned_orders
from switchyard.entrypoints.cli.demo.processes import VENUES, Site
from switchyard.entrypoints.cli.demo.scenes import DAY
from switchyard.entrypoints.cli.demo.trading import OPEN_STATUSES, QUIET_PAUSE_SECONDS, Trading
from switchyard.entrypoints.cli.welcome import program

if TYPE_CHECKING:
    from aiohttp import ClientSession


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


POLL_SECONDS = 0.2


class Stay(NamedTuple):
    """What keeps the demo open after its day."""

    began: asyncio.Event
    """Set when the day is over and checked."""
    stop: asyncio.Event


async def run_day(site: Site, session: "ClientSession", seconds: int, seed: int, stay: Stay | None) -> bool:
    """Start the processes, play the scenes and check; with `stay` go on until it stops. Returns whether all is well."""
    typer.echo(f"Starting three brokers and a gateway in {site.folder} …")
    await site.start(session)
    typer.echo(_places(site))
    story = Story()
    async with Desk(site, session, story).opened() as desk:
        trading = Trading(desk, planned_orders(seed), seed)
        async with trading.running():
            for scene in DAY:
                await _until(story, scene.begins * seconds, site, trading)
                await scene.play(desk, trading)
            await _until(story, seconds, site, trading)
        story.tell("the market closes: open orders are cancelled")
        ok = await _close(desk, trading)
        if stay is None:
            typer.echo("\nWith --keep it stays open, to look around; with --folder its files stay.")
        else:
            stay.began.set()
            typer.echo(f"\nIt stays open, with an order a second, until Ctrl-C. Look around:\n{_places(site)}")
            trading.pause_seconds = QUIET_PAUSE_SECONDS
            async with trading.running():
                while not stay.stop.is_set():
                    site.check()
                    trading.check()
                    await asyncio.sleep(POLL_SECONDS)
    return ok


async def _close(desk: Desk, trading: Trading) -> bool:
    statuses = await settle(desk)
    found = await findings(desk, trading)
    listed = ", ".join(f"{count} {status.lower()}" for status, count in statuses.most_common())
    rejected = ", ".join(f"{count} {reason}" for reason, count in trading.rejected.most_common())
    typer.echo(f"\nOrders: {listed}")
    typer.echo(f"Rejected before they became orders at a venue: {rejected or 'none'}")
    typer.echo(f"Execution reports on the accounts' streams: {trading.executions}\n")
    for finding in found:
        typer.echo(f"{'ok' if finding.ok else 'FAILED':<7} {finding.text}")
    return all(finding.ok for finding in found)


def _places(site: Site) -> str:
    name = program()
    return f"""
Dashboard      {site.url}/dashboard (paste the token of the last command below)
API reference  {site.url}/docs
Metrics        {site.url}/metrics
Back office    {site.backoffice_url}

In another terminal:
  . {site.folder}/demo.env
  {name} top
  {name} orders --account atlas
  {name} venues
  {name} reconcile list
  {name} token --account atlas
"""


async def _until(story: Story, seconds: float, site: Site, trading: Trading) -> None:
    while story.seconds < seconds:
        site.check()
        trading.check()
        await asyncio.sleep(min(POLL_SECONDS, max(seconds - story.seconds, 0)))
