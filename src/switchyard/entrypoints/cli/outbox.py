"""`outbox list` and `outbox resolve`: list outbox rows, and record an operator's decision about an uncertain one."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from switchyard.domain.events import Verdict
from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import console, print_json
from switchyard.settings import load_settings

if TYPE_CHECKING:
    from switchyard.domain.outbox import OutboxRow
    from switchyard.ports.outbox_listing import OutboxListing

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
    from switchyard.flow.sending.operator import outbox_id

    listing: OutboxListing = outbox_listing(load_settings())
    rows: Sequence[OutboxRow] = asyncio.run(listing.rows(status, ROWS_MAX))
    if json:
        print_json([{"id": outbox_id(row), "row": row} for row in rows])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("Id", "Venue", "Client order id", "Attempts", "Since", "Last error"):
        table.add_column(name, no_wrap=name == "Id")
    for row in rows:
        since = f"{row.updated_at:%m-%d %H:%M:%S}"
        error = "" if row.last_error is None else described(row.last_error, row.error_detail)
        table.add_row(outbox_id(row), row.venue, row.venue_client_order_id, str(row.attempt), since, error)
    console().print(table)


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
