"""`strategy`: register and delete strategies and see their health.

Reads and writes the PDCA store, with and without a server.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from switchyard.domain.errors import InvalidField, NotFound
from switchyard.domain.ids import AccountId
from switchyard.domain.strategies.registry import (
    Strategy,
    StrategyBody,
    StrategyKey,
    Tenant,
    check_strategy_id,
    checked_strategy,
    tenant_of_account,
)
from switchyard.domain.values import is_account, plain
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import DEFAULT_ACCOUNT, JsonOption
from switchyard.settings import load_settings

if TYPE_CHECKING:
    from rich.table import Table

    from switchyard.ports.strategies import PdcaStore, StrategyPage, StrategyQuery

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the strategy, such as strat.meanrev.m1.")]
WhoseOption = Annotated[
    str | None,
    typer.Option("--account", help="Account that it trades for; needed if several have a strategy of this id."),
]
HEALTH_STYLES = {"healthy": "green", "degraded": "yellow", "unhealthy": "red", "unknown": "dim"}

app = typer.Typer(help="Register and delete strategies and see their health.", no_args_is_help=True)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="strategy")


@app.command()
def add(
    strategy_id: IdArgument,
    account: Annotated[
        str, typer.Option("--account", help="Account that it trades for: only its orders count.")
    ] = DEFAULT_ACCOUNT,
    owner: Annotated[str | None, typer.Option("--owner", help="Person or team that it belongs to.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    capital: Annotated[
        str | None,
        typer.Option("--capital", metavar="AMOUNT:CURRENCY", help="What its returns are measured against."),
    ] = None,
    thresholds: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold",
            metavar="METRIC=DEGRADED/UNHEALTHY",
            help="Where a metric makes it degraded and unhealthy, such as sharpe=1/0.5 or max_drawdown=/0.2.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Register a strategy, or replace what was decided about it; its health stays until the next recheck."""
    check_strategy_id("ID", strategy_id)
    body: dict[str, Any] = {"owner": owner, "tags": tags or []}
    if capital is not None:
        amount, _, currency = capital.partition(":")
        body["capital"] = {"amount": _number("--capital", amount), "currency": currency}
    body["thresholds"] = dict(_threshold(text) for text in thresholds or [])
    key = StrategyKey(_tenant(account), strategy_id)
    strategy, is_new = asyncio.run(_put(key, checked_strategy(body)))
    if as_json:
        output.print_json(_view(strategy))
    else:
        typer.echo(f"{strategy_id} {'is registered' if is_new else 'was changed'}")


