"""`db`, `audit` and `replay`: the database's schema, the audit file, and one made from the other."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import print_json
from switchyard.settings import journal_key, load_settings

BROKEN = 1

database = typer.Typer(help="The database.", no_args_is_help=True)
audit = typer.Typer(help="The audit file.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(database, name="db")
    app.add_typer(audit, name="audit")
    app.command()(replay)


@database.command()
def upgrade(json: JsonOption = False) -> None:
    """Bring the database's schema to this version."""
    from switchyard.bootstrap import upgrade_database

    version = asyncio.run(upgrade_database(load_settings()))
    if json:
        print_json({"version": version})
    else:
        typer.echo(f"the schema is at version {version}")


@database.command()
def restored(json: JsonOption = False) -> None:
    """Say that an older backup was restored: a new epoch, and doubt about everything unfinished.

    Run it once, with nothing else running, before the first start. Nothing is sent before the venue was asked.
    """
    from switchyard.bootstrap import accept_restored

    epoch, rows = asyncio.run(accept_restored(load_settings()))
    if json:
        print_json({"epoch": epoch, "rows": rows})
    else:
        typer.echo(f"epoch {epoch}: {rows} unfinished rows are in doubt until their venues were asked")


@database.command()
def digest(json: JsonOption = False) -> None:
    """Print a digest over all orders, to compare with a replay's."""
    from switchyard.bootstrap import order_dump
    from switchyard.flow.history.replay import live_digest

    found = asyncio.run(live_digest(order_dump(load_settings()).all_orders()))
    if json:
        print_json({"digest": found})
    else:
        typer.echo(found)


@audit.command()
def verify(
    path: Annotated[Path | None, typer.Argument(help="The file; default: the configured one.")] = None,
    json: JsonOption = False,
) -> None:
    """Walk the audit file's hash chain and name the first bad line."""
    from switchyard.flow.history.verify import verify_audit

    settings = load_settings()
    report = verify_audit(_existing(path or settings.audit_path), key=journal_key(settings))
    if json:
        print_json(report)
    elif report.bad_line is not None:
        typer.echo(f"{report.path}: line {report.bad_line.number}: {report.bad_line.why}", err=True)
    elif report.head_problem is not None:
        typer.echo(f"{report.path}: {report.head_problem}", err=True)
    else:
        unfinished = f", and {report.partial_bytes} bytes of an unfinished one" if report.partial_bytes else ""
        typer.echo(f"{report.path}: {report.lines} lines hold, up to seq {report.last_seq}{unfinished}")
    if not report.holds:
        raise typer.Exit(BROKEN)


def replay(
    path: Annotated[Path | None, typer.Argument(help="The audit file; default: the configured one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only fold and print the digest; write nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Rebuild an empty database (the configured one) from an audit file and print the state's digest."""
    from switchyard.bootstrap import rebuild_target, upgrade_database
    from switchyard.flow.history.replay import ReplayResult
    from switchyard.flow.history.replay import replay as fold

    settings = load_settings()
    source = _existing(path or settings.audit_path)

    async def rebuild() -> ReplayResult:
        if dry_run:
            return await fold(source)
        await upgrade_database(settings)
        async with rebuild_target(settings) as target:
            return await fold(source, target)

    result = asyncio.run(rebuild())
    if json:
        print_json(result)
    else:
        typer.echo(f"{result.events} events, {result.orders} orders, up to seq {result.seq}\n{result.digest}")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}", param_hint="PATH")
    return path
