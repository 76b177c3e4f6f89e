"""The settings of the PDCA API: who may call it, how often, and how long its answers are kept."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.settings import parse
from switchyard.settings.setting import Setting, value_of

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _key_set_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("must be a URL like https://auth.example/.well-known/jwks.json, without a password")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise ValueError("must begin with https://: over http anyone on the way could replace the keys")
    return value


PDCA_API_SETTINGS: tuple[Setting, ...] = (
    Setting("PDCA_JWKS_FILE", "jwks_file", None, Path,
            "File with the public keys (JSON Web Key Set) that verify tokens of the PDCA API. It is read again when a "
            "token names a key that is not known, and every five minutes."),
    Setting("PDCA_JWKS_URL", "jwks_url", None, _key_set_url,
            "The same, from a URL: `https://…`, or `http://` on this machine. Without both a key pair is made in "
            "the data folder (`pdca_key.pem`, `pdca_jwks.json`), with which `switchyard token --aud` signs."),
    Setting("PDCA_JWKS_MAX_AGE_SEC", "jwks_age_max", "86400", parse.seconds(60, 31_536_000),
            "Seconds for which the last good key set is used while a new one cannot be read. After that every token is "
            "answered with 503."),
    Setting("PDCA_JWT_ISSUER", "issuer", "noctria.auth", parse.text,
            "Required `iss` claim of tokens of the PDCA API. Their `aud` is `pdca` or `pdca.gui`."),
    Setting("PDCA_READ_RATE_PER_MIN", "read_rate", "600", parse.whole(1, 1_000_000),
            "PDCA API: reads per minute and client, the `sub` of the token. Further ones get 429."),
    Setting("PDCA_RECHECK_RATE_PER_MIN", "recheck_rate", "120", parse.whole(1, 1_000_000),
            "The same for `POST /pdca/recheck`, and `PUT` and `DELETE /pdca/strategies/{id}`."),
    Setting("PDCA_RECHECK_ALL_RATE_PER_MIN", "recheck_all_rate", "10", parse.whole(1, 1_000_000),
            "The same for `POST /pdca/recheck_all`."),
    Setting("PDCA_DOWNLOAD_TTL_SEC", "download_ttl", "300", parse.seconds(1, 86_400),
            "Seconds for which the URL of an artifact is valid."),
    Setting("PDCA_RETENTION_DAYS", "retention_days", "90", parse.whole(1, 3650),
            "Days for which an ended recheck is kept, with its idempotency key, results and artifacts."),
)  # fmt: skip


class PdcaApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the PDCA API; `PDCA_API_SETTINGS` documents each field."""

    jwks_file: Path | None
    jwks_url: str | None
    jwks_age_max: timedelta
    issuer: str
    read_rate: int
    recheck_rate: int
    recheck_all_rate: int
    download_ttl: timedelta
    retention_days: int


def pdca_api_of(environment: Mapping[str, str]) -> PdcaApiSettings:
    """Read the settings of the PDCA API."""
    values = {
        setting.field: value_of(setting, setting.name, environment, setting.default) for setting in PDCA_API_SETTINGS
    }
    if values["jwks_file"] is not None and values["jwks_url"] is not None:
        raise SettingError("PDCA_JWKS_FILE", "and PDCA_JWKS_URL exclude each other: unset one")
    return PdcaApiSettings(**values)
