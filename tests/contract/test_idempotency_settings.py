"""The `idempotency` section: every key is read, and an unknown or invalid one raises an error that names it."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import KeyParts
from switchyard.entrypoints.cli.reference import settings_page
from switchyard.settings import IDEMPOTENCY_SETTINGS, IdempotencySettings, load_settings

# The section from the specification: every key with its default.
SECTION = """
idempotency:
  enabled: true
  keyGeneration:
    algorithm: "SHA256"
    timestampResolution: 60000
    includeAccount: true
    includeSymbol: true
    includeSide: true
    includeQuantity: true
    includeOrderType: true
    includePrices: true
  cache:
    type: "in_memory"
    ttl: 3600000
    cleanupInterval: 300000
    redis:
      host: "localhost"
      port: 6379
      db: 0
      password: null
      ttlSeconds: 3600
  behavior:
    returnCachedResult: true
    allowRetryAfterFailure: true
    allowRetryAfterExpiry: true
    logDuplicates: true
  monitoring:
    trackCacheHitRate: true
    trackKeyGeneration: true
    alertOnHighDuplicateRate: true
    duplicateRateThreshold: 0.05
"""
PASSWORD = "p@ss/w:rd-of-redis"
SECRET = "a-secret-of-more-than-thirty-two-bytes"


@pytest.fixture(autouse=True)
def empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(text: str = "", **environment: str) -> IdempotencySettings:
    Path("switchyard.yaml").write_text(text)
    return load_settings(environment).idempotency


def yaml_with(path: str, value: Any) -> str:
    """A YAML file in which only this key of the section is set."""
    document = value
    for name in reversed(["idempotency", *path.split(".")]):
        document = {name: document}
    return yaml.safe_dump(document)


def leaves(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in section.items():
        values |= leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return values


def test_the_defaults_are_those_of_the_specification() -> None:
    assert load(SECTION) == load()
    assert {setting.field: setting.default for setting in IDEMPOTENCY_SETTINGS} == {
        path: None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for path, value in leaves(yaml.safe_load(SECTION)["idempotency"]).items()
    }


def test_by_default_no_key_is_derived_and_the_cache_is_in_memory() -> None:
    settings = load()
    assert settings.enabled
    assert not settings.derives_for(AccountId("any"))
    assert (settings.secret, settings.cache.redis_url) == (None, None)
    assert (settings.cache.ttl, settings.cache.cleanup_interval) == (timedelta(hours=1), timedelta(minutes=5))


# Every key: its path, a value other than the default, the field it sets, and the expected value.
OTHER_VALUES: list[tuple[str, Any, str, Any]] = [
    ("enabled", False, "enabled", False),
    ("keyGeneration.timestampResolution", 1000, "key_generation.timestamp_resolution_ms", 1000),
    ("keyGeneration.includeAccount", False, "key_generation.parts", KeyParts(account=False)),
    ("keyGeneration.includeSymbol", False, "key_generation.parts", KeyParts(symbol=False)),
    ("keyGeneration.includeSide", False, "key_generation.parts", KeyParts(side=False)),
    ("keyGeneration.includeQuantity", False, "key_generation.parts", KeyParts(quantity=False)),
    ("keyGeneration.includeOrderType", False, "key_generation.parts", KeyParts(order_type=False)),
    ("keyGeneration.includePrices", False, "key_generation.parts", KeyParts(prices=False)),
    ("cache.type", "redis", "cache.redis_url", "redis://localhost:6379/0"),
    ("cache.ttl", 1500, "cache.ttl", timedelta(seconds=1.5)),
    ("cache.cleanupInterval", 250, "cache.cleanup_interval", timedelta(seconds=0.25)),
    ("cache.redis.host", "cache_1.internal", "cache.redis_url", "redis://cache_1.internal:6379/0"),
    ("cache.redis.port", 6380, "cache.redis_url", "redis://localhost:6380/0"),
    ("cache.redis.db", 3, "cache.redis_url", "redis://localhost:6379/3"),
    ("cache.redis.password", PASSWORD, "cache.redis_url", "redis://:p%40ss%2Fw%3Ard-of-redis@localhost:6379/0"),
    ("cache.redis.ttlSeconds", 60, "cache.redis_ttl", timedelta(minutes=1)),
    ("behavior.returnCachedResult", False, "behavior.return_cached_result", False),
    ("behavior.allowRetryAfterFailure", False, "behavior.allow_retry_after_failure", False),
    ("behavior.allowRetryAfterExpiry", False, "behavior.allow_retry_after_expiry", False),
    ("behavior.logDuplicates", False, "behavior.log_duplicates", False),
    ("monitoring.trackCacheHitRate", False, "monitoring.track_cache_hit_rate", False),
    ("monitoring.trackKeyGeneration", False, "monitoring.track_key_generation", False),
    ("monitoring.alertOnHighDuplicateRate", False, "monitoring.alert_on_high_duplicate_rate", False),
    ("monitoring.duplicateRateThreshold", 0.5, "monitoring.duplicate_rate_threshold", 0.5),
]


def field_of(settings: IdempotencySettings, path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def test_every_key_with_more_than_one_value_is_tested_below() -> None:
    tested = {path for path, *_ in OTHER_VALUES}
    assert {setting.field for setting in IDEMPOTENCY_SETTINGS} - tested == {"keyGeneration.algorithm"}


@pytest.mark.parametrize(("path", "value", "field", "expected"), OTHER_VALUES)
def test_a_key_is_read_from_the_file_and_the_environment_overrides_it(
    path: str, value: Any, field: str, expected: Any
) -> None:
    redis = {"IDEMPOTENCY_CACHE_TYPE": "redis"} if path.startswith("cache.redis.") else {}
    name = next(setting.name for setting in IDEMPOTENCY_SETTINGS if setting.field == path)
    default = field_of(load(**redis), field)
    assert default != expected
    assert field_of(load(yaml_with(path, value), **redis), field) == expected
    assert field_of(load(**redis, **{name: str(value)}), field) == expected
    setting = next(setting for setting in IDEMPOTENCY_SETTINGS if setting.field == path)
    if setting.default is not None:
        assert field_of(load(yaml_with(path, value), **redis, **{name: setting.default}), field) == default


def test_the_environment_variable_is_the_path_of_the_key_in_capitals() -> None:
    names = {setting.field: setting.name for setting in IDEMPOTENCY_SETTINGS}
    assert names["enabled"] == "IDEMPOTENCY_ENABLED"
    assert names["keyGeneration.timestampResolution"] == "IDEMPOTENCY_KEY_GENERATION_TIMESTAMP_RESOLUTION"
    assert names["cache.redis.ttlSeconds"] == "IDEMPOTENCY_CACHE_REDIS_TTL_SECONDS"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (yaml_with("keyGeneration.algorithm", "MD5"), "idempotency.keyGeneration.algorithm"),
        (yaml_with("cache.type", "memcached"), "idempotency.cache.type"),
        (yaml_with("cache.ttl", "soon"), "idempotency.cache.ttl"),
        (yaml_with("cache.ttl", 0), "idempotency.cache.ttl"),
        (yaml_with("cache.ttl", None), "idempotency.cache.ttl"),
        (yaml_with("cache.ttl", [1]), "idempotency.cache.ttl"),
        (yaml_with("cache.redis.port", 70_000), "idempotency.cache.redis.port"),
        (yaml_with("cache.redis.host", "a host"), "idempotency.cache.redis.host"),
        (yaml_with("cache.redis.ttlSeconds", 1.5), "idempotency.cache.redis.ttlSeconds"),
        (yaml_with("cache.redis.user", "me"), "idempotency.cache.redis.user"),
        (yaml_with("cache.reddis", {"host": "x"}), "idempotency.cache.reddis"),
        (yaml_with("cache", "redis"), "idempotency.cache"),
        (yaml_with("enabled", "perhaps"), "idempotency.enabled"),
        (yaml_with("enable", True), "idempotency.enable"),
        (yaml_with("derive", True), "idempotency.derive"),
        (yaml_with("monitoring.duplicateRateThreshold", 5), "idempotency.monitoring.duplicateRateThreshold"),
        (yaml_with("monitoring.duplicateRateThreshold", ".nan"), "idempotency.monitoring.duplicateRateThreshold"),
        ("idempotency: true", "idempotency"),
        ("idempotency: {1: 2}", "idempotency.1"),
    ],
)
def test_an_invalid_key_or_value_raises_an_error_with_its_full_path(text: str, name: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(text)
    assert caught.value.name == name
    assert name in str(caught.value)


@pytest.mark.parametrize("text", ["idempotency:", "idempotency: {cache: }", "idempotency: {cache: {redis: }}"])
def test_an_empty_section_changes_nothing(text: str) -> None:
    assert load(text) == load()


def test_a_misspelt_key_gets_a_hint() -> None:
    with pytest.raises(SettingError, match=re.escape("did you mean idempotency.cache.ttl?")):
        load(yaml_with("cache.tll", 5))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("IDEMPOTENCY_KEY_GENERATION_ALGORITHM", "MD5"),
        ("IDEMPOTENCY_CACHE_TYPE", "memcached"),
        ("IDEMPOTENCY_CACHE_TTL_MS", "5"),
        ("IDEMPO_SECERT", SECRET),
        ("IDEMPO_SECRET", "short"),
        ("IDEMPO_SECRET", "changeme" * 8),
        ("IDEMPO_SECRET_FILE", "/nowhere/at/all"),
        ("IDEMPOTENCY_CACHE_REDIS_PASSWORD", ""),
        ("IDEMPOTENCY_DERIVE", ""),
        ("IDEMPOTENCY_DERIVE", "on"),
        ("IDEMPOTENCY_DERIVE", "1"),
        ("SWITCHYARD_REDIS_URL", "memcached://here"),
        ("SWITCHYARD_REDIS_URL", "redis://"),
        ("SWITCHYARD_REDIS_URL", "redis://here:port"),
        ("SWITCHYARD_REDIS_URL", "unix://"),
    ],
)
def test_an_invalid_variable_raises_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(**{name: value})
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("derive", "for_any_account", "for_listed_account"),
    [("true", True, True), ("FALSE", False, False), ("agent-1, webhook", False, True), ("agent-1,", False, True)],
)
def test_keys_are_derived_for_all_accounts_or_for_listed_accounts(
    derive: str, for_any_account: bool, for_listed_account: bool
) -> None:
    settings = load(IDEMPOTENCY_DERIVE=derive)
    assert settings.derives_for(AccountId("agent-1")) == for_listed_account
    assert settings.derives_for(AccountId("any")) == for_any_account


def test_with_enabled_false_no_key_is_derived() -> None:
    for derive in ("true", "agent-1"):
        assert not load(yaml_with("enabled", False), IDEMPOTENCY_DERIVE=derive).derives_for(AccountId("agent-1"))


@pytest.mark.parametrize("url", ["redis://user:word@here:1/2", "rediss://here", "unix:///run/redis.sock?db=1"])
def test_the_redis_url_overrides_the_section(url: str) -> None:
    for text in ("", SECTION, yaml_with("cache", {"type": "redis", "redis": {"host": "elsewhere"}})):
        assert load(text, SWITCHYARD_REDIS_URL=url).cache.redis_url == url
    assert load_settings({"SWITCHYARD_REDIS_URL": url}).redis_url == url


def test_an_ipv6_address_is_a_valid_host() -> None:
    text = yaml_with("cache", {"type": "redis", "redis": {"host": "::1"}})
    assert load(text).cache.redis_url == "redis://[::1]:6379/0"


def test_secret_files_override_the_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    (tmp_path / "password").write_text("from-the-file\n")
    settings = load(
        yaml_with("cache", {"type": "redis", "redis": {"password": PASSWORD}}),
        IDEMPO_SECRET_FILE="secret",
        IDEMPOTENCY_CACHE_REDIS_PASSWORD_FILE="password",
    )
    assert settings.secret == SECRET
    assert settings.cache.redis_url == "redis://:from-the-file@localhost:6379/0"


def test_a_password_that_yaml_reads_as_a_number_is_rejected() -> None:
    with pytest.raises(SettingError) as caught:
        load("idempotency: {cache: {redis: {password: 0123}}}")
    assert caught.value.name == "idempotency.cache.redis.password"
    assert not {"0123", "83"} & set(re.findall(r"\d+", str(caught.value)))


def test_the_repr_of_the_settings_contains_no_secret() -> None:
    environment = {
        "IDEMPO_SECRET": SECRET,
        "JWT_HS256_SECRET": SECRET[::-1],
        "IDEMPOTENCY_CACHE_REDIS_PASSWORD": PASSWORD,
        "IDEMPOTENCY_CACHE_TYPE": "redis",
    }
    for more in ({}, {"SWITCHYARD_REDIS_URL": f"redis://:{PASSWORD}@here"}):
        shown = repr(load_settings(environment | more))
        for hidden in (SECRET, SECRET[::-1], PASSWORD, "p%40ss"):
            assert hidden not in shown


def test_the_error_for_an_invalid_redis_url_contains_no_password() -> None:
    with pytest.raises(SettingError) as caught:
        load(SWITCHYARD_REDIS_URL=f"http://:{PASSWORD}@here")
    assert PASSWORD not in str(caught.value)


def test_the_reference_page_lists_every_key() -> None:
    page = settings_page()
    for path in leaves(yaml.safe_load(SECTION)["idempotency"]):
        assert f"(`{path}`)" in page
    for name in ("IDEMPO_SECRET", "IDEMPOTENCY_DERIVE", "SWITCHYARD_REDIS_URL"):
        assert f"| `{name}` |" in page
