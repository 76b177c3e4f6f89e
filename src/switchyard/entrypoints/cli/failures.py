"""How commands end: errors as one line with the cause and the next step, exit codes, and a bound on the end.

A process that has closed its ports must not stay alive, whatever hangs.
"""

import asyncio
import contextlib
import faulthandler
import os
import re
import sys
import threading
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer

from switchyard.domain.errors import (
    CannotStart,
    IdempotencyConflict,
    KillCleared,
    NotFound,
    OutcomeUnknown,
    RequestError,
    SwitchyardError,
    TooManyKills,
    Unavailable,
)
from switchyard.telemetry.logs import without_credentials

REJECTED = 1  # the server rejected the request, or there is no such order
USAGE = 2  # an option or argument is invalid; the code that typer uses
NOT_REACHABLE = 3  # no response, or one that leaves the outcome open
START_REJECTED = 4  # a setting is invalid, or the process cannot run in this state
DEFECT = 70  # an unexpected error, printed with its traceback; EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT, as in shells

EXIT_CODES = (
    "Exit codes: 0 success, 1 rejected or not found, 2 usage error, 3 not reachable or outcome unknown, "
    "4 a setting or the database prevents the start, 70 a defect (please report it), 130 interrupted."
)


@contextmanager
def exiting_by_code() -> Iterator[None]:
    """End the process with the error's exit code; an expected error is one line on stderr."""
    try:
        yield
    except BrokenPipeError:
        # The reader of the output has ended, as `head` does; the interpreter must not fail on flushing either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(REJECTED)
    except (Exception, KeyboardInterrupt) as error:
        fail(error)


def fail(error: BaseException) -> NoReturn:
    """Print the error and exit with its code."""
    match error:
        case SwitchyardError():
            _exit(exit_code(error), failure_line(error))
        case typer.TyperException():
            _fail_usage(error)
        case typer.Abort():
            _exit(REJECTED, "aborted: nothing was done")
        case KeyboardInterrupt():
            sys.exit(INTERRUPTED)
        case _:
            # The plain traceback is the most useful, but a message in it may quote a URL.
            text = "".join(traceback.format_exception(error))
            _say(without_credentials(text))
            _exit(DEFECT, "this is a defect: please report it with the lines above")


def exit_code(error: SwitchyardError) -> int:
    """The exit code for an expected error."""
    if isinstance(error, CannotStart):
        return START_REJECTED
    if isinstance(error, NotFound | KillCleared | TooManyKills | IdempotencyConflict):
        return REJECTED
    if isinstance(error, RequestError):  # raised by the command itself, before anything was sent
        return USAGE
    from switchyard.client.errors import ApiError, ClientError

    if isinstance(error, ApiError) and error.status < 500 and not error.in_doubt:
        return REJECTED
    # Not a rejection: the order may have been accepted, or may be accepted later.
    return NOT_REACHABLE if isinstance(error, ClientError | Unavailable | OutcomeUnknown) else REJECTED


def failure_line(error: SwitchyardError) -> str:
    """The error in one line, with the idempotency key for a safe retry."""
    key = getattr(error, "idempotency_key", None)
    if str(error).endswith("Connection refused"):
        return f"{error}; start the gateway with `switchyard up`, or name its address with --url or SWITCHYARD_PORT"
    return str(error) if key is None else f"{error}; the order may have been accepted: retry with --key {key}"


def _fail_usage(error: typer.TyperException) -> NoReturn:
    message = error.format_message().strip()
    if not message or "Usage: " in message:  # a group of commands without a command shows its help
        typer.echo(message, err=True, nl=bool(message))
        sys.exit(USAGE)
    if re.fullmatch(r"-[0-9.]", str(getattr(error, "option_name", ""))):
        # The parser takes a negative number for an option and names only its first digit.
        number = next(argument for argument in sys.argv if re.match(r"-[0-9.]", argument))
        message = f"{number} is not greater than 0; to sell, use `switchyard order sell`"
    context = getattr(error, "ctx", None)
    step = "" if context is None else f"; see `{context.command_path} --help`"
    _exit(USAGE, message.rstrip(".?").replace("Value error, ", "") + step)


def _exit(code: int, line: str) -> NoReturn:
    _say(f"switchyard: {without_credentials(' '.join(line.split()))}")
    sys.exit(code)


def _say(text: str) -> None:
    with suppress(OSError):  # where the text cannot be written, such as on a full disk, the exit code still tells
        typer.echo(text, err=True)


# Requests, sends and the last commits have 5 to 6 s each. What is left after this time is recovered by the next start,
# as after a kill.
END_SECONDS_MAX = 60.0

_bounding = threading.Event()


def run_to_end(main: Coroutine[Any, Any, None]) -> None:
    """Run the process's coroutine; raises what it raises."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(main)
        finally:
            bound_the_end()  # before the runner waits for tasks and threads that are left


def bound_the_end() -> None:
    """From the first call on, the process has END_SECONDS_MAX to end by itself; then it exits with the code DEFECT."""
    if _bounding.is_set():
        return
    _bounding.set()
    timer = threading.Timer(END_SECONDS_MAX, _give_up)
    timer.daemon = True
    timer.start()


def _give_up() -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error may be full or closed
        faulthandler.dump_traceback(all_threads=True)
    os._exit(DEFECT)
