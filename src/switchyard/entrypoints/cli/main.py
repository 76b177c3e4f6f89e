"""The command `switchyard`: its subcommands and exit codes."""

import sys
from typing import Annotated

import typer

from switchyard import __version__
from switchyard.domain.errors import CannotStart, OutcomeUnknown, RequestError, SwitchyardError, Unavailable
from switchyard.entrypoints.cli import journal, outbox, processes, reference, simulator, trading, watch

REJECTED = 1  # the server rejected the request, or there is no such order
USAGE = 2  # an option or argument is invalid; the code that typer uses
NOT_REACHABLE = 3  # no response, or one that leaves the outcome open
START_REJECTED = 4  # a setting is invalid, or the process cannot run in this state
INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT, as in shells

app = typer.Typer(
    help="Exactly-once order execution between trading strategies and brokers.",
    no_args_is_help=True,
    # Expected errors are one line; for unexpected ones the plain traceback is the most useful.
    pretty_exceptions_enable=False,
)
processes.register(app)
simulator.register(app)
trading.register(app)
watch.register(app)
journal.register(app)
outbox.register(app)
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
    """Run the command and exit with its code; an expected error is one line on stderr."""
    try:
        app(prog_name="switchyard")
    except SwitchyardError as error:
        typer.echo(f"switchyard: {failure_line(error)}", err=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def exit_code(error: SwitchyardError) -> int:
    """The exit code for an expected error."""
    if isinstance(error, CannotStart):
        return START_REJECTED
    if isinstance(error, RequestError):  # raised by the command itself, before anything was sent
        return USAGE
    from switchyard.client.errors import ApiError, ClientError

    if isinstance(error, ApiError) and error.status < 500 and not error.in_doubt:
        return REJECTED
    # Not a rejection: the order may have been accepted, or may be accepted later.
    return NOT_REACHABLE if isinstance(error, ClientError | Unavailable | OutcomeUnknown) else REJECTED


def failure_line(error: SwitchyardError) -> str:
    """The error in one line, with the idempotency key for a safe retry."""
    line = " ".join(str(error).split())
    key = getattr(error, "idempotency_key", None)
    return line if key is None else f"{line}; the order may have been accepted: retry with --key {key}"
