"""One day of the demo from its start to its checks, and where to look afterwards."""

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import typer

from switchyard.entrypoints.cli.demo.checks import findings, settle
from switchyard.entrypoints.cli.demo.desk import Desk, Story
from switchyard.entrypoints.cli.demo.plan import planned_orders
from switchyard.entrypoints.cli.demo.processes import Site
from switchyard.entrypoints.cli.demo.scenes import DAY
from switchyard.entrypoints.cli.demo.trading import QUIET_PAUSE_SECONDS, Trading
from switchyard.entrypoints.cli.hints import program

if TYPE_CHECKING:
    from aiohttp import ClientSession

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
