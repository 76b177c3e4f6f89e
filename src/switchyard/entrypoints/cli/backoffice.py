"""`backoffice`: the back office as a process of its own, and the command that builds its books again."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.failures import DEFECT, bound_the_end, run_to_end
from switchyard.entrypoints.cli.output import print_json
from switchyard.entrypoints.cli.processes import Database, Host, configured, say
from switchyard.settings import Settings

if TYPE_CHECKING:
    from switchyard.entrypoints.control.office import ParentLink

NICE = 5  # orders go first where the parent needs the processor
DIFFERENT = 1  # the exit code of `rebuild --verify` where something differs

app = typer.Typer(
    help="Keep the books in a process of its own (needs PostgreSQL), or build them again.",
    invoke_without_command=True,
)
PortOption = Annotated[str | None, typer.Option("--port", help="Port to listen on (SWITCHYARD_BACKOFFICE_PORT).")]


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="backoffice")


@app.callback()
def run(
    context: typer.Context,
    host: Host = None,
    port: PortOption = None,
    database_url: Database = None,
    child: Annotated[bool, typer.Option("--child", hidden=True)] = False,
) -> None:
    """Keep the books in a process of its own; needs PostgreSQL. `switchyard up` runs one as its child process."""
    if context.invoked_subcommand is not None:
        return
    settings = configured(
        {
            "SWITCHYARD_HOST": host,
            "SWITCHYARD_BACKOFFICE_PORT": port,
            "SWITCHYARD_DATABASE_URL": database_url,
        },
        is_child=child,
    )
    if child:
        os.nice(NICE)
        run_to_end(_serve_as_child(settings))
        return
    run_to_end(_serve(settings, None))
    say(settings, "switchyard backoffice has stopped", "stopped", role="backoffice")


@app.command()
def rebuild(
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare with the books in use and change nothing; exit code 1 if they differ."),
    ] = False,
    discard_manual: Annotated[
        bool,
        typer.Option(
            "--discard-manual", help="Leave the entries of people out, where the books in use cannot be read any more."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read the journal from zero and build the books again; the former books are kept under another name.

    Entries of people, and those of an adopted epoch, are carried over to their places. Run it with the process that
    keeps the books stopped; on SQLite that is `switchyard up`.
    """
    from switchyard.bootstrap import rebuild_books, verify_books

    settings = configured({})
    if not verify:
        with _progress() as progress:
            rebuilt = asyncio.run(rebuild_books(settings, progress, discard=discard_manual))
        if json:
            print_json(rebuilt)
            return
        kept = "" if rebuilt.replaced is None else f"; the former books are in {rebuilt.replaced}"
        carried = f", {rebuilt.carried} of them carried over" if rebuilt.carried else ""
        typer.echo(f"{rebuilt.entries} entries{carried}, up to event {rebuilt.seq}, hash {rebuilt.hash}{kept}")
        return
    with _progress() as progress:
        checked = asyncio.run(verify_books(settings, progress))
    if json:
        print_json(checked)
    else:
        for line in checked.lines:
            typer.echo(line, err=True)
        verdict = f"{checked.differences} differences" if checked.differences else "no difference"
        typer.echo(f"{checked.entries} entries, up to event {checked.seq}, hash {checked.hash}: {verdict}")
    if checked.differences:
        raise typer.Exit(DIFFERENT)


@app.command()
def reset(
    source: Annotated[
        str | None, typer.Option("--source", help="One source, such as `journal`; all of them without it.")
    ] = None,
) -> None:
    """Read the events again from zero: what is booked stays, and an account that halted at a gap can go on.

    Every event that an account has read is dropped again, so that nothing is booked twice.
    """
    from switchyard.bootstrap import reset_books

    for name in asyncio.run(reset_books(configured({}), source)):
        typer.echo(f"{name}: is read again from its start")


@app.command(name="adopt-epoch")
def adopt_epoch(
    by: Annotated[str, typer.Option("--by", help="Your name; it is recorded.")],
    reason: Annotated[str, typer.Option("--reason", help="Why this journal is the right one; it is recorded.")],
    json: JsonOption = False,
) -> None:
    """Follow a journal that was restored and has lost events which are booked.

    The entries that the journal does not have stay in the books; `switchyard ledger orphans` lists them.
    """
    from switchyard.bootstrap import adopt_epoch

    adoption, orphans = asyncio.run(adopt_epoch(configured({}), by, reason))
    if json:
        print_json({"adoption": adoption, "orphans": orphans})
        return
    typer.echo(
        f"the books follow epoch {adoption.epoch} after event {adoption.after_seq}; {orphans} entries are not in the "
        "journal any more: see `switchyard ledger orphans`"
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr; nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("events"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


async def _serve_as_child(settings: Settings) -> None:
    """Serve until the parent ends this process, or is killed."""
    from switchyard.entrypoints.control.office import ParentLink, inherited_connection

    parent = await ParentLink.open(inherited_connection())

    async def follow() -> None:
        await parent.run()
        os._exit(DEFECT)  # all files survive a kill, and the next `up` waits for them

    tasks = [asyncio.create_task(follow()), asyncio.create_task(parent.beat())]
    try:
        await _serve(settings, parent)
    finally:
        for task in tasks:
            task.cancel()


async def _serve(settings: Settings, parent: "ParentLink | None") -> None:
    from switchyard.bootstrap import running_backoffice
    from switchyard.client.address import gateway_url
    from switchyard.entrypoints.http.backoffice import build_backoffice

    async with running_backoffice(settings, parent) as office:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, office.stop.set)
        server = build_backoffice(settings, office)
        await server.start()
        try:
            url = gateway_url(settings.host, server.port)
            if parent is None:
                say(
                    settings,
                    f"switchyard backoffice is listening on {url}",
                    "listening",
                    role="backoffice",
                    url=url,
                )
            else:
                import structlog

                log = structlog.get_logger()
                log.info("backoffice_listening", url=url)
                parent.report(office, url)
            await office.stop.wait()
        finally:
            bound_the_end()
            await server.stop(grace_seconds=5.0)
    if office.failure is not None:
        raise office.failure
