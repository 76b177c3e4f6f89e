"""The default gateway URL and token, read from the settings and the environment."""

import os
from urllib.parse import urlsplit

from switchyard.domain.errors import InvalidField, SettingError
from switchyard.settings import load_settings

TOKEN_VARIABLE = "SWITCHYARD_TOKEN"
# A gateway that listens on all addresses is reachable from this machine on loopback.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def gateway_url(host: str, port: int) -> str:
    """The URL at which a gateway with these settings is reachable from this machine."""
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def checked_url(url: str) -> str:
    """The URL without a trailing slash; raises InvalidField unless it is like http://host:port."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise InvalidField("base_url", f"must be a URL like http://host:port, not {url!r}")
    return url.rstrip("/")


def default_url() -> str:
    """The gateway URL from `SWITCHYARD_HOST` and `SWITCHYARD_PORT`."""
    settings = load_settings()
    return gateway_url(settings.host, settings.port)


def default_token() -> str:
    """The token from `SWITCHYARD_TOKEN`; raises SettingError if it is not set."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise SettingError(TOKEN_VARIABLE, "is not set; set it or pass the argument `token`")
    return token
