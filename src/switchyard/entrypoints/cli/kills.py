"""`kill` and `kills`: stop orders at once, see what became of them, and clear a kill; with and without a server."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.domain.ids import AccountId, KillId, VenueName
from switchyard.domain.risk.kills import KillMode
from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import console, print_json, table
from switchyard.settings import load_settings

if TYPE_CHECKING:
    from switchyard.domain.risk.kills import KillState, KillView

KILLS_MAX = 100
ByOption = Annotated[str, typer.Option("--by", help="Name of the person who decides; it is recorded.")]
KillArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the kill: kill_…")]

kills = typer.Typer(help="List, show and clear kills.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(kill)
    app.add_typer(kills, name="kills")


def kill(
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded.")],
    everything: Annotated[bool, typer.Option("--everything", help="Stop all orders.")] = False,
    account: Annotated[str | None, typer.Option("--account", help="Stop the orders of this account.")] = None,
    strategy: Annotated[str | None, typer.Option("--strategy", help="Stop the orders of this strategy.")] = None,
    venue: Annotated[str | None, typer.Option("--venue", help="Stop the orders for this venue.")] = None,
    symbol: Annotated[str | None, typer.Option("--symbol", help="Stop the orders in this symbol.")] = None,
    mode: Annotated[
        KillMode, typer.Option("--mode", help="reduce_only also rejects all orders where no venue enforces it.")
    ] = "block",
    wait: Annotated[
        int, typer.Option("--wait", min=0, max=20, metavar="SECONDS", help="Wait for the open orders to end.")
    ] = 2,
    json: JsonOption = False,
) -> None:
    """Stop new orders and cancel open ones: everything, or what agrees with all of the named values.

    Works with and without a running server. Stays on until it is cleared.
    """
    from switchyard.entrypoints.control.client import command_kill_switch
    from switchyard.entrypoints.control.messages import KillTold, SetKill
    from switchyard.flow.kill.switch import KillRequest

    request = KillRequest(
        by=by,
        reason=reason,
        everything=everything,
        account=None if account is None else AccountId(account),
        strategy=strategy,
        venue=None if venue is None else VenueName(venue),
        symbol=symbol,
        mode=mode,
    )
    told = asyncio.run(command_kill_switch(load_settings(), SetKill(request=request, wait_seconds=wait)))
    assert isinstance(told, KillTold)
    _print(told.kill, json)


@kills.command(name="list")
def list_kills(json: JsonOption = False) -> None:
    """List the newest kills, at most 100."""
    from switchyard.entrypoints.control.client import command_kill_switch
    from switchyard.entrypoints.control.messages import KillsTold, ListKills

    told = asyncio.run(command_kill_switch(load_settings(), ListKills(limit=KILLS_MAX)))
    assert isinstance(told, KillsTold)
    if json:
        print_json(told.kills)
        return
    if not told.kills:
        typer.echo("no kill was ever set")
        return
    rows = (
        (one.kill_id, "active" if one.active else "cleared", _scope(one), str(one.position), one.by, one.reason)
        for one in told.kills
    )
    columns = ("Id", "State", "Scope", "Position", "By", "Reason")
    console(wide=True).print(table(columns, rows, no_wrap=("Id", "State"), fold=True))


@kills.command()
def show(kill_id: KillArgument, json: JsonOption = False) -> None:
    """Show what became of the orders that were open when the kill was set."""
    from switchyard.entrypoints.control.client import command_kill_switch
    from switchyard.entrypoints.control.messages import KillTold, ShowKill

    told = asyncio.run(command_kill_switch(load_settings(), ShowKill(kill_id=KillId(kill_id))))
    assert isinstance(told, KillTold)
    _print(told.kill, json)


@kills.command()
def clear(
    kill_id: KillArgument,
    by: ByOption,
    reason: Annotated[str, typer.Option("--reason", help="Why orders may flow again; it is recorded.")],
    json: JsonOption = False,
) -> None:
    """Clear a kill: orders are accepted and sent again, unless another kill covers them."""
    from switchyard.entrypoints.control.client import command_kill_switch
    from switchyard.entrypoints.control.messages import ClearKill, KillTold

    command = ClearKill(kill_id=KillId(kill_id), by=by, reason=reason)
    told = asyncio.run(command_kill_switch(load_settings(), command))
    assert isinstance(told, KillTold)
    if json:
        print_json(told.kill)
    else:
        typer.echo(f"{kill_id} cleared by {by}")


def _print(kill: "KillState", json: bool) -> None:
    if json:
        print_json(kill)
        return
    state = f"active, mode {kill.mode}" if kill.active else f"cleared by {kill.cleared_by}: {kill.cleared_reason}"
    counts = ", ".join(f"{count} {fate}" for fate, count in kill.counts.items()) or "none were open"
    lines = {
        "Kill": f"{kill.kill_id}, {state}",
        "Scope": _scope(kill),
        "Set by": f"{kill.by} at {kill.set_at:%Y-%m-%d %H:%M:%S} UTC: {kill.reason}",
        "Position": f"{kill.position}: no attempt begins after this journal number" if kill.active else kill.position,
        "Orders": counts,
        "In flight": len(kill.in_flight),
        "Drained": "yes: all orders are proven ended" if kill.drained else "no",
    }
    for name, text in lines.items():
        typer.echo(f"{name + ':':<10} {text}")
    for order in kill.orders:
        if order.fate in ("UNKNOWN", "NOT_CANCELLABLE", "PENDING"):
            typer.echo(f"  {order.order_id} {order.fate} ({order.status} at {order.venue})")


def _scope(kill: "KillView") -> str:
    if kill.everything:
        return "everything"
    parts = {"account": kill.account, "strategy": kill.strategy, "venue": kill.venue, "symbol": kill.symbol}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value is not None)
