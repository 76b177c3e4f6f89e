"""The command `switchyard` and its subcommands."""

import os
import sys

import typer

from switchyard.entrypoints.cli import failures, journal, outbox, processes, reference, simulator, trading, watch

app = typer.Typer(
    help="Exactly-once order execution between trading strategies and brokers.",
    epilog=failures.EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
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
    """Run the command and exit with its code; an expected error is one line on stderr."""
    try:
        code = app(prog_name="switchyard", standalone_mode=False)
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does; the interpreter must not fail on flushing either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(failures.REJECTED)
    except (Exception, KeyboardInterrupt) as error:
        failures.fail(error)
    sys.exit(code if isinstance(code, int) else 0)
