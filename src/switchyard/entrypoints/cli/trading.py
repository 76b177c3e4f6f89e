"""Commands that place orders and look them up."""

import asyncio
import re
from contextlib import aclosing
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from switchyard.domain.lifecycle import Status, is_final
from switchyard.domain.orders import OrderSnapshot
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import (
    DEFAULT_ACCOUNT,
    AccountOption,
    JsonOption,
    UrlOption,
    connect,
    sign_token,
)

if TYPE_CHECKING:
    from switchyard.client import Acknowledgement, Client, RecordedEvent

_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (token, order, cancel, orders, show):
        app.command()(command)


def duration(text: str) -> timedelta:
    """A duration as people write it: 90s, 15m, 24h, 7d."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} does not look like 90s, 15m, 24h or 7d", param_hint="--ttl")
    return timedelta(seconds=int(found[1]) * _SECONDS_PER_UNIT[found[2]])


def amount(text: str) -> Decimal:
    """A decimal number greater than zero, exactly as it was typed."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"{text!r} is not a number") from None
    if not (value.is_finite() and value > 0):
        raise typer.BadParameter("must be greater than 0")
    return value


def status(text: str) -> Status:
    """A status by its name, in any case."""
    known: tuple[Status, ...] = get_args(Status)
    for name in known:
        if text.upper() == name:
            return name
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}", param_hint="--status")


OrderIdArgument = Annotated[str, typer.Argument(metavar="ORDER_ID")]


def token(
    account: Annotated[str, typer.Option("--account", help="Account that the token speaks for.")] = DEFAULT_ACCOUNT,
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="How long it is good: 90s, 15m, 24h, 7d.")] = "24h",
    as_json: JsonOption = False,
) -> None:
    """Print a token for an account, signed with the local secret."""
    from switchyard.settings import load_settings

    lifetime = duration(ttl)
    signed = sign_token(load_settings(), account, lifetime)
    if as_json:
        output.print_json({"account": account, "token": signed, "ttlSeconds": int(lifetime.total_seconds())})
    else:
        typer.echo(signed)


def order(
    side: Annotated[Literal["buy", "sell"], typer.Argument(metavar="buy|sell", case_sensitive=False)],
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL")],
    qty: Annotated[Decimal, typer.Argument(parser=amount, metavar="QTY")],
    limit: Annotated[
        Decimal | None, typer.Option("--limit", parser=amount, metavar="PRICE", help="Limit price; none: at market.")
    ] = None,
    time_in_force: Annotated[
        Literal["IOC", "FOK", "GTC"] | None,
        typer.Option(
            "--tif",
            case_sensitive=False,
            metavar="IOC|FOK|GTC",
            help="By default GTC with a limit, else IOC.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: one key, one order. By default a fresh one.")
    ] = None,
    client_order_id: Annotated[str | None, typer.Option("--client-order-id", help="A label of your own.")] = None,
    strategy: Annotated[str | None, typer.Option("--strategy", help="The strategy that the order belongs to.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the order to its final state.")] = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Place an order; with --wait, exit code 1 tells that it was rejected."""

    async def place() -> "tuple[Acknowledgement, OrderSnapshot | None]":
        async with connect(url, account) as client:
            acknowledgement = await client.place(
                symbol,
                "BUY" if side == "buy" else "SELL",
                qty,
                limit_price=limit,
                time_in_force=time_in_force,
                client_order_id=client_order_id,
                strategy=strategy,
                tags=tags or (),
                idempotency_key=key,
            )
            if not wait:
                return acknowledgement, None
            # On stderr: the id must be known even if the wait is cut short, and stdout is for the result.
            typer.echo(f"{acknowledgement.order_id} {acknowledgement.status}", err=True)
            return acknowledgement, await final_state(client, acknowledgement)

    acknowledgement, final = asyncio.run(place())
    if final is not None:
        if as_json:
            output.print_json(final)
        else:
            output.console().print(output.order_sheet(final))
        if final.status == "REJECTED":
            raise typer.Exit(1)
    elif as_json:
        output.print_json(acknowledgement)
    else:
        again = " (placed before under this key)" if acknowledgement.replayed else ""
        typer.echo(f"{acknowledgement.order_id} {acknowledgement.status}{again}")


def cancel(
    order_id: OrderIdArgument,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Ask for an order to be cancelled."""

    async def ask() -> "Acknowledgement":
        async with connect(url, account) as client:
            return await client.cancel(order_id)

    acknowledgement = asyncio.run(ask())
    if as_json:
        output.print_json({"orderId": acknowledgement.order_id, "status": acknowledgement.status})
    else:
        typer.echo(f"{acknowledgement.order_id} {acknowledgement.status}")


def orders(
    statuses: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATUS", help="Only these, e.g. FILLED; may be repeated.")
    ] = None,
    symbol: Annotated[str | None, typer.Option("--symbol", help="Only this symbol.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many.")] = 50,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """List the account's orders, newest first."""
    wanted = [status(text) for text in statuses or ()]

    async def find() -> list[OrderSnapshot]:
        async with connect(url, account) as client:
            return [found async for found in client.orders(statuses=wanted, symbol=symbol, limit=limit)]

    found = asyncio.run(find())
    if as_json:
        output.print_json(found)
    else:
        output.console().print(output.order_table(found) if found else "no orders")


def show(
    order_id: OrderIdArgument,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Show an order and what happened to it."""

    async def find() -> "tuple[OrderSnapshot, list[RecordedEvent]]":
        async with connect(url, account) as client:
            return await client.order(order_id), await client.events(order_id=order_id)

    found, events = asyncio.run(find())
    if as_json:
        output.print_json({"order": found, "events": events})
    else:
        console = output.console()
        console.print(output.order_sheet(found))
        console.print()
        console.print(output.event_table(events))


async def final_state(client: "Client", acknowledgement: "Acknowledgement") -> OrderSnapshot:
    """The order at its end, however long that takes; each status on the way is told on stderr."""
    from switchyard.client.wire import read

    order_id, last_status = acknowledgement.order_id, acknowledgement.status
    async with aclosing(client.stream(order_id)) as messages:
        async for message in messages:
            match message.event:
                case "order_snapshot" | "order_update":
                    found = read(message.data, OrderSnapshot)
                case "resync_required":
                    found = await client.order(order_id)
                case _:
                    continue
            if found.status != last_status:
                typer.echo(f"{order_id} {found.status}", err=True)
                last_status = found.status
            if is_final(found.status):
                return found
    raise AssertionError("a stream has no end of its own")
