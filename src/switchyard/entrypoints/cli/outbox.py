"""`outbox list`, `outbox show` and `outbox resolve`: list and explain outbox rows, and decide about uncertain ones."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from switchyard.domain.journal.facts import Verdict
from switchyard.entrypoints.cli.connection import JsonOption, WideOption
from switchyard.entrypoints.cli.output import SHORT_ID_LENGTH, console, print_json, short_id, table
from switchyard.settings import load_settings

if TYPE_CHECKING:
    from switchyard.domain.journal.facts import DoubtFact
    from switchyard.domain.orders.outbox import OutboxRow
    from switchyard.flow.sending.operator import Explanation
    from switchyard.ports.outbox import OutboxListing
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
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """List outbox rows of one status, oldest first, at most 200."""
    from switchyard.bootstrap import outbox_listing
    from switchyard.domain.orders.reasons import described
    from switchyard.flow.sending.operator import describe_step

    settings = load_settings()
    listing: OutboxListing = outbox_listing(settings)
    rows: Sequence[OutboxRow] = asyncio.run(listing.rows(status, ROWS_MAX))
    explained = asyncio.run(_explained(settings, listing, rows))
    if json:
        print_json(explained)
        return
    if not explained:
        typer.echo(f"no outbox rows are {status}")
        return
    rows_shown = []
    for one in explained:
        row, age = one.row, timedelta(seconds=int(one.age_seconds))
        error = "" if row.last_error is None else described(row.last_error, row.error_detail)
        row_id = one.id if wide else one.id.replace(row.order_id, short_id(row.order_id))
        client_id = [row.venue_client_order_id] if wide else []
        rows_shown.append(
            (row_id, row.venue, *client_id, str(row.attempt), str(age), describe_step(one.next_step), error)
        )
    columns = ("Id", "Venue", *(["Client order id"] if wide else []), "Sends", "Age", "Next step", "Last error")
    console(wide=wide).print(table(columns, rows_shown, no_wrap=("Id", "Age"), fold=True))


@outbox.command()
def show(
    row_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Id from `outbox list`: the order's id or its end, and …:cancel:1 for a cancel."
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Explain one outbox row: what happened, what is awaited, when it is decided, what a person can do."""
    from switchyard.bootstrap import outbox_listing
    from switchyard.flow.sending.operator import last_doubt, no_such_row, parse_outbox_id

    settings = load_settings()
    listing: OutboxListing = outbox_listing(settings)
    row_id = asyncio.run(_full_row_id(listing, row_id))
    key = parse_outbox_id(row_id)
    row = next((row for row in asyncio.run(listing.rows_of(key[0])) if row.key == key), None)
    if row is None:
        raise no_such_row(row_id)
    doubt = last_doubt(row, asyncio.run(listing.doubts_of(key[0])))
    [one] = asyncio.run(_explained(settings, listing, [row], doubt))
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


async def _full_row_id(listing: "OutboxListing", row_id: str) -> str:
    """The id of the row that `outbox list` shows in short; other ids are returned as they are."""
    end, kind, number = row_id.partition(":")
    if len(end) != SHORT_ID_LENGTH:
        return row_id
    statuses: tuple[ListedStatus, ...] = get_args(ListedStatus)
    found = {
        row.order_id
        for status in statuses
        for row in await listing.rows(status, ROWS_MAX)
        if row.order_id.endswith(end)
    }
    if len(found) > 1:
        raise typer.BadParameter(f"{end!r} is the end of several ids: {', '.join(sorted(found))}", param_hint="ID")
    return f"{found.pop()}{kind}{number}" if found else row_id


async def _explained(
    settings: "Settings", listing: "OutboxListing", rows: "Sequence[OutboxRow]", doubt: "DoubtFact | None" = None
) -> "list[Explanation]":
    """The rows in words; what is said about a doubt is what the worker of its venue says, not this shell's settings."""
    from switchyard.adapters.system_clock import SystemClock
    from switchyard.entrypoints.control.client import deciders_of
    from switchyard.flow.sending.operator import explain

    deciders, now = await deciders_of(settings, listing, {row.venue for row in rows}), SystemClock().now()
    return [explain(row, deciders[row.venue], now, doubt) for row in rows]


@outbox.command()
def resolve(
    row_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Id from `outbox list`: the order's id or its end, and …:cancel:1 for a cancel."
        ),
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
    from switchyard.bootstrap import outbox_listing
    from switchyard.entrypoints.control.client import resolve_doubt
    from switchyard.entrypoints.control.messages import ResolveDoubt

    settings = load_settings()
    if len(row_id.partition(":")[0]) == SHORT_ID_LENGTH:
        row_id = asyncio.run(_full_row_id(outbox_listing(settings), row_id))
    request = ResolveDoubt(id=row_id, verdict=verdict, by=by, reason=reason, resend=resend)
    if resend:
        typer.echo(RESEND_WARNING, err=True)
        if not yes:
            typer.confirm("Send the order again?", abort=True, err=True)
    order = asyncio.run(resolve_doubt(settings, request))
    if json:
        print_json(order)
    else:
        typer.echo(f"{order.order_id} {order.status}")
