"""Where the gateway is, and as whom it is talked to, unless the caller says so."""

import os

from switchyard.domain.errors import SettingError
from switchyard.settings import load_settings

TOKEN_VARIABLE = "SWITCHYARD_TOKEN"
# A gateway that listens on every address is reached on this machine by the loopback one.
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def gateway_url(host: str, port: int) -> str:
    """Where a gateway with these settings is reached from this machine."""
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def default_url() -> str:
    """The gateway that `SWITCHYARD_HOST` and `SWITCHYARD_PORT` describe."""
    settings = load_settings()
    return gateway_url(settings.host, settings.port)


def default_token() -> str:
    """The environment's token."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise SettingError(TOKEN_VARIABLE, "is not set, and no token was given")
    return token
