"""`outbox list`, `outbox show` and `outbox resolve`: list and explain outbox rows, and decide about uncertain ones."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from switchyard.domain.events import Verdict
from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import console, print_json
from switchyard.settings import load_settings

if TYPE_CHECKING:
    from switchyard.domain.events import DoubtFact
    from switchyard.domain.outbox import OutboxRow
    from switchyard.flow.sending.explain import Explanation
    from switchyard.ports.outbox_listing import OutboxListing
    from switchyard.settings import Settings

# More rows than a person reads; the oldest come first.
ROWS_MAX = 200

RESEND_WARNING = (
    "Warning: if the venue did receive the order, it will be executed twice. "
    "Make sure in the venue's own console that it has no order, open or closed, under this client order id."
)

outbox = typer.Typer(help="List outbox rows and resolve uncertain ones.", no_args_is_help=True)

ListedStatus = Literal["queued", "sending", "failed", "uncertain", "dead"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(outbox, name="outbox")


@outbox.command(name="list")
def list_rows(
    status: Annotated[ListedStatus, typer.Option("--status", help="Status of the rows to list.")] = "uncertain",
    json: JsonOption = False,
) -> None:
    """List outbox rows of one status, oldest first, at most 200."""
    from switchyard.bootstrap import outbox_listing
    from switchyard.domain.reasons import described
    from switchyard.flow.sending.explain import describe_step

    settings = load_settings()
    listing: OutboxListing = outbox_listing(settings)
    rows: Sequence[OutboxRow] = asyncio.run(listing.rows(status, ROWS_MAX))
    explained = _explained(settings, rows)
    if json:
        print_json(explained)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("Id", "Venue", "Client order id", "Attempts", "Age", "Next step", "Last error"):
        table.add_column(name, no_wrap=name == "Id")
    for one in explained:
        row, age = one.row, timedelta(seconds=int(one.age_seconds))
        error = "" if row.last_error is None else described(row.last_error, row.error_detail)
        step = describe_step(one.next_step)
        table.add_row(one.id, row.venue, row.venue_client_order_id, str(row.attempt), str(age), step, error)
    console().print(table)


@outbox.command()
def show(
    row_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id from `outbox list`: the order's id, or ord_…:cancel:1 for a cancel.")
    ],
    json: JsonOption = False,
) -> None:
    """Explain one outbox row: what happened, what is awaited, when it is decided, what a person can do."""
    from switchyard.bootstrap import outbox_listing
    from switchyard.domain.errors import NotFound
    from switchyard.flow.sending.explain import last_doubt
    from switchyard.flow.sending.operator import parse_outbox_id

    key = parse_outbox_id(row_id)
    settings = load_settings()
    listing: OutboxListing = outbox_listing(settings)
    row = next((row for row in asyncio.run(listing.rows_of(key[0])) if row.key == key), None)
    if row is None:
        raise NotFound
    doubt = last_doubt(row, asyncio.run(listing.doubts_of(key[0])))
    [one] = _explained(settings, [row], doubt)
    if json:
        print_json(one)
        return
    age = timedelta(seconds=int(one.age_seconds))
    lines = {
        "Id": one.id,
        "Venue": f"{row.venue}, client order id {row.venue_client_order_id}",
        "Status": f"{row.status} since {row.updated_at:%Y-%m-%d %H:%M:%S} UTC, {age} ago",
        "Happened": one.happened,
        "Awaited": one.awaited,
        "Decided": one.decided,
        "A person": one.can_do,
    }
    for name, text in lines.items():
        typer.echo(f"{name + ':':<10} {text}")


def _explained(
    settings: "Settings", rows: "Sequence[OutboxRow]", doubt: "DoubtFact | None" = None
) -> "list[Explanation]":
    from switchyard.adapters.system_clock import SystemClock
    from switchyard.bootstrap import declared_capabilities, send_lingers
    from switchyard.flow.sending.explain import explain

    capabilities = {venue.name: declared_capabilities(venue) for venue in settings.venues}
    now, lingers = SystemClock().now(), send_lingers(settings)
    return [explain(row, capabilities.get(row.venue), lingers, now, doubt) for row in rows]


@outbox.command()
def resolve(
    row_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id from `outbox list`: the order's id, or ord_…:cancel:1 for a cancel.")
    ],
    verdict: Annotated[Verdict, typer.Option("--as", help="Whether the venue received it.")],
    by: Annotated[str, typer.Option("--by", help="Name of the person who decides; it is recorded.")],
    reason: Annotated[str, typer.Option("--reason", help="Evidence for the decision; it is recorded.")],
    resend: Annotated[
        bool, typer.Option("--resend", help="With `--as not-sent`: send the order again under the same id.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a resend.")] = False,
    json: JsonOption = False,
) -> None:
    """Decide whether the venue received an uncertain order or cancel; works with and without a running server.

    `--as not-sent` ends the order. It is rejected if the venue has shown the order, or can still be asked about it.
    """
    from switchyard.entrypoints.control.client import resolve_doubt
    from switchyard.entrypoints.control.messages import ResolveDoubt

    request = ResolveDoubt(id=row_id, verdict=verdict, by=by, reason=reason, resend=resend)
    if resend:
        typer.echo(RESEND_WARNING, err=True)
        if not yes:
            typer.confirm("Send the order again?", abort=True, err=True)
    order = asyncio.run(resolve_doubt(load_settings(), request))
    if json:
        print_json(order)
    else:
        typer.echo(f"{order.order_id} {order.status}")
