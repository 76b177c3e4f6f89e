"""The command `switchyard` and its subcommands."""

import sys
from typing import Annotated

import typer

from switchyard import __version__
from switchyard.entrypoints.cli import (
    account,
    backoffice,
    canary,
    doctor,
    failures,
    journal,
    kills,
    ledger,
    market,
    outbox,
    pdca,
    processes,
    reconcile,
    reference,
    simulator,
    strategies,
    top,
    trading,
    venues,
)
from switchyard.entrypoints.cli.demo import command as demo

app = typer.Typer(
    help="Exactly-once order execution between trading strategies and brokers.",
    epilog=failures.EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
processes.register(app)
backoffice.register(app)
ledger.register(app)
reconcile.register(app)
simulator.register(app)
trading.register(app)
account.register(app)
market.register(app)
venues.register(app)
doctor.register(app)
canary.register(app)
demo.register(app)
top.register(app)
journal.register(app)
outbox.register(app)
kills.register(app)
strategies.register(app)
pdca.register(app)
reference.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"switchyard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself; the subcommand does the rest."""


def run() -> None:
    """Run the command and exit with its code."""
    with failures.exiting_by_code():
        code = app(prog_name="switchyard", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
