"""The settings of rechecks: their figures, what follows from them, and who carries them out."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.settings import parse
from switchyard.settings.setting import Secret, Setting, value_of


def _http_url(value: str) -> str:
    """The address of a server."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise ValueError("must be an address such as http://localhost:8080, without credentials")
    return value


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
    Setting("PDCA_AIRFLOW_URL", "airflow_url", None, _http_url,
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
    values = {
        setting.field: value_of(setting, setting.name, environment, setting.default) for setting in RECHECK_SETTINGS
    }
    if values["runner"] == "airflow":
        for setting in RECHECK_SETTINGS:
            if setting.name.startswith("PDCA_AIRFLOW_") and values[setting.field] is None:
                raise SettingError(setting.name, "must be set with PDCA_RUNNER=airflow")
    return RecheckSettings(**values)
