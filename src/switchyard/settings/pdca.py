"""The settings of the PDCA API and of rechecks."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.settings import parse
from switchyard.settings.parse import Secret, Setting, values_of

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
    values = values_of(PDCA_API_SETTINGS, environment)
    if values["jwks_file"] is not None and values["jwks_url"] is not None:
        raise SettingError("PDCA_JWKS_FILE", "and PDCA_JWKS_URL exclude each other: unset one")
    return PdcaApiSettings(**values)


RECHECK_SETTINGS: tuple[Setting, ...] = (
    Setting("PDCA_RUNNER", "runner", "embedded", parse.choice("embedded", "airflow"),
            "Who carries out rechecks: `embedded`, the processes that keep the books, or `airflow`, a DAG that runs "
            "`switchyard pdca run`."),
    Setting("PDCA_PARALLELISM", "parallelism", "2", parse.whole(1, 32),
            "Strategies that one process rechecks at the same time."),
    Setting("PDCA_ENFORCE", "enforce", "none", parse.choice("none", "reduce_only"),
            "What follows for an unhealthy strategy: `none`, or `reduce_only`, a kill of that mode of the account's "
            "strategy in the name `pdca`, which a person clears."),
    Setting("PDCA_DAYS_PER_YEAR", "days_per_year", "365", lambda value: int(parse.choice("252", "365")(value)),
            "Days by which Sharpe and Sortino are annualised: `365` for markets without weekends, or `252`."),
    Setting("PDCA_DAYS_MIN", "days_min", "5", parse.whole(2, 180),
            "Days that a window needs before Sharpe, Sortino and drawdown are judged."),
    Setting("PDCA_SAMPLE_MIN", "sample_min", "10", parse.whole(1, 1_000_000),
            "Fills, round trips or orders that a metric needs before it is judged. Below it health is `unknown`."),
    Setting("PDCA_AIRFLOW_URL", "airflow_url", None, parse.server_url("http://localhost:8080"),
            "Airflow's API server, such as `http://localhost:8080`; needed with `PDCA_RUNNER=airflow`."),
    Setting("PDCA_AIRFLOW_USERNAME", "airflow_username", None, parse.text,
            "Airflow: user that triggers and reads runs of the DAG."),
    Setting("PDCA_AIRFLOW_PASSWORD", "airflow_password", None, parse.text,
            "Airflow: password of that user.", secret=True),
    Setting("PDCA_AIRFLOW_DAG", "airflow_dag", "switchyard_recheck", parse.text,
            "Airflow: id of the DAG of `ops/airflow/dags`."),
    Setting("PDCA_AIRFLOW_QUEUED_MAX_SEC", "airflow_queued_max", "900", parse.seconds(1, 86_400),
            "Seconds that a run may be in Airflow's queue before it is alarmed (`pdca_runs_queued_too_long`)."),
)  # fmt: skip


class RecheckSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of rechecks; `RECHECK_SETTINGS` documents each field."""

    runner: Literal["embedded", "airflow"]
    parallelism: int
    enforce: Literal["none", "reduce_only"]
    days_per_year: int
    days_min: int
    sample_min: int
    airflow_url: str | None
    airflow_username: str | None
    airflow_password: Secret | None
    airflow_dag: str
    airflow_queued_max: timedelta


def rechecks_of(environment: Mapping[str, str]) -> RecheckSettings:
    """Read the settings of rechecks; raises SettingError."""
    values = values_of(RECHECK_SETTINGS, environment)
    if values["runner"] == "airflow":
        for setting in RECHECK_SETTINGS:
            if setting.name.startswith("PDCA_AIRFLOW_") and values[setting.field] is None:
                raise SettingError(setting.name, "must be set with PDCA_RUNNER=airflow")
    return RecheckSettings(**values)
