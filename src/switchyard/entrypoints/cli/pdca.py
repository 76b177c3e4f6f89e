"""`pdca run`: carry out a stored recheck, as Airflow's task does; with and without a running server."""

import asyncio
from typing import Annotated

import typer

from switchyard.entrypoints.cli.connection import JsonOption
from switchyard.entrypoints.cli.output import print_json
from switchyard.entrypoints.cli.processes import configured

pdca = typer.Typer(help="Carry out rechecks of strategies.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(pdca, name="pdca")


@pdca.callback()
def group() -> None:
    """Carry out rechecks of strategies."""


@pdca.command()
def run(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="Id of a stored recheck.")],
    json: JsonOption = False,
) -> None:
    """Carry out the unfinished part of a recheck and wait for its end; a repeat changes nothing.

    Exit code 0 once every strategy has a result or an error.
    """
    from switchyard.entrypoints.control.client import run_recheck

    stored = asyncio.run(run_recheck(configured({}), request_id))
    progress = stored.progress
    if json:
        print_json({"request_id": request_id, "state": progress.state, "progress": progress})
        return
    typer.echo(
        f"{request_id} {progress.state}: {progress.succeeded} of {progress.total} strategies rechecked, "
        f"{progress.failed} failed"
    )
