"""`reconcile`: compare the books now, list breaks, explain one, adopt a foreign fill. Calls the back office."""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote as percent_encoded

import typer

from switchyard.domain.ids import AccountId
from switchyard.domain.journal.events import encode
from switchyard.domain.reconcile.breaks import (
    BREAK_STATES,
    CURRENT_STATES,
    AdoptRequest,
    BreakHistory,
    BreakPage,
    BreakView,
    ExplainRequest,
    PassView,
)
from switchyard.domain.values import plain
from switchyard.entrypoints.cli.connection import COMMAND_TOKEN_TTL, TOKEN_VARIABLE, JsonOption, WideOption, sign_token
from switchyard.entrypoints.cli.output import console, print_json, table

if TYPE_CHECKING:
    from switchyard.client.calls import Response

T = TypeVar("T")

OPEN_BREAKS = 1  # the exit code where a break is open
# More breaks than a person reads; the rest is in `GET /admin/breaks`.
BREAKS_MAX = 500
# A pass over a large ledger reads page by page, with pauses.
PASS_SECONDS_MAX = 600.0
SCOPE = "admin:reconcile"

app = typer.Typer(
    help="Compare the books with the gateway and the venues, and decide about the differences.",
    invoke_without_command=True,
)
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="URL of the back office; by default from SWITCHYARD_HOST and SWITCHYARD_BACKOFFICE_PORT.",
        show_default=False,
    ),
]
BreakArgument = Annotated[str, typer.Argument(metavar="BREAK", help="Id of the break: brk_…")]
ByOption = Annotated[str, typer.Option("--by", help="Name of the person who decides; it is recorded.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is recorded.")]


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="reconcile")


@app.callback()
def run(
    context: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Read all entries and statements again, not only what is new.")
    ] = False,
    wide: WideOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Compare now and list the breaks; exit code 1 if one is open. A first pass only suspects a new difference."""
    if context.invoked_subcommand is not None:
        return
    path = f"/admin/reconcile?full={'true' if full else 'false'}"
    done = asyncio.run(_asked(url, "switchyard reconcile", "POST", path, PassView, b"", PASS_SECONDS_MAX))
    breaks = _listed(url, CURRENT_STATES)
    if json:
        print_json({"pass": done, "breaks": breaks})
    else:
        for one in done.not_compared:
            typer.echo(f"not compared: {one.scope}: {one.reason}", err=True)
        _print(breaks, wide=wide)
        typer.echo(f"{done.accounts} accounts compared at {done.compared_at:%Y-%m-%d %H:%M:%S} UTC")
    _exit_by(breaks)


@app.command(name="list")
def list_breaks(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="suspected, open, explained or closed; may be repeated.")
    ] = None,
    wide: WideOption = False,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """List breaks without comparing; exit code 1 if one is open."""
    for name in state or ():
        if name not in BREAK_STATES:
            raise typer.BadParameter(f"{name!r} is not one of {', '.join(BREAK_STATES)}", param_hint="--state")
    breaks = _listed(url, state or CURRENT_STATES)
    if json:
        print_json(breaks)
    else:
        _print(breaks, wide=wide)
    _exit_by(breaks)


@app.command()
def show(break_id: BreakArgument, url: UrlOption = None, json: JsonOption = False) -> None:
    """Show one break and what became of it."""
    found = asyncio.run(_asked(url, "switchyard reconcile", "GET", _path(break_id), BreakHistory))
    _print_one(found, json=json)


@app.command()
def explain(
    break_id: BreakArgument, by: ByOption, reason: ReasonOption, url: UrlOption = None, json: JsonOption = False
) -> None:
    """Record why an open break is as it should be; it opens again if its amount changes."""
    body = encode(ExplainRequest(reason=reason))
    done = asyncio.run(_asked(url, by, "POST", f"{_path(break_id)}/explain", BreakHistory, body))
    _print_one(done, by=by, json=json)


@app.command()
def adopt(
    break_id: BreakArgument,
    by: ByOption,
    reason: ReasonOption,
    account: Annotated[
        str | None, typer.Option("--account", help="Account to book to, where the venue does not name it.")
    ] = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Book a venue's fill of an order that is unknown here, under the strategy `external`."""
    request = AdoptRequest(reason=reason, account_id=None if account is None else AccountId(account))
    done = asyncio.run(_asked(url, by, "POST", f"{_path(break_id)}/adopt", BreakHistory, encode(request)))
    _print_one(done, by=by, json=json)


