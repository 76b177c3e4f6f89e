"""What the address that a gateway listens on means: the host names it serves, and whether `/do/order` needs a token.

Reads settings; logs a warning where the gateway can be reached from other machines.
"""

import structlog

from switchyard.entrypoints.http.transport.addresses import is_loopback
from switchyard.settings import Settings

log = structlog.get_logger()

# Addresses that stand for all addresses of the machine; no client uses them as a host name.
_WILDCARDS = frozenset({"0.0.0.0", "::"})


def served_names(settings: Settings) -> frozenset[str]:
    """Return the host names that are served beside those of the loopback address."""
    own = frozenset[str]() if settings.host in _WILDCARDS else frozenset({settings.host})
    return settings.allowed_hosts | own


def do_order_needs_token(settings: Settings) -> bool | None:
    """Whether `/do/order` requires a token; none: only from clients on other machines."""
    if settings.do_requires_token is None and not is_loopback(settings.host):
        return True
    return settings.do_requires_token


def warn_of_exposure(settings: Settings) -> None:
    """Warn where the gateway listens on more than the loopback address."""
    if is_loopback(settings.host):
        return
    log.warning(
        "gateway_reachable_from_other_machines",
        host=settings.host,
        do_order_without_token="rejected" if do_order_needs_token(settings) else "accepted (DO_REQUIRE_TOKEN=false)",
        host_names=sorted(served_names(settings)) or "only loopback names: set SWITCHYARD_ALLOWED_HOSTS",
        encryption="none: put a proxy with TLS in front of it",
    )
