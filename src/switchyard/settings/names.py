"""Which environment variables are settings: an unknown one under our prefixes is probably misspelt.

Reads the tables and the names of the environment; raises SettingError.
"""

import difflib
import re
from collections.abc import Collection, Iterable

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.settings.idempotency import IDEMPOTENCY_SETTINGS
from switchyard.settings.kafka import KAFKA_SETTINGS
from switchyard.settings.pdca_api import PDCA_API_SETTINGS
from switchyard.settings.rechecks import RECHECK_SETTINGS
from switchyard.settings.risk import RISK_SETTINGS
from switchyard.settings.table import SETTINGS, VENUE_SETTINGS
from switchyard.settings.tracing import TRACING_SETTINGS

# Variables with our prefix that the client commands, the DAG for Airflow and the tests read; they are not settings of
# the server.
_OTHER_NAMES = frozenset(
    {"SWITCHYARD_CONFIG", "SWITCHYARD_TOKEN", "SWITCHYARD_COMMAND", "SWITCHYARD_TEST_POSTGRES_BIN"}
)
# Only this product uses these. A limit under an unknown name would not be in force, so the process must not start.
OWN_PREFIXES = (
    "SWITCHYARD_",
    "RISK_",
    "SSE_",
    "OUTBOX_",
    "SOR_",
    "VENUE_",
    "EXCHANGE_SIM_",
    "IDEMPOTENCY_",
    "IDEMPO_",
    "PDCA_",
)
# Other programs use these too: DO_NOT_TRACK, GATEWAY_SERVICE_HOST, KAFKA_OPTS.
SHARED_PREFIXES = ("DO_", "GATEWAY_", "KAFKA_", "BACKOFFICE_", "JWT_HS256_")
# The share of equal characters from which a name under a shared prefix counts as misspelt: a letter more, less or
# swapped in the shortest of our names is above it, the names of other programs are below it.
NEAR = 0.85
# Kubernetes adds these to every container for a service; `enableServiceLinks: false` in the pod turns them off.
_SERVICE_LINK = re.compile(r".+_(SERVICE_HOST|SERVICE_PORT|PORT)(_[A-Z0-9_]+)?")


def unknown_shared_names(names: Iterable[str], venues: Collection[VenueName]) -> tuple[str, ...]:
    """The variables under a shared prefix that are no settings; raises SettingError for one that must be an error."""
    all_settings = (
        *SETTINGS,
        *KAFKA_SETTINGS,
        *IDEMPOTENCY_SETTINGS,
        *RISK_SETTINGS,
        *PDCA_API_SETTINGS,
        *RECHECK_SETTINGS,
        *TRACING_SETTINGS,
    )
    known = {setting.name for setting in all_settings} | _OTHER_NAMES
    known |= {setting.name + "_FILE" for setting in all_settings if setting.secret}
    for venue in venues:
        of_venue = [(setting.name + venue.upper(), setting.secret) for setting in VENUE_SETTINGS]
        known |= {name for name, _ in of_venue} | {name + "_FILE" for name, secret in of_venue if secret}
    unknown = sorted(set(names) - known)
    for name in unknown:
        if name.startswith(OWN_PREFIXES):
            raise SettingError(name, f"is not a setting{_hint(name, known)}")
        if name.startswith(SHARED_PREFIXES) and difflib.get_close_matches(name, known, n=1, cutoff=NEAR):
            raise SettingError(name, f"is not a setting{_hint(name, known)}")
    return tuple(name for name in unknown if name.startswith(SHARED_PREFIXES))


def _hint(name: str, known: Collection[str]) -> str:
    if _SERVICE_LINK.fullmatch(name):
        return "; if Kubernetes set it for a service, set enableServiceLinks to false in the pod, else unset it"
    prefix = name.partition("_")[0] + "_"
    close = difflib.get_close_matches(name, [each for each in known if each.startswith(prefix)], n=1)
    return f"; did you mean {close[0]}?" if close else "; unset it, or see `switchyard settings` for all names"
