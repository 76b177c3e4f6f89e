"""What the address that a gateway listens on means: the host names it serves, and whether `/do/order` needs a token.

Reads settings; logs a warning if the gateway can be reached from other machines.
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


def do_order_needs_token(settings: Settings, sends: bool) -> bool | None:
    """Whether `/do/order` requires a token; None: only from clients on other machines.

    `sends`: whether this process sends orders. On PostgreSQL other processes may send them too, to venues that it does
    not know.
    """
    if settings.do_requires_token is not None:
        return settings.do_requires_token
    # A proxy on this machine may leave no sign of itself, so real orders are never accepted by the address alone.
    return None if sends and not settings.sends_elsewhere and is_loopback(settings.host) else True


def warn_of_exposure(settings: Settings, sends: bool) -> None:
    """Warn if the gateway listens on more than the loopback address."""
    if is_loopback(settings.host):
        return
    needs_token = do_order_needs_token(settings, sends)
    log.warning(
        "gateway_reachable_from_other_machines",
        host=settings.host,
        do_order_without_token="rejected" if needs_token else "accepted (DO_REQUIRE_TOKEN=false)",
        host_names=sorted(served_names(settings)) or "only loopback names: set SWITCHYARD_ALLOWED_HOSTS",
        encryption="none: put a proxy with TLS in front of it",
    )
