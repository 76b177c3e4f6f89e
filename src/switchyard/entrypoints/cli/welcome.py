"""The text that `up` prints: the address, a first order to try, and commands to copy."""

import shlex
import shutil
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.ports.clock import Clock
    from switchyard.settings import Settings


DEFAULT_DATA_DIR = Path("var")
DEFAULT_PORT = 8081


def program() -> str:
    """How this program was called: by name if it is on the PATH, else by its path."""
    called = Path(sys.argv[0])
    found = shutil.which(called.name)
    if found is not None and Path(found).resolve() == called.resolve():
        return called.name
    absolute = called.absolute()
    here = Path.cwd()
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))


def command(settings: "Settings", arguments: str, *, port: int | None = None) -> str:
    """A command for another terminal; with `port`, one that calls the gateway there."""
    variables = []
    name = program()
    # A program under this folder is called from here, where the default names the same data folder.
    is_default = settings.data_dir == DEFAULT_DATA_DIR and "/" in name and not name.startswith(("/", "'/"))
    if settings.jwt_secret is None and not is_default:
        variables.append(f"SWITCHYARD_DATA_DIR={shlex.quote(str(settings.data_dir.absolute()))}")
    if port not in (None, DEFAULT_PORT):
        variables.append(f"SWITCHYARD_PORT={port}")
    return " ".join([*variables, name, arguments])


# Long enough for a first day; strategies use tokens of their own.
FIRST_TOKEN_TTL = timedelta(hours=24)
FIRST_ACCOUNT = "demo"


def welcome(settings: "Settings", clock: "Clock", url: str, port: int, books_url: str | None, *, is_new: bool) -> str:
    """The address, where the data is and whether it is new, a token or how to get one, and a first order.

    A token is shown on a terminal only, because a file keeps it; and only if its secret is our own, because a
    configured one is used elsewhere too.
    """
    token_command = command(settings, f"token --account {FIRST_ACCOUNT}")
    if sys.stdout.isatty() and settings.jwt_secret is None:
        token = _first_token(settings, clock)
        intro = f"A token for the account '{FIRST_ACCOUNT}', good for 24 hours:\n{token}"
    else:
        token = f"$({token_command})"
        note = "" if settings.jwt_secret is None else ", where JWT_HS256_SECRET is set as here"
        intro = f"Get a token for the account '{FIRST_ACCOUNT}'{note}:\n{token_command}"
    booked = (
        ""
        if books_url is None
        else f"""
See it booked:  curl -sS {books_url}/positions -H "Authorization: Bearer {token}\""""
    )
    page = f"\nIn a browser:   {url}/dashboard, with the token" if settings.dashboard else ""
    store = "PostgreSQL" if settings.database_url else f"SQLite in {settings.data_dir.absolute()}/"
    state = "a new database" if is_new else "the data of earlier runs"
    return f"""
Switchyard is up: {url} (Ctrl-C stops it)
Orders are durable in {store}, {state}.

{intro}

Your first order, in another terminal:
curl -sS {url}/orders \\
  -H "Authorization: Bearer {token}" \\
  -H 'Content-Type: application/json' -H 'Idempotency-Key: my-first-order' \\
  -d '{{"symbol":"USDJPY","side":"BUY","type":"MARKET","qty":1000}}'

Watch it fill:  {command(settings, "watch", port=port)}{booked}{page}
"""


def _first_token(settings: "Settings", clock: "Clock") -> str:
    from switchyard.entrypoints.http.transport.auth import issue_token
    from switchyard.settings import jwt_secret

    return issue_token(
        jwt_secret(settings),
        FIRST_ACCOUNT,
        clock=clock,
        ttl=FIRST_TOKEN_TTL,
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
    )
