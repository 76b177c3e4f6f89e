"""`token`, `order`, `amend`, `cancel`, `orders`, `show` and `watch`: commands that call a gateway over HTTP."""

import asyncio
import re
from contextlib import aclosing
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from switchyard.domain.orders.lifecycle import Status, is_final
from switchyard.domain.orders.order import OrderSnapshot, Side
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import (
    DEFAULT_ACCOUNT,
    AccountOption,
    JsonOption,
    UrlOption,
    WideOption,
    asked,
    collected,
    connect,
    full_order_id,
    sign_pdca_token,
    sign_token,
)
from switchyard.entrypoints.cli.failures import NOT_REACHABLE, REJECTED

if TYPE_CHECKING:
    from switchyard.client import Acknowledgement, AmendResult, AsyncClient, ClientError, RecordedEvent, StreamEvent


# More than an order of many partial fills has; a longer history is read with the client.
SHOWN_EVENTS_MAX = 1_000
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (token, order, amend, cancel, orders, show):
        app.command()(command)


def duration(text: str, option: str = "--ttl") -> timedelta:
    """Parse a duration: 90s, 15m, 24h, 7d."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration like 90s, 15m, 24h or 7d", param_hint=option)
    return timedelta(seconds=int(match[1]) * _SECONDS_PER_UNIT[match[2]])


def moment(text: str) -> datetime:
    """Parse a time with an offset."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a time such as 2026-01-31T17:00:00Z") from None
    if at.utcoffset() is None:
        raise typer.BadParameter(f"{text!r} has no offset: add Z for UTC, or one such as +09:00")
    return at


def amount(text: str) -> Decimal:
    """Parse a decimal number greater than zero, without rounding."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"{text!r} is not a number") from None
    if not (value.is_finite() and value > 0):
        raise typer.BadParameter(f"{text!r} is not greater than 0")
    return value


def status(text: str) -> Status:
    """Parse an order status, in upper or lower case."""
    known: tuple[Status, ...] = get_args(Status)
    for name in known:
        if text.upper() == name:
            return name
    raise typer.BadParameter(f"{text!r} is not one of {', '.join(known)}", param_hint="--status")


TimeoutOption = Annotated[
    str,
    typer.Option(
        "--timeout", metavar="TIME", help="How long --wait waits: 90s, 15m, 24h, 7d; exit with code 3 after it."
    ),
]
OrderIdArgument = Annotated[
    str, typer.Argument(metavar="ORDER_ID", help="Id of the order, or its end as `switchyard orders` shows it.")
]


def token(
    account: Annotated[
        str, typer.Option("--account", help="Account that the token is for; with --aud, * for all accounts.")
    ] = DEFAULT_ACCOUNT,
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="Lifetime: 90s, 15m, 24h, 7d.")] = "24h",
    scopes: Annotated[
        list[str] | None, typer.Option("--scope", help="A scope, such as admin:kill; may be repeated.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Person that the token is for; by default the account.")
    ] = None,
    audiences: Annotated[
        list[str] | None,
        typer.Option(
            "--aud",
            metavar="pdca|pdca.gui",
            help="A token for the PDCA API, to write (pdca) or read (pdca.gui); may be repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a token for an account, signed with the local secret, or for the PDCA API, signed with the local key."""
    from switchyard.settings import load_settings

    lifetime = duration(ttl)
    if audiences:
        signed = sign_pdca_token(
            load_settings(), subject or account, lifetime, audiences, scopes or (), account=account
        )
    else:
        signed = sign_token(load_settings(), account, lifetime, scopes=scopes or (), subject=subject)
    if as_json:
        shown = {"account": account, "token": signed, "ttlSeconds": int(lifetime.total_seconds())}
        output.print_json(shown | ({"scope": " ".join(scopes)} if scopes else {}))
    else:
        typer.echo(signed)


