"""Every setting: typed, documented and read once at the start.

Precedence: command-line option, environment variable, YAML file, default. A secret may also come from a file
(`<NAME>_FILE`), which is how secret managers provide it.
"""

from switchyard.settings.idempotency import IDEMPOTENCY_SETTINGS, IdempotencySettings
from switchyard.settings.kafka import KAFKA_SETTINGS, KafkaSettings
from switchyard.settings.load import load_settings
from switchyard.settings.parse import Setting
from switchyard.settings.pdca import PDCA_API_SETTINGS, RECHECK_SETTINGS, PdcaApiSettings, RecheckSettings
from switchyard.settings.risk import RISK_SETTINGS
from switchyard.settings.secret import bus_keys, configured_secrets, journal_key, jwt_secret
from switchyard.settings.table import SETTINGS, VENUE_SETTINGS, Settings, VenueSettings
from switchyard.settings.tracing import TRACING_SETTINGS, TracingSettings

__all__ = [
    "IDEMPOTENCY_SETTINGS",
    "KAFKA_SETTINGS",
    "PDCA_API_SETTINGS",
    "RECHECK_SETTINGS",
    "RISK_SETTINGS",
    "SETTINGS",
    "TRACING_SETTINGS",
    "VENUE_SETTINGS",
    "IdempotencySettings",
    "KafkaSettings",
    "PdcaApiSettings",
    "RecheckSettings",
    "Setting",
    "Settings",
    "TracingSettings",
    "VenueSettings",
    "bus_keys",
    "configured_secrets",
    "journal_key",
    "jwt_secret",
    "load_settings",
]
