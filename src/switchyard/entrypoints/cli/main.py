"""The command `switchyard`: what people type, and what the shell learns of how it went."""

import sys

import typer

from switchyard.domain.errors import CannotStart, OutcomeUnknown, RequestError, SwitchyardError, Unavailable
from switchyard.entrypoints.cli import journal, outbox, processes, reference, simulator, trading, watch

REJECTED = 1  # the server said no, or knows of no such thing
USAGE = 2  # the command line itself is wrong; typer's own code for it
NOT_REACHABLE = 3  # no answer, or none that is a yes or a no
START_REJECTED = 4  # a setting is wrong, or the process must not run like this
INTERRUPTED = 130  # Ctrl-C, as shells number it

app = typer.Typer(
    help="Exactly-once order execution between trading strategies and brokers.",
    no_args_is_help=True,
    add_completion=False,
    # Expected errors end in one line; of an unexpected one the plain traceback says the most.
    pretty_exceptions_enable=False,
)
processes.register(app)
simulator.register(app)
trading.register(app)
watch.register(app)
journal.register(app)
outbox.register(app)
reference.register(app)


def run() -> None:
    """Run the command and leave with its exit code; an expected error is one line on stderr."""
    try:
        app(prog_name="switchyard")
    except SwitchyardError as error:
        typer.echo(f"switchyard: {failure_line(error)}", err=True)
        sys.exit(exit_code(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def exit_code(error: SwitchyardError) -> int:
    """What the shell is told of an expected error."""
    if isinstance(error, CannotStart):
        return START_REJECTED
    if isinstance(error, RequestError):  # found here, before anything was sent
        return USAGE
    from switchyard.client.errors import ApiError, ClientError

    if isinstance(error, ApiError) and error.status < 500 and not error.in_doubt:
        return REJECTED
    # A server that cannot answer has not rejected: the order may have been taken, or be welcome later.
    return NOT_REACHABLE if isinstance(error, ClientError | Unavailable | OutcomeUnknown) else REJECTED


def failure_line(error: SwitchyardError) -> str:
    """The error in one line, with the key that makes a repeat safe."""
    line = " ".join(str(error).split())
    key = getattr(error, "idempotency_key", None)
    return line if key is None else f"{line}; it may have been taken: repeat it with --key {key}"
