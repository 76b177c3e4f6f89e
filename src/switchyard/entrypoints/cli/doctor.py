"""`doctor`: what a process depends on, what is wrong, and what to do."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from switchyard.domain.market.health import Check, CheckName, Readiness
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import JsonOption, UrlOption, health_token

if TYPE_CHECKING:
    from rich.table import Table

PROBLEM = 1  # the exit code where a check is not ok

REMEDIES: Mapping[CheckName, tuple[str, str]] = {
    "process": ("It ends by itself. If it should run, start it again.", "docs/operate/upgrade.md"),
    "journal": (
        "Nothing is accepted while the database is away. Bring it back; the process connects again by itself. "
        "Do not delete or replace the database.",
        "docs/operate/database.md",
    ),
    "worker": ("Accepted orders wait. Start a worker: `switchyard worker`.", "docs/operate/outbox.md"),
    "venues": ("Orders to this venue wait or are in doubt. Do not send them by hand.", "docs/operate/venues.md"),
    "books": ("Orders go on, the books do not. Find the cause before you rebuild them.", "docs/operate/books.md"),
    "reconcile": (
        "Orders go on. Compare now: `switchyard reconcile`; each break has a page of its own.",
        "docs/operate/breaks.md",
    ),
    "bus": ("Orders go on, readers of the bus wait. Bring the broker back; nothing is lost.", "docs/operate/kafka.md"),
    "cache": ("Nothing is lost: the database decides. Bring Redis back.", "docs/operate/cache.md"),
    "pdca": (
        "Orders go on, strategies and rechecks cannot be read. Do not delete the store.",
        "docs/operate/rechecks.md",
    ),
    "disk": ("Make room, but delete nothing in the data folder.", "docs/operate/machine.md"),
    "clock": ("Let NTP correct the clock slowly; do not step it back.", "docs/operate/machine.md"),
}
"""What to do about each check, and the page that says more."""

NO_DETAIL = "the details need a token with the scope admin:health in SWITCHYARD_TOKEN, or the gateway's settings"
STYLES = {"ok": "green", "ready": "green", "degraded": "yellow", "failed": "bold red", "not_ready": "bold red"}


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(doctor)


def doctor(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Check what a process depends on and say what to do; exit code 1 if something is wrong."""
    found, address = asyncio.run(_look(url))
    if as_json:
        output.print_json(found)
    else:
        console = output.console()
        console.print(f"{address}: {found.status.replace('_', ' ')}", style=STYLES[found.status])
        console.print(check_table(found))
    if found.status != "ready":
        raise typer.Exit(PROBLEM)


async def _look(url: str | None) -> tuple[Readiness, str]:
    import aiohttp

    from switchyard.client.address import gateway_url
    from switchyard.entrypoints.cli.monitor import Monitor
    from switchyard.settings import load_settings

    if url is None:
        settings = load_settings()
        url = gateway_url(settings.host, settings.port)
    async with aiohttp.ClientSession() as session:
        return await Monitor(session, url.rstrip("/"), token=health_token()).readiness(), url


def check_table(found: Readiness) -> "Table":
    """The checks, and below each problem what to do."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found.checks:
        table.add_row(check.check, Text(check.status, STYLES[check.status]), Text(_detail(check)))
    return table


def _detail(check: Check) -> str:
    if check.status == "ok":
        return check.detail
    remedy, page = REMEDIES[check.check]
    return f"{check.detail or NO_DETAIL}\n→ {remedy} See {page}."
