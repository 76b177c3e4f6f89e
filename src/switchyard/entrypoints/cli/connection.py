"""Options of commands that call a gateway, and the client they use: address, account and token."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from switchyard.client import AsyncClient
    from switchyard.settings import Settings

T = TypeVar("T")

DEFAULT_ACCOUNT = "demo"
PDCA_AUDIENCES = ("pdca", "pdca.gui")
TOKEN_VARIABLE = "SWITCHYARD_TOKEN"
# Longer than any command runs, except a `watch` that is left open.
COMMAND_TOKEN_TTL = timedelta(hours=24)
# The newest orders, among which the short form of an id is searched: more than a person has on a screen.
SHORT_ID_ORDERS_MAX = 1_000


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
WideOption = Annotated[bool, typer.Option("--wide", help="Full ids, and one line per row; for wide terminals.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only JSON.")]


def asked(
    url: str | None, account: str, work: "Callable[[AsyncClient], Awaitable[T]]", scopes: Sequence[str] = ()
) -> T:
    """Do the work with a client of `connect`; returns its result."""

    async def run() -> T:
        async with connect(url, account, scopes) as client:
            return await work(client)

    return asyncio.run(run())


async def collected(items: AsyncIterator[T]) -> list[T]:
    """All items of a list that is read in pages."""
    return [item async for item in items]


def connect(url: str | None, account: str, scopes: Sequence[str] = ()) -> "AsyncClient":
    """A client for the gateway, with the token of the environment or one signed with the local secret."""
    from switchyard.client import AsyncClient

    return AsyncClient(*address_and_token(url, account, scopes))


def address_and_token(url: str | None, account: str, scopes: Sequence[str] = ()) -> tuple[str, str]:
    """The gateway's address, and the token of the environment or one signed with the local secret."""
    from switchyard.client.address import gateway_url

    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    # With both given no settings are read: the command may run on a machine without a gateway.
    settings = None if url and token else _settings()
    if settings is not None:
        url = url or gateway_url(settings.host, settings.port)
        token = token or sign_token(settings, account, COMMAND_TOKEN_TTL, scopes=scopes)
    return (url or "").rstrip("/"), token


def sign_token(
    settings: "Settings", account: str, ttl: timedelta, *, scopes: Sequence[str] = (), subject: str | None = None
) -> str:
    """A token for the account, signed with the local secret; raises SettingError if there is none."""
    from switchyard.adapters.system_clock import SystemClock
    from switchyard.entrypoints.http.transport.auth import issue_token
    from switchyard.settings import jwt_secret

    return issue_token(
        jwt_secret(settings, create=False),
        account,
        clock=SystemClock(),
        ttl=ttl,
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
        scopes=scopes,
        subject=subject,
    )


def health_token() -> str | None:
    """A token that shows the details of checks: the environment's, or one signed here; None without a secret."""
    from switchyard.domain.errors import SettingError
    from switchyard.entrypoints.http.transport.auth import HEALTH_SCOPE

    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        return token or sign_token(_settings(), DEFAULT_ACCOUNT, COMMAND_TOKEN_TTL, scopes=(HEALTH_SCOPE,))
    except SettingError:
        return None  # the command may run on a machine without a gateway: it sees the codes


def sign_pdca_token(
    settings: "Settings",
    client_id: str,
    ttl: timedelta,
    audiences: Sequence[str],
    scopes: Sequence[str],
    *,
    account: str,
) -> str:
    """A token for the PDCA API, signed with the key of the gateway's data folder, which is made if it is missing.

    `account`: whose strategies it is for; ALL_ACCOUNTS: those of all.
    """
    from switchyard.adapters.files.signing_keys import local_key
    from switchyard.adapters.system_clock import SystemClock
    from switchyard.domain.errors import SettingError
    from switchyard.entrypoints.http.transport.rs256 import ALL_ACCOUNTS, issue_pdca_token
    from switchyard.settings import jwt_secret

    for audience in audiences:
        if audience not in PDCA_AUDIENCES:
            raise typer.BadParameter(f"{audience!r} is not one of {', '.join(PDCA_AUDIENCES)}", param_hint="--aud")
    if not scopes:
        raise typer.BadParameter("a token of the PDCA API needs at least one --scope", param_hint="--scope")
    if settings.pdca_api.jwks_url is not None or settings.pdca_api.jwks_file is not None:
        raise SettingError(
            "PDCA_JWKS_URL" if settings.pdca_api.jwks_url is not None else "PDCA_JWKS_FILE",
            "the keys of another issuer are configured, and only that issuer signs tokens for this server",
        )
    if settings.jwt_secret is None:
        jwt_secret(settings, create=False)  # a data folder that no gateway has used: a key here would verify nothing
    return issue_pdca_token(
        local_key(settings.data_dir),
        client_id,
        clock=SystemClock(),
        ttl=ttl,
        issuer=settings.pdca_api.issuer,
        audiences=audiences,
        scopes=scopes,
        accounts=account if account == ALL_ACCOUNTS else [account],
    )


def _settings() -> "Settings":
    from switchyard.settings import load_settings

    return load_settings()


async def full_order_id(client: "AsyncClient", order_id: str) -> str:
    """The order id that the tables show in short; other ids are returned as they are."""
    from switchyard.entrypoints.cli.output import SHORT_ID_LENGTH

    if len(order_id) != SHORT_ID_LENGTH:
        return order_id
    found = [
        order.order_id async for order in client.orders(limit=SHORT_ID_ORDERS_MAX) if order.order_id.endswith(order_id)
    ]
    if len(found) > 1:
        raise typer.BadParameter(f"{order_id!r} is the end of several ids: {', '.join(found)}", param_hint="ORDER_ID")
    return found[0] if found else order_id