@app.command(name="list")
def list_strategies(
    account: Annotated[str | None, typer.Option("--account", help="Only of this account.")] = None,
    health: Annotated[list[str] | None, typer.Option("--health", help="Only of this health; may be repeated.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Only with this tag; may be repeated.")] = None,
    text: Annotated[str, typer.Option("--q", help="Only with this text in their id or owner.")] = "",
    page: Annotated[int, typer.Option("--page", min=1, max=1_000_000, help="Page of 50.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """List the strategies of all accounts by id."""
    from switchyard.entrypoints.http.pdca.queries import page_of, strategy_query

    tenants = None if account is None else frozenset({_tenant(account)})
    given = {"health": ",".join(health or ()), "tags_any": ",".join(tags or ()), "q": text, "page": str(page)}
    query = {name: value for name, value in given.items() if value}
    found = asyncio.run(_page(strategy_query(query, page_of(query), tenants)))
    if as_json:
        output.print_json({"items": [_view(one) for one in found.strategies], "total": found.total})
        return
    output.console().print(_table(found.strategies) if found.strategies else "no strategies")
    if found.total > len(found.strategies):
        typer.echo(f"{found.total} in all; --page shows the others")


@app.command()
def show(strategy_id: IdArgument, account: WhoseOption = None, as_json: JsonOption = False) -> None:
    """Show a strategy, its health and the metrics behind it."""
    strategy = asyncio.run(_find(strategy_id, account))
    if as_json:
        output.print_json(_view(strategy))
    else:
        output.console().print(_sheet(strategy))


@app.command()
def delete(strategy_id: IdArgument, account: WhoseOption = None, as_json: JsonOption = False) -> None:
    """Delete a strategy with its thresholds and its health; its next order registers it again, without them.

    Rechecks that have ended stay. One that is waiting fails, one that is running changes nothing. Kills stay.
    """
    strategy = asyncio.run(_delete(strategy_id, account))
    if as_json:
        output.print_json(_view(strategy))
    else:
        typer.echo(f"{strategy_id} of {_whose(strategy)} was deleted")


@asynccontextmanager
async def _store() -> AsyncIterator["PdcaStore"]:
    from switchyard.bootstrap import open_pdca_store

    store = await open_pdca_store(load_settings(), create=False)
    try:
        yield store
    finally:
        await store.close()


async def _put(key: StrategyKey, body: StrategyBody) -> tuple[Strategy, bool]:
    from switchyard.adapters.system_clock import SystemClock

    async with _store() as store:
        return await store.put_strategy(key, body, SystemClock().now())


async def _page(wanted: "StrategyQuery") -> "StrategyPage":
    async with _store() as store:
        return await store.strategies(wanted)


async def _find(strategy_id: str, account: str | None) -> Strategy:
    async with _store() as store:
        return await _only(store, strategy_id, account)


async def _delete(strategy_id: str, account: str | None) -> Strategy:
    async with _store() as store:
        found = await _only(store, strategy_id, account)
        await store.delete_strategy(found.key)
        return found


async def _only(store: "PdcaStore", strategy_id: str, account: str | None) -> Strategy:
    """The strategy of this id, of the account if one is named."""
    found = await store.named(strategy_id, None if account is None else frozenset({_tenant(account)}), 2)
    if not found:
        raise NotFound(f"there is no strategy {strategy_id}{'' if account is None else f' of the account {account}'}")
    if len(found) > 1:
        raise InvalidField("--account", f"must be given: several accounts have a strategy {strategy_id}")
    return found[0]


def _tenant(account: str) -> Tenant:
    if not is_account(account):
        raise InvalidField("--account", f"{account!r} is not an account id")
    return tenant_of_account(AccountId(account))


def _whose(strategy: Strategy) -> str:
    return strategy.account_id or strategy.tenant


def _number(option: str, text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint=option) from None


def _threshold(text: str) -> tuple[str, dict[str, Decimal]]:
    name, separator, levels = text.partition("=")
    degraded, _, unhealthy = levels.partition("/")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not like sharpe=1/0.5", param_hint="--threshold")
    stated = {"degraded": degraded, "unhealthy": unhealthy}
    return name, {level: _number("--threshold", value) for level, value in stated.items() if value}


def _view(strategy: Strategy) -> object:
    from switchyard.entrypoints.http.pdca.views import strategy_view

    return strategy_view(strategy)


def _table(strategies: tuple[Strategy, ...]) -> "Table":
    from rich.text import Text

    rows = (
        (
            strategy.strategy_id,
            _whose(strategy),
            Text(strategy.health, HEALTH_STYLES[strategy.health]),
            "never" if strategy.last_checked_at is None else f"{strategy.last_checked_at:%m-%d %H:%M}",
            strategy.owner or "",
            " ".join(strategy.tags),
        )
        for strategy in strategies
    )
    return output.table(("Strategy", "Account", "Health", "Checked", "Owner", "Tags"), rows, fold=True)


def _sheet(strategy: Strategy) -> "Table":
    capital = strategy.capital
    rows: dict[str, str | None] = {
        "strategy": strategy.strategy_id,
        "account": _whose(strategy),
        "owner": strategy.owner,
        "tags": " ".join(strategy.tags) or None,
        "capital": None if capital is None else f"{plain(capital.amount)} {capital.currency}",
        "health": strategy.health,
        "because": "; ".join(strategy.health_reasons) or None,
        "checked": None if strategy.last_checked_at is None else f"{strategy.last_checked_at:%Y-%m-%d %H:%M:%S}",
        "request": strategy.last_request_id,
    }
    for name, limits in strategy.thresholds.items():
        levels = {"degraded": limits.degraded, "unhealthy": limits.unhealthy}
        stated = [f"{level} beyond {plain(value)}" for level, value in levels.items() if value is not None]
        rows[f"threshold {name}"] = ", ".join(stated)
    for name, metric in strategy.metrics.items():
        shown = f"none: {metric.reason}" if metric.value is None else f"{plain(metric.value)} {metric.unit or ''}"
        rows[name] = shown.strip()
    return output.sheet(rows)
