"""Settings: an invalid one raises an error that names it, and the reference page matches the tables."""

import stat
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from switchyard.bootstrap.capabilities import reuses_connections
from switchyard.domain.errors import SettingError
from switchyard.entrypoints.cli.reference import settings_page
from switchyard.settings import jwt_secret, load_settings

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_setting_has_a_default() -> None:
    settings = load_settings({})
    assert (settings.host, settings.port, settings.data_dir) == ("127.0.0.1", 8081, Path("var"))
    assert settings.audit_path == Path("var/gateway/audit.log")
    assert settings.idempotency_ttl == timedelta(hours=24)
    assert [venue.url for venue in settings.venues] == ["paper:"]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"SWITCHYARD_PORT": "http"}, "SWITCHYARD_PORT"),
        ({"SWITCHYARD_PORT": "70000"}, "SWITCHYARD_PORT"),
        ({"SWITCHYARD_DATABASE_URL": "mysql://x"}, "SWITCHYARD_DATABASE_URL"),
        ({"SWITCHYARD_PROT": "1"}, "SWITCHYARD_PROT"),
        ({"JWT_HS256_SECRET": "short"}, "JWT_HS256_SECRET"),
        ({"JWT_HS256_SECRET": "changeme" * 8}, "JWT_HS256_SECRET"),
        ({"JWT_HS256_SECRET_FILE": "/nowhere/at/all"}, "JWT_HS256_SECRET_FILE"),
        ({"SSE_KEEPALIVE_SEC": "-1"}, "SSE_KEEPALIVE_SEC"),
        ({"OUTBOX_STUCK_THRESHOLD_MIN": "0"}, "OUTBOX_STUCK_THRESHOLD_MIN"),
        ({"OUTBOX_STUCK_THRESHOLD_MIN": "soon"}, "OUTBOX_STUCK_THRESHOLD_MIN"),
        ({"SOR_VENUES": "simA,sima"}, "SOR_VENUES"),
        ({"SOR_VENUES": "a,b", "SOR_DEFAULT_VENUE": "c"}, "SOR_DEFAULT_VENUE"),
        ({"SOR_SYMBOL_ROUTES": "BTC=nowhere"}, "SOR_SYMBOL_ROUTES"),
        ({"SOR_SYMBOL_ROUTES": "BTC"}, "SOR_SYMBOL_ROUTES"),
        ({"VENUE_URL_SIM": "gopher:host"}, "VENUE_URL_SIM"),
        ({"VENUE_LOOKUP_SIM": "some"}, "VENUE_LOOKUP_SIM"),
        ({"VENUE_REUSE_CONNECTIONS_SIM": "true", "VENUE_DEDUPE_SIM": "ttl"}, "VENUE_REUSE_CONNECTIONS_SIM"),
        ({"VENUE_EXEC_ID_SCOPE_SIM": "account"}, "VENUE_EXEC_ID_SCOPE_SIM"),
        ({"VENUE_SWEEP_SEC_SIM": "-1"}, "VENUE_SWEEP_SEC_SIM"),
        ({"VENUE_REQUEST_EXPIRY_OTHER": "true"}, "VENUE_REQUEST_EXPIRY_OTHER"),
        ({"EXCHANGE_SIM_DELAY_MS_OTHER": "5"}, "EXCHANGE_SIM_DELAY_MS_OTHER"),
        ({"EXCHANGE_SIM_REJECT_ALL_SIM": "perhaps"}, "EXCHANGE_SIM_REJECT_ALL_SIM"),
        ({"SWITCHYARD_CONFIG": "missing.yaml"}, "SWITCHYARD_CONFIG"),
    ],
)
def test_an_invalid_setting_raises_an_error_that_names_it(environment: dict[str, str], name: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_settings(environment)
    assert caught.value.name == name
    assert name in str(caught.value)


@pytest.mark.parametrize("dedupe", ["permanent", "ttl", "while_open", "none"])
@pytest.mark.parametrize("given", [{}, {"VENUE_REUSE_CONNECTIONS_SIM": "false"}])
def test_connections_are_reused_only_by_request_where_a_repeated_order_does_no_harm(
    dedupe: str, given: dict[str, str]
) -> None:
    broker = {"VENUE_URL_SIM": "http://127.0.0.1:1", "VENUE_DEDUPE_SIM": dedupe}
    assert not reuses_connections(load_settings({**broker, **given}).venues[0])
    asked = {"VENUE_REUSE_CONNECTIONS_SIM": "true"}  # of any other broker it stops the start
    assert dedupe != "permanent" or reuses_connections(load_settings({**broker, **asked}).venues[0])


def test_a_secret_never_shows_in_an_error() -> None:
    with pytest.raises(SettingError) as caught:
        load_settings({"JWT_HS256_SECRET": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_options_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    (tmp_path / "switchyard.yaml").write_text("venues: {sim: {delay: 7, partial_steps: 3}}\n")
    settings = load_settings(
        {"SWITCHYARD_PORT": "1", "EXCHANGE_SIM_PARTIAL_STEPS_SIM": "2"},
        {"SWITCHYARD_PORT": "2", "SWITCHYARD_HOST": None},
    )
    assert settings.port == 2
    assert (settings.venues[0].partial_steps, settings.venues[0].delay) == (2, timedelta(milliseconds=7))


def test_instruments_come_from_the_file_with_exact_decimals(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("instruments: {BTC: {step: 0.0001, tick: 0.1, kind: crypto}}\n")
    instruments = load_settings({"SWITCHYARD_CONFIG": str(tmp_path / "other.yaml")}).instruments
    assert (instruments["BTC"].step, instruments["BTC"].tick) == (Decimal("0.0001"), Decimal("0.1"))
    assert "USDJPY" in instruments


@pytest.mark.parametrize(
    "text",
    [
        "instruments: {BTC: {stepp: 1}}",
        "instruments: {BTC: {step: 0}}",
        "risc: {}",
        "[1, 2]",
        "venues: {sim: {x: 1}}",
        "{",
    ],
)
def test_an_invalid_file_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "switchyard.yaml").write_text(text)
    with pytest.raises(SettingError):
        load_settings({})


def test_a_secret_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x" * 40 + "\n")
    assert load_settings({"JWT_HS256_SECRET_FILE": str(tmp_path / "secret")}).jwt_secret == "x" * 40


def test_a_missing_secret_is_created_once_and_readable_by_the_owner_only(tmp_path: Path) -> None:
    settings = load_settings({"SWITCHYARD_DATA_DIR": str(tmp_path / "data")})
    secret = jwt_secret(settings)
    assert jwt_secret(settings) == secret
    assert len(secret) == 64
    assert stat.S_IMODE((tmp_path / "data" / "jwt_secret").stat().st_mode) == 0o600


def test_the_reference_page_matches_the_settings() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    assert page == settings_page(), "out of date: run `switchyard settings > docs/reference/settings.md`"
