"""`explain`: the life of an order in words. Calls a gateway over HTTP, or reads the database beside a gateway."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.domain.ids import OrderId
from switchyard.domain.orders.explain import EVENTS_MAX, Explanation, explain_order
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import (
    DEFAULT_ACCOUNT,
    AccountOption,
    JsonOption,
    UrlOption,
    connect,
    full_order_id,
)
from switchyard.entrypoints.cli.trading import OrderIdArgument

if TYPE_CHECKING:
    from switchyard.ports.outbox import OutboxListing


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(explain)


def explain(
    order_id: OrderIdArgument,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Read the configured database, of any account; the full id is needed."),
    ] = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Tell the life of an order: checks, route, attempts, doubts, fills, cancels and its end."""

    async def load() -> Explanation:
        async with connect(url, account) as client:
            return await client.explain(await full_order_id(client, order_id))

    explained = asyncio.run(_from_database(order_id) if offline else load())
    if as_json:
        output.print_json(explained)
    else:
        for line in explained.lines:
            typer.echo(line)


async def _from_database(order_id: str) -> Explanation:
    from switchyard.bootstrap import outbox_listing, venue_kinds
    from switchyard.domain.risk.checks import check_names
    from switchyard.entrypoints.control.client import deciders_of
    from switchyard.flow.sending.operator import standing
    from switchyard.settings import load_settings

    settings = load_settings()
    listing: OutboxListing = outbox_listing(settings)
    found = await listing.history_of(OrderId(order_id), EVENTS_MAX + 1)
    if found is None:
        raise typer.BadParameter(f"the database has no order {order_id!r}", param_hint="ORDER_ID")
    order, events = found
    decider = (await deciders_of(settings, listing, [order.venue]))[order.venue]
    return explain_order(
        order,
        events,
        check_names(settings.risk, venue_kinds(settings), order.account_id, order.symbol),
        standing(await listing.rows_of(order.order_id), decider),
    )
