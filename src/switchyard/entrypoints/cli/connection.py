"""Options of commands that call a gateway, and the client they use: address, account and token."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from switchyard.domain.errors import SettingError

if TYPE_CHECKING:
    from switchyard.client import AsyncClient
    from switchyard.settings import Settings

DEFAULT_ACCOUNT = "demo"
TOKEN_VARIABLE = "SWITCHYARD_TOKEN"
# Longer than any command runs, except a `watch` that is left open.
COMMAND_TOKEN_TTL = timedelta(hours=24)


def _checked_url(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise typer.BadParameter(f"{url!r} is not a URL like http://host:port")
    return url


UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="URL of the gateway; by default from SWITCHYARD_HOST and SWITCHYARD_PORT.",
        show_default=False,
        callback=_checked_url,
    ),
]
AccountOption = Annotated[
    str, typer.Option("--account", help=f"Account to sign a token for; ignored if {TOKEN_VARIABLE} is set.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


def connect(url: str | None, account: str) -> "AsyncClient":
    """A client for the gateway, with the token of the environment or one signed with the local secret."""
    from switchyard.client import AsyncClient
    from switchyard.client.address import gateway_url

    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    # With both given no settings are read: the command may run on a machine without a gateway.
    settings = None if url and token else _settings()
    if settings is not None:
        url = url or gateway_url(settings.host, settings.port)
        token = token or _local_token(settings, account)
    return AsyncClient(url or "", token)


def sign_token(settings: "Settings", account: str, ttl: timedelta) -> str:
    """A token for the account, signed with the local secret."""
    from switchyard.adapters.system_clock import SystemClock
    from switchyard.entrypoints.http.transport.auth import issue_token
    from switchyard.settings import jwt_secret

    return issue_token(
        jwt_secret(settings),
        account,
        clock=SystemClock(),
        ttl=ttl,
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
    )


def _local_token(settings: "Settings", account: str) -> str:
    # Do not create a secret here: no running gateway would accept a token signed with it.
    if settings.jwt_secret is None and not (settings.data_dir / "jwt_secret").exists():
        raise SettingError(
            TOKEN_VARIABLE,
            f"is not set, and {settings.data_dir} has no jwt_secret to sign a token with; "
            "set it, or run the command with the gateway's SWITCHYARD_DATA_DIR",
        )
    return sign_token(settings, account, COMMAND_TOKEN_TTL)


def _settings() -> "Settings":
    from switchyard.settings import load_settings

    return load_settings()
