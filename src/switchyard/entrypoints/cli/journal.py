"""`db`, `audit` and `replay`: upgrade or rebuild the database, verify the audit file."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import print_json
from switchyard.settings import Settings, configured_secrets, journal_key, load_settings

INVALID = 1  # the exit code of `audit verify` for an invalid file

database = typer.Typer(help="Manage the database.", no_args_is_help=True)
audit = typer.Typer(help="Check the audit file.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(database, name="db")
    app.add_typer(audit, name="audit")
    app.command()(replay)
    app.command()(reset)


@database.command()
def upgrade(json: JsonOption = False) -> None:
    """Upgrade the database's schema to this version."""
    from switchyard.bootstrap import upgrade_database

    version = asyncio.run(upgrade_database(load_settings()))
    if json:
        print_json({"version": version})
    else:
        typer.echo(f"the schema is at version {version}")


@database.command()
def restored(json: JsonOption = False) -> None:
    """Declare that an older backup was restored: start a new epoch and mark all unfinished orders uncertain.

    Run it with all processes stopped, before the first start; if it was interrupted, run it again to finish. No order
    is sent before its venue was asked.
    """
    from switchyard.bootstrap import accept_restored

    done = asyncio.run(accept_restored(_settings_with_logs()))
    if json:
        print_json(done)
        return
    if done.continued:
        typer.echo(f"finished an interrupted `db restored` of epoch {done.epoch}: nothing was sent meanwhile")
    typer.echo(f"epoch {done.epoch}: {done.rows} unfinished outbox rows are uncertain until their venues were asked")
    typer.echo(f"{done.kills} kills are active; later ones are lost: see `switchyard kills list` before you start")


@database.command()
def newest(
    by: Annotated[str, typer.Option("--by", help="Who states it.")],
    reason: Annotated[str, typer.Option("--reason", help="Why it is certain.")],
    json: JsonOption = False,
) -> None:
    """State that this database is the newest, although a copy of its head says otherwise; recorded in the journal.

    Run it with all processes stopped. Its queued orders will be sent: if any could have been sent from a newer
    database, run `db restored` instead.
    """
    from switchyard.bootstrap import accept_newest

    epoch = asyncio.run(accept_newest(_settings_with_logs(), by, reason))
    if json:
        print_json({"epoch": epoch})
    else:
        typer.echo(
            f"epoch {epoch}: recorded that this database is the newest; queued orders are sent at the next start"
        )


@database.command()
def digest(json: JsonOption = False) -> None:
    """Print the digest of all orders, to compare with that of `replay`.

    Exit code 1 if the list of unfinished orders, or the totals that limits use, are not those of the orders.
    """
    from switchyard.bootstrap import order_dump
    from switchyard.flow.history.replay import live_digest

    dump = order_dump(load_settings())
    state, wrong = asyncio.run(live_digest(dump.all_orders())), asyncio.run(dump.wrong_totals())
    listed = asyncio.run(dump.wrong_unfinished())
    if json:
        print_json({"digest": state, "wrongTotals": wrong, "wrongUnfinished": listed})
    else:
        typer.echo(state)
    if listed:
        # First, because the totals are computed from this list.
        typer.echo(
            f"{len(listed)} orders are wrong in the list of unfinished orders, first {listed[0]}: run "
            "`SELECT set_unfinished_orders()` on the database",
            err=True,
        )
    if wrong:
        account, symbol, currency = wrong[0]
        typer.echo(
            f"{len(wrong)} of the kept totals are not those of the open orders, first account {account}, symbol "
            f"{symbol}, currency {currency or '-'}: run `UPDATE journal_heads SET keeps_exposures = false` on the "
            "database; the next order with a limit computes them again",
            err=True,
        )
    if wrong or listed:
        raise typer.Exit(1)


@audit.command()
def verify(
    path: Annotated[Path | None, typer.Argument(help="The audit file; by default the configured one.")] = None,
    json: JsonOption = False,
) -> None:
    """Verify the audit file's hash chain and its signed head; name the first bad line."""
    from switchyard.bootstrap import audit_files
    from switchyard.flow.history.replay import verify_audit

    settings = load_settings()
    file, head_file = audit_files(_existing(path or settings.audit_path))
    report = verify_audit(file, head_file, journal_key(settings, create=False))
    if json:
        print_json(report)
    elif report.bad_line is not None:
        typer.echo(f"{report.path}: line {report.bad_line.number}: {report.bad_line.why}", err=True)
    elif report.head_problem is not None:
        typer.echo(f"{report.path}: {report.head_problem}", err=True)
    else:
        unfinished = f", then {report.partial_bytes} bytes of an unfinished line" if report.partial_bytes else ""
        typer.echo(f"{report.path}: {report.lines} lines are valid, up to seq {report.last_seq}{unfinished}")
    if not report.holds:
        raise typer.Exit(INVALID)


def replay(
    path: Annotated[Path | None, typer.Argument(help="The audit file; by default the configured one.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Verify and print the digest; write nothing.")] = False,
    json: JsonOption = False,
) -> None:
    """Rebuild the configured database, which must be empty, from an audit file; print the digest of its orders.

    Orders may have been sent after the file's last line, so the database is then declared restored: a new epoch starts
    and all unfinished orders are uncertain. The digest is that of the file.
    """
    from switchyard.bootstrap import accept_restored, audit_files, audit_head, rebuild_target, upgrade_database
    from switchyard.flow.history.replay import ReplayResult
    from switchyard.flow.history.replay import replay as replay_file

    settings = _settings_with_logs()
    audit_path = _existing(path or settings.audit_path)
    source, _ = audit_files(audit_path)

    async def rebuild() -> ReplayResult:
        if dry_run:
            return await replay_file(source)
        await upgrade_database(settings, rebuilding=True)
        async with rebuild_target(settings) as target:
            result = await replay_file(source, target, audit_head(audit_path))
        done = await accept_restored(settings)
        typer.echo(f"epoch {done.epoch}: {done.rows} unfinished outbox rows are uncertain", err=True)
        return result

    result = asyncio.run(rebuild())
    if json:
        print_json(result)
    else:
        typer.echo(f"{result.events} events, {result.orders} orders, up to seq {result.seq}\n{result.digest}")


def _settings_with_logs() -> Settings:
    """The settings, with warnings of the command going to stderr."""
    from switchyard.telemetry.logs import configure_logs

    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format, configured_secrets(settings))
    return settings


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise typer.BadParameter(f"{path} is not a file", param_hint="PATH")
    return path


def reset(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete the data folder's orders, books and rechecks, to try things out anew; tokens stay valid.

    Only while all its orders were on paper: the orders of a venue outside this process must not be forgotten.
    """
    from switchyard.bootstrap import resetting

    with resetting(load_settings()) as found:
        if not found.files:
            typer.echo(f"{found.folder} has nothing to delete", err=True)
        elif not yes:
            typer.echo(
                f"This deletes all orders, keys, positions, books, strategies and rechecks in {found.folder}: "
                f"{len(found.files)} files, {found.bytes // 1024} KiB",
                err=True,
            )
            typer.confirm("Delete them?", abort=True, err=True)
    if json:
        print_json({"folder": str(found.folder), "files": [str(file) for file in found.files]})
    elif found.files:
        typer.echo(f"deleted {len(found.files)} files in {found.folder}")
