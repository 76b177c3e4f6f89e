"""`top`: a process live in the terminal, from its probes and metrics."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.domain.market.health import Readiness
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import JsonOption, UrlOption, health_token
from switchyard.entrypoints.cli.doctor import STYLES, check_table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from switchyard.entrypoints.cli.doctor import Figures, Monitor

# Title, metric, label values; a rate per second.
RATES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("accepted", "gateway_orders_accepted_total", ()),
    ("repeated", "gateway_orders_replayed_total", ()),
    ("risk rejected", "risk_rejections_total", ()),
    ("sent", "outbox_send_total", ("success",)),
    ("retried", "outbox_send_total", ("retry",)),
    ("dead", "outbox_send_total", ("dead",)),
    ("reports", "venue_reports_total", ("applied",)),
    ("booked", "backoffice_entries_total", ()),
)
# Title, metric, label values, unit; the value itself.
LEVELS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("queued", "outbox_rows", ("queued",), ""),
    ("waiting to retry", "outbox_rows", ("failed",), ""),
    ("sending", "outbox_rows", ("sending",), ""),
    ("in doubt", "outbox_uncertain", (), ""),
    ("in doubt over 1 min", "outbox_uncertain_by_age", ("60",), ""),
    ("oldest waiting", "outbox_oldest_seconds", (), " s"),
    ("journal queue", "gateway_queue_depth", (), ""),
    ("streams", "sse_subscribers", (), ""),
    ("kills", "kill_switch_active", (), ""),
    ("books behind", "backoffice_lag_events", (), ""),
    ("audit behind", "audit_lag_events", (), ""),
)
ALARMING = frozenset({"in doubt", "in doubt over 1 min", "kills"})
LATENCY = "gateway_accept_to_sent_latency_ms"


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(top)


def top(
    url: UrlOption = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=60, help="Pause between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show one second and exit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a process live: rates, queues, doubt, venues and checks, until Ctrl-C; with --json one line per look."""
    try:
        asyncio.run(_run(url, seconds, once=once, as_json=as_json))
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal end: exit with 0


async def _run(url: str | None, seconds: float, *, once: bool, as_json: bool) -> None:
    import aiohttp
    from rich.live import Live

    from switchyard.client.address import gateway_url
    from switchyard.entrypoints.cli.doctor import Monitor
    from switchyard.settings import load_settings

    settings = load_settings()
    books_url = gateway_url(settings.host, settings.backoffice_port) if url is None and settings.backoffice else None
    url = (url or gateway_url(settings.host, settings.port)).rstrip("/")
    async with aiohttp.ClientSession() as session:
        screen = Screen(
            *(
                Monitor(session, each, token=health_token(), metrics_token=settings.metrics_token)
                for each in (url, books_url)
                if each is not None
            )
        )
        await screen.look()  # the first look fails loudly; a later one is shown
        if as_json or once:
            while True:
                await asyncio.sleep(seconds)
                await screen.look()
                if as_json:
                    output.print_json(screen.as_json())
                else:
                    output.console().print(screen.drawn())
                if once:
                    return
        with Live(console=output.console(), auto_refresh=False, screen=True) as live:
            while True:
                await asyncio.sleep(seconds)
                await screen.look_again()
                live.update(screen.drawn(), refresh=True)


class Screen:
    """The last two looks at a process."""

    def __init__(self, monitor: "Monitor", books: "Monitor | None" = None) -> None:
        """`books`: its back office, if that is a process of its own."""
        self._monitor = monitor
        self._books = books
        self._before: Figures = {}
        self._now: Figures = {}
        self._seconds = 1.0
        self._looked_at: float | None = None
        self._ready: Readiness | None = None
        self._problem: str | None = None

    async def look(self) -> None:
        """Read probes and metrics; raises ClientError."""
        ready, figures = await self._monitor.readiness(), await self._monitor.figures()
        figures |= await self._figures_of_books()
        at = asyncio.get_running_loop().time()
        self._seconds = 1.0 if self._looked_at is None else max(at - self._looked_at, 0.001)
        self._before, self._now = self._now or figures, figures
        self._looked_at, self._ready, self._problem = at, ready, None

    async def _figures_of_books(self) -> "Figures":
        """The figures of the books; the last ones while their process does not answer."""
        from switchyard.client.errors import ClientError

        try:
            found = {} if self._books is None else await self._books.figures()
        except ClientError:
            found = self._now
        return {key: value for key, value in found.items() if key[0].startswith("backoffice_")}

    async def look_again(self) -> None:
        """Read them; an error is shown, and the figures before it stay."""
        from switchyard.client.errors import ClientError

        try:
            await self.look()
        except ClientError as error:
            self._problem = str(error)

    def rates(self) -> dict[str, float]:
        """Events per second between the last two looks; a restart of the process begins at 0."""
        return {
            title: max(_total(self._now, name, values) - _total(self._before, name, values), 0) / self._seconds
            for title, name, values in RATES
        }

    def levels(self) -> dict[str, float]:
        """Queues and doubts at the last look."""
        return {title: _total(self._now, name, values) for title, name, values, _ in LEVELS}

    def latency_ms(self) -> float | None:
        """The mean time from accept to the venue's response between the last two looks; none without a send."""
        sends = self._moved(f"{LATENCY}_count")
        return self._moved(f"{LATENCY}_sum") / sends if sends > 0 else None

    def as_json(self) -> dict[str, object]:
        """One line of `--json`."""
        return {
            "rates": {title: round(rate, 1) for title, rate in self.rates().items()},
            "levels": self.levels(),
            "acceptToSentMs": self.latency_ms(),
            "readiness": self._ready,
        }

    def drawn(self) -> "Group":
        """The screen."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.text import Text

        assert self._ready is not None, "it was looked at"
        status = self._ready.status.replace("_", " ")
        head = Text.assemble(f"{self._monitor.url}  ", (status, STYLES[self._ready.status]))
        if self._problem is not None:
            head = Text(f"{self._problem}; the figures are from before", "bold red")
        rates = _two_columns("per second", {title: f"{rate:,.1f}" for title, rate in self.rates().items()})
        units = {title: unit for title, _, _, unit in LEVELS}
        levels = _two_columns("now", {title: f"{level:,.0f}{units[title]}" for title, level in self.levels().items()})
        latency = self.latency_ms()
        mean = "no sends" if latency is None else f"{latency:,.1f} ms"
        return Group(
            head,
            Text(f"accept to sent, mean: {mean}"),
            Text(),
            Columns([rates, levels], padding=(0, 6)),
            Text(),
            check_table(self._ready),
        )

    def _moved(self, name: str) -> float:
        return _total(self._now, name, ()) - _total(self._before, name, ())


def _two_columns(title: str, cells: dict[str, str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column(title)
    table.add_column("", justify="right", min_width=8)
    for name, cell in cells.items():
        is_alarm = name in ALARMING and cell != "0"
        table.add_row(name, Text(cell, "bold red" if is_alarm else ""))
    return table


def _total(figures: "Figures", name: str, values: tuple[str, ...]) -> float:
    """The sample with these label values; without any, the sum over all of them."""
    if values:
        return figures.get((name, values), 0.0)
    return sum(value for (found, _), value in figures.items() if found == name)