def _listed(url: str | None, states: Sequence[str]) -> list[BreakView]:
    path = f"/admin/breaks?state={','.join(states)}&limit={BREAKS_MAX}"
    return list(asyncio.run(_asked(url, "switchyard reconcile", "GET", path, BreakPage)).breaks)


async def _asked(
    url: str | None,
    by: str,
    method: str,
    path: str,
    kind: type[T],
    body: bytes | None = None,
    timeout_seconds: float = 30.0,
) -> T:
    """The back office's answer; `by` becomes the subject of the token."""
    from switchyard.client import AsyncClient
    from switchyard.client.address import gateway_url
    from switchyard.client.calls import Call
    from switchyard.client.wire import read
    from switchyard.settings import load_settings

    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    settings = None if url and token else load_settings()
    if settings is not None:
        url = url or gateway_url(settings.host, settings.backoffice_port)
        token = token or sign_token(settings, "operator", COMMAND_TOKEN_TTL, scopes=(SCOPE,), subject=by)

    def answer(response: "Response") -> T:
        return read(response.body, kind)

    call: Call[Any] = Call(method=method, path=path, read=answer, body=body, timeout_seconds_min=timeout_seconds)
    async with AsyncClient(url, token) as client:
        found: T = await client.send(call)
    return found


def _path(break_id: str) -> str:
    return f"/admin/breaks/{percent_encoded(break_id, safe='')}"


def _exit_by(breaks: Sequence[BreakView]) -> None:
    if any(one.state == "open" for one in breaks):
        raise typer.Exit(OPEN_BREAKS)


def _print(breaks: Sequence[BreakView], *, wide: bool) -> None:
    if not breaks:
        typer.echo("no breaks")
        return
    columns = ("Break", "State", "Class", "Kind", "Amount", *(("Account", "Here", "There") if wide else ()))
    rows = (
        (
            *(one.break_id, one.state, one.class_, one.kind, f"{plain(one.amount)} {one.unit}"),
            *((one.account_id or "?", one.here, one.there) if wide else ()),
        )
        for one in breaks
    )
    console(wide=wide).print(table(columns, rows, no_wrap=("Break", "State"), fold=True))


def _print_one(found: BreakHistory, *, by: str | None = None, json: bool) -> None:
    if by is not None and found.break_.by != by:
        typer.echo(f"recorded as {found.break_.by}, the subject of {TOKEN_VARIABLE}, not as {by}", err=True)
    if json:
        print_json(found)
        return
    one = found.break_
    lines = {
        "Break": f"{one.break_id}, {one.state}, {one.class_}",
        "About": f"{one.kind}: {' '.join(one.subject)}",
        "Account": one.account_id or "cannot be told",
        "Amount": f"{plain(one.amount)} {one.unit}",
        "Here": one.here,
        "There": one.there,
        "Seen": f"{one.first_seen_at:%Y-%m-%d %H:%M:%S} to {one.last_seen_at:%Y-%m-%d %H:%M:%S} UTC",
        "Decided": "" if one.by is None else f"{one.by}: {one.reason}",
    }
    for name, text in lines.items():
        if text:
            typer.echo(f"{name + ':':<10} {text}")
    for former in found.history[1:]:
        typer.echo(f"  {former.changed_at:%Y-%m-%d %H:%M:%S} {former.state} {plain(former.amount)} {former.unit}")