def order(
    side: Annotated[Literal["buy", "sell"], typer.Argument(metavar="buy|sell", case_sensitive=False)],
    symbol: Annotated[str, typer.Argument(metavar="SYMBOL")],
    qty: Annotated[Decimal, typer.Argument(parser=amount, metavar="QTY")],
    limit: Annotated[
        Decimal | None,
        typer.Option("--limit", parser=amount, metavar="PRICE", help="Limit price; without it a market order."),
    ] = None,
    stop: Annotated[
        Decimal | None,
        typer.Option(
            "--stop", parser=amount, metavar="PRICE", help="Stop price: the order waits until the market reaches it."
        ),
    ] = None,
    time_in_force: Annotated[
        Literal["IOC", "FOK", "GTC", "DAY", "GTD"] | None,
        typer.Option(
            "--tif",
            case_sensitive=False,
            metavar="IOC|FOK|GTC|DAY|GTD",
            help="Time in force; by default GTC with a limit or a stop, else IOC.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key; by default a new random one. One key makes one order.")
    ] = None,
    client_order_id: Annotated[
        str | None, typer.Option("--client-order-id", help="Your own label for the order.")
    ] = None,
    strategy: Annotated[str | None, typer.Option("--strategy", help="Strategy that the order belongs to.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    post_only: Annotated[
        bool, typer.Option("--post-only", help="Never trade at once: the venue rejects or cancels such an order.")
    ] = False,
    reduce_only: Annotated[
        bool, typer.Option("--reduce-only", help="Only reduce the position; the venue sees to it.")
    ] = False,
    display_qty: Annotated[
        Decimal | None,
        typer.Option("--display", parser=amount, metavar="QTY", help="The part that the market is shown (iceberg)."),
    ] = None,
    expire_at: Annotated[
        datetime | None,
        typer.Option(
            "--expire-at", parser=moment, metavar="TIME", help="When a GTD order ends, such as 2026-01-31T17:00:00Z."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the order reaches a final state.")] = False,
    timeout: TimeoutOption = "5m",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what every pre-trade check says, and place nothing.")
    ] = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Place an order; with --wait or --dry-run, exit with code 1 if it is rejected."""
    if dry_run and (wait or key is not None):
        raise typer.BadParameter("cannot be used with --wait or --key", param_hint="--dry-run")
    longest = duration(timeout, "--timeout")

    bought: Side = "BUY" if side == "buy" else "SELL"
    terms: dict[str, Any] = {
        "limit_price": limit,
        "stop_price": stop,
        "time_in_force": time_in_force,
        "client_order_id": client_order_id,
        "strategy": strategy,
        "tags": tags or (),
        "post_only": post_only,
        "reduce_only": reduce_only,
        "display_qty": display_qty,
        "expire_at": expire_at,
    }
    if dry_run:
        checked = asked(url, account, lambda client: client.dry_run(symbol, bought, qty, **terms))
        output.print_json(checked) if as_json else output.console().print(output.check_table(checked))
        raise typer.Exit(0 if checked.accepted else 1)

    async def place(client: "AsyncClient") -> "tuple[Acknowledgement, OrderSnapshot | None]":
        acknowledgement = await client.place(symbol, bought, qty, **terms, idempotency_key=key)
        return acknowledgement, await final_state(client, acknowledgement, longest) if wait else None

    acknowledgement, final = asked(url, account, place)
    if final is not None:
        if as_json:
            output.print_json(final)
        else:
            output.console().print(output.order_sheet(final))
        exit_by_end(final, timeout)
    elif as_json:
        output.print_json(acknowledgement)
    else:
        replayed = " (placed before under this key)" if acknowledgement.replayed else ""
        typer.echo(f"{acknowledgement.order_id} {acknowledgement.status}{replayed}")


def amend(
    order_id: OrderIdArgument,
    qty: Annotated[
        Decimal | None,
        typer.Option("--qty", parser=amount, metavar="QTY", help="New total quantity, including what is filled."),
    ] = None,
    price: Annotated[
        Decimal | None, typer.Option("--price", parser=amount, metavar="PRICE", help="New limit price.")
    ] = None,
    stop_price: Annotated[
        Decimal | None, typer.Option("--stop-price", parser=amount, metavar="PRICE", help="New stop price.")
    ] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Amend only if the order still has this version.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key; by default a new random one. One key makes one amend.")
    ] = None,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Change the quantity or the prices of an open order; exit with code 1 if the amend is refused."""
    if qty is None and price is None and stop_price is None:
        raise typer.BadParameter("give --qty, --price or --stop-price")

    async def request(client: "AsyncClient") -> "AmendResult":
        full_id = await full_order_id(client, order_id)
        return await client.amend(
            full_id, qty=qty, limit_price=price, stop_price=stop_price, version=version, idempotency_key=key
        )

    result = asked(url, account, request)
    if as_json:
        output.print_json(result)
    else:
        replayed = " (requested before under this key)" if result.replayed else ""
        reason = "" if result.reason is None else f" {result.reason}"
        typer.echo(f"{result.order_id} {result.status}{reason}{replayed}")
    if result.status == "REFUSED":
        raise typer.Exit(1)


def cancel(
    order_id: OrderIdArgument,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Request the cancellation of an order."""

    async def request(client: "AsyncClient") -> "Acknowledgement":
        return await client.cancel(await full_order_id(client, order_id))

    acknowledgement = asked(url, account, request)
    if as_json:
        output.print_json({"orderId": acknowledgement.order_id, "status": acknowledgement.status})
    else:
        typer.echo(f"{acknowledgement.order_id} {acknowledgement.status}")


def orders(
    statuses: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="Only orders of this status, e.g. FILLED; may be repeated."),
    ] = None,
    symbol: Annotated[str | None, typer.Option("--symbol", help="Only orders of this symbol.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Maximum number of orders.")] = 50,
    wide: WideOption = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """List the account's orders, newest first."""
    selected = [status(text) for text in statuses or ()]
    listed = asked(url, account, lambda client: collected(client.orders(statuses=selected, symbol=symbol, limit=limit)))
    if as_json:
        output.print_json(listed)
    else:
        output.console(wide=wide).print(output.order_table(listed, wide=wide) if listed else "no orders")


def show(
    order_id: OrderIdArgument,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Show an order and its newest 1,000 events."""

    async def load(client: "AsyncClient") -> "tuple[OrderSnapshot, list[RecordedEvent]]":
        full_id = await full_order_id(client, order_id)
        shown = await client.order(full_id)
        newest = client.events(order_id=full_id, newest_first=True, limit=SHOWN_EVENTS_MAX)
        return shown, (await collected(newest))[::-1]

    shown, events = asked(url, account, load)
    if as_json:
        output.print_json({"order": shown, "events": events})
    else:
        console = output.console()
        console.print(output.order_sheet(shown))
        console.print()
        console.print(output.event_table(events))


def exit_by_end(order: OrderSnapshot, timeout: str) -> None:
    """End the command with an error code if the order was rejected, or has not ended within the time of --timeout."""
    if order.status == "REJECTED":
        raise typer.Exit(REJECTED)
    if not is_final(order.status):
        typer.echo(
            f"the order is {order.status} after {timeout} and stays in force: see `switchyard explain "
            f"{order.order_id}`, wait on with `switchyard watch {order.order_id}`, or end it with `switchyard cancel "
            f"{order.order_id}`",
            err=True,
        )
        raise typer.Exit(NOT_REACHABLE)


async def final_state(client: "AsyncClient", acknowledgement: "Acknowledgement", longest: timedelta) -> OrderSnapshot:
    """Wait for the order's final state; after the longest time, return it as it is.

    Each status before it is printed on stderr: the id must be known even if the wait is interrupted.
    """
    typer.echo(f"{acknowledgement.order_id} {acknowledgement.status}", err=True)
    try:
        async with asyncio.timeout(longest.total_seconds()):
            return await _followed(client, acknowledgement)
    except TimeoutError:
        return await client.order(acknowledgement.order_id)


async def _followed(client: "AsyncClient", acknowledgement: "Acknowledgement") -> OrderSnapshot:
    from switchyard.client import OrderUpdate, ResyncRequired

    order_id, last_status = acknowledgement.order_id, acknowledgement.status
    async with aclosing(client.stream(order_id)) as events:
        async for event in events:
            match event:
                case OrderUpdate(order=current):
                    pass
                case ResyncRequired():
                    current = await client.order(order_id)
                case _:
                    continue
            if current.status != last_status:
                typer.echo(f"{order_id} {current.status}", err=True)
                last_status = current.status
            if is_final(current.status):
                return current
    raise AssertionError("client.stream reconnects until it is closed")


# More lines cannot be read while they change; a small terminal still shows the newest ones.
ROWS_MAX = 20


def watch(
    order_id: Annotated[
        str | None,
        typer.Argument(metavar="ORDER_ID", show_default=False, help="Id of one order, or its end; without it all."),
    ] = None,
    wide: WideOption = False,
    url: UrlOption = None,
    account: AccountOption = DEFAULT_ACCOUNT,
    as_json: JsonOption = False,
) -> None:
    """Follow one order, or all of the account's, until Ctrl-C; with --json one line per message."""

    async def follow() -> None:
        async with connect(url, account) as client:
            full_id = None if order_id is None else await full_order_id(client, order_id)
            await (print_messages(client, full_id) if as_json else show_table(client, full_id, wide=wide))

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal end: exit with 0


async def print_messages(client: "AsyncClient", order_id: str | None) -> None:
    """Print every message as it arrives; lost connections are reported on stderr."""
    from switchyard.client.wire import read_anything

    def report(loss: "ClientError") -> None:
        typer.echo(f"switchyard: {loss}; reconnecting", err=True)

    async with aclosing(client.stream(order_id, on_disconnect=report)) as events:
        async for event in events:
            message = event.message
            output.print_json({"id": message.id, "event": message.event, "data": read_anything(message.data)})


async def show_table(client: "AsyncClient", order_id: str | None, *, wide: bool) -> None:
    """Show a table of the orders that changed last."""
    from rich.live import Live

    board = Board()
    with Live(console=output.console(), auto_refresh=False) as live:

        def draw(state: str) -> None:
            live.update(output.order_table(board.newest(), caption=state, wide=wide), refresh=True)

        draw("connecting")
        caption = "connection lost, reconnecting"
        async with aclosing(client.stream(order_id, on_disconnect=lambda _: draw(caption))) as events:
            async for event in events:
                await board.take(event, client, order_id)
                draw("live; Ctrl-C to stop")


class Board:
    """The orders in the table, each in its newest version."""

    def __init__(self) -> None:
        self._orders: dict[str, OrderSnapshot] = {}

    async def take(self, event: "StreamEvent", client: "AsyncClient", order_id: str | None) -> None:
        """Update the orders from an event."""
        from switchyard.client import OrderUpdate, ResyncRequired, StreamReady

        match event:
            case OrderUpdate(order=order):
                self.put(order)
            case StreamReady() | ResyncRequired() if order_id is None:
                # At the start and after a gap the stream alone does not show the current state.
                async for order in client.orders(limit=ROWS_MAX):
                    self.put(order)
            case ResyncRequired() if order_id is not None:
                self.put(await client.order(order_id))
            case _:
                pass

    def put(self, order: OrderSnapshot) -> None:
        """Store the order unless a newer version is stored: replayed messages may arrive after a reload."""
        shown = self._orders.get(order.order_id)
        if shown is None or shown.version < order.version:
            self._orders[order.order_id] = order
        if len(self._orders) > ROWS_MAX:
            oldest = min(self._orders.values(), key=lambda order: order.updated_at)
            del self._orders[oldest.order_id]

    def newest(self) -> list[OrderSnapshot]:
        """The orders, the last changed first."""
        return sorted(self._orders.values(), key=lambda order: order.updated_at, reverse=True)
