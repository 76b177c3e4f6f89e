"""`doctor`: what a process depends on, what is wrong, and what to do; and the reader of probes and metrics.

Makes HTTP requests; writes nothing.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import typer

from switchyard.domain.market.health import Check, CheckName, Readiness
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import JsonOption, UrlOption, health_token

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from rich.table import Table


# More than the process gives itself for its checks.
SECONDS_MAX = 10.0
# Several times what a process with many venues serves.
BYTES_MAX = 4 * 1024 * 1024

Figures = dict[tuple[str, tuple[str, ...]], float]
"""Samples by name and label values."""


class Monitor:
    """One process, by its address."""

    def __init__(
        self, session: "ClientSession", url: str, *, token: str | None, metrics_token: str | None = None
    ) -> None:
        """`token`: an operator's, which shows the details of the checks."""
        self._session = session
        self._headers = {} if metrics_token is None else {"X-Metrics-Token": metrics_token}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self.url = url

    async def readiness(self) -> Readiness:
        """The answer of `/health/ready`."""
        from switchyard.client.errors import UnreadableResponse

        status, body = await self._get("/health/ready")
        try:
            return msgspec.json.decode(body, type=Readiness)
        except msgspec.DecodeError as error:
            raise UnreadableResponse(f"{self.url}/health/ready: HTTP {status}, not a readiness report") from error

    async def figures(self) -> Figures:
        """The samples of `/metrics`."""
        from prometheus_client.parser import text_string_to_metric_families

        from switchyard.client.errors import ApiError

        status, body = await self._get("/metrics")
        if status != 200:
            raise ApiError(status, "METRICS_TOKEN", f"{self.url}/metrics needs GATEWAY_METRICS_TOKEN in the settings")
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }

    async def _get(self, path: str) -> tuple[int, bytes]:
        from aiohttp import ClientError

        from switchyard.client.errors import NotReachable

        try:
            async with asyncio.timeout(SECONDS_MAX), self._session.get(self.url + path, headers=self._headers) as found:
                return found.status, await found.content.read(BYTES_MAX)
        except (ClientError, TimeoutError) as error:
            raise NotReachable.lost(self.url, error) from error


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
