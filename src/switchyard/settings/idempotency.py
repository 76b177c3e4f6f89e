"""The `idempotency` section: derived keys, the cache in front of the key store, and monitoring.

Each key comes from its environment variable, else from the YAML file, else from its default.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import AccountId
from switchyard.domain.orders.keys import KeyParts
from switchyard.settings import parse
from switchyard.settings.parse import Secret, Setting, parsed, value_of

SECTION = "idempotency"


class KeyGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """How an idempotency key is derived from an order."""

    algorithm: Literal["SHA256"]
    timestamp_resolution_ms: int
    parts: KeyParts


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where results are cached, and for how long."""

    redis_url: Secret | None
    """None: the cache is in memory."""
    redis_ttl: timedelta
    ttl: timedelta
    cleanup_interval: timedelta


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """How a repeated order is answered."""

    return_cached_result: bool
    allow_retry_after_failure: bool
    allow_retry_after_expiry: bool
    log_duplicates: bool


class Monitoring(msgspec.Struct, frozen=True, kw_only=True):
    """Which metrics are kept, and when the duplicate rate raises an alert."""

    track_cache_hit_rate: bool
    track_key_generation: bool
    alert_on_high_duplicate_rate: bool
    duplicate_rate_threshold: float


class IdempotencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the section; `IDEMPOTENCY_SETTINGS` documents each key."""

    enabled: bool
    derive: bool | frozenset[AccountId]
    secret: Secret | None
    key_generation: KeyGeneration
    cache: CacheSettings
    behavior: Behavior
    monitoring: Monitoring

    def derives_for(self, account_id: AccountId) -> bool:
        """Whether requests of this account without a key get a derived key."""
        return self.enabled and (self.derive if isinstance(self.derive, bool) else account_id in self.derive)


def _key(path: str, default: str | None, reader: Callable[[str], Any], text: str, *, secret: bool = False) -> Setting:
    """A key of the section; its environment variable is `IDEMPOTENCY_` and the path in capitals."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path).replace(".", "_").upper()
    return Setting(f"IDEMPOTENCY_{words}", path, default, reader, text, secret=secret)


def _seconds(low: int, high: int) -> Callable[[str], timedelta]:
    return lambda value: timedelta(seconds=parse.whole(low, high)(value))


_DAY_MS = 86_400_000
_YEAR_MS = 365 * _DAY_MS
_WITH_REDIS = "Used with `cache.type` `redis` if `SWITCHYARD_REDIS_URL` is not set."

IDEMPOTENCY_SETTINGS: tuple[Setting, ...] = (
    _key("enabled", "true", parse.flag,
         "Whether keys are derived and results are cached. `false` switches off both, but not the key store: a key "
         "from a client still places one order only, and a request with `Idempotency-Derive: true` is rejected."),
    _key("keyGeneration.algorithm", "SHA256", parse.choice("SHA256"),
         "Digest of derived keys; an HMAC of it if `IDEMPO_SECRET` is set."),
    _key("keyGeneration.timestampResolution", "60000", parse.whole(1, _DAY_MS),
         "Window in milliseconds: an equal order within this time after the first one is its duplicate; a later one is "
         "a new order."),
    _key("keyGeneration.includeAccount", "true", parse.flag,
         "Whether the account is part of a derived key. The key store separates accounts in any case."),
    _key("keyGeneration.includeSymbol", "true", parse.flag, "Whether the symbol is part of a derived key."),
    _key("keyGeneration.includeSide", "true", parse.flag, "Whether the side is part of a derived key."),
    _key("keyGeneration.includeQuantity", "true", parse.flag, "Whether the quantity is part of a derived key."),
    _key("keyGeneration.includeOrderType", "true", parse.flag, "Whether the order type is part of a derived key."),
    _key("keyGeneration.includePrices", "true", parse.flag,
         "Whether the limit price and the stop price are part of a derived key."),
    _key("cache.type", "in_memory", parse.choice("in_memory", "redis"),
         "Where results are cached: `in_memory` or `redis`. `SWITCHYARD_REDIS_URL`, if set, overrides it with Redis."),
    _key("cache.ttl", "3600000", parse.milliseconds(1, _YEAR_MS),
         "Milliseconds for which a derived key is kept, and a result in the memory cache; one hour by default. It "
         "counts from creation, and a repeat does not extend it. A key is never deleted before its order has ended."),
    _key("cache.cleanupInterval", "300000", parse.milliseconds(100, _DAY_MS),
         "Milliseconds between two removals of expired results from the memory cache."),
    _key("cache.redis.host", "localhost", parse.host, f"Redis host. {_WITH_REDIS}"),
    _key("cache.redis.port", "6379", parse.whole(1, 65_535), f"Redis port. {_WITH_REDIS}"),
    _key("cache.redis.db", "0", parse.whole(0, 65_535), f"Redis database number. {_WITH_REDIS}"),
    _key("cache.redis.password", None, parse.text, f"Redis password. {_WITH_REDIS}", secret=True),
    _key("cache.redis.ttlSeconds", "3600", _seconds(1, _YEAR_MS // 1000),
         "Seconds for which a result is kept in Redis."),
    _key("behavior.returnCachedResult", "true", parse.flag,
         "Whether a repeat may be answered from the cache. `false`: always from the database, with the same response."),
    _key("behavior.allowRetryAfterFailure", "true", parse.flag,
         "Whether a repeat of an order that failed and was provably never sent places a new order under the same "
         "derived key. `false`: the repeat gets the failure. An order in doubt is never placed again."),
    _key("behavior.allowRetryAfterExpiry", "true", parse.flag,
         "Whether the same content places a new order again once one `keyGeneration.timestampResolution` has passed "
         "since its first request. `false`: the same content, `clientOrderId` and `tags` included, never places a "
         "second order under a derived key, and derived keys are kept for good."),
    _key("behavior.logDuplicates", "true", parse.flag, "Whether each duplicate is logged."),
    _key("monitoring.trackCacheHitRate", "true", parse.flag,
         "Whether `idempotency_cache_hits_total` and `idempotency_cache_misses_total` are counted."),
    _key("monitoring.trackKeyGeneration", "true", parse.flag,
         "Whether `idempotency_key_generation_duration_ms` is measured."),
    _key("monitoring.alertOnHighDuplicateRate", "true", parse.flag,
         "Whether a duplicate rate above `monitoring.duplicateRateThreshold` is logged as an error, at most once in 5 "
         "minutes and from 20 requests in 5 minutes on."),
    _key("monitoring.duplicateRateThreshold", "0.05", parse.ratio,
         "Highest normal number of duplicates per order placed, in the last 5 minutes; between 0 and 1."),
)  # fmt: skip

_BY_PATH = {setting.field: setting for setting in IDEMPOTENCY_SETTINGS}
_SECTIONS = {path[:dot] for path in _BY_PATH for dot in range(len(path)) if path[dot] == "."}


def idempotency_of(
    section: Any,
    environment: Mapping[str, str],
    *,
    derive: bool | frozenset[AccountId],
    secret: Secret | None,
    redis_url: Secret | None,
) -> IdempotencySettings:
    """Read the section; raises SettingError for an unknown key or an invalid value."""
    if section is not None and not isinstance(section, Mapping):
        raise SettingError(SECTION, "must be a mapping of settings, not a single value")
    file_values = dict(_leaves(section or {}))
    values = {path: _value(setting, environment, file_values) for path, setting in _BY_PATH.items()}
    return IdempotencySettings(
        enabled=values["enabled"],
        derive=derive,
        secret=secret,
        key_generation=KeyGeneration(
            algorithm=values["keyGeneration.algorithm"],
            timestamp_resolution_ms=values["keyGeneration.timestampResolution"],
            parts=KeyParts(
                account=values["keyGeneration.includeAccount"],
                symbol=values["keyGeneration.includeSymbol"],
                side=values["keyGeneration.includeSide"],
                quantity=values["keyGeneration.includeQuantity"],
                order_type=values["keyGeneration.includeOrderType"],
                prices=values["keyGeneration.includePrices"],
            ),
        ),
        cache=CacheSettings(
            redis_url=redis_url or (_redis_url(values) if values["cache.type"] == "redis" else None),
            redis_ttl=values["cache.redis.ttlSeconds"],
            ttl=values["cache.ttl"],
            cleanup_interval=values["cache.cleanupInterval"],
        ),
        behavior=Behavior(
            return_cached_result=values["behavior.returnCachedResult"],
            allow_retry_after_failure=values["behavior.allowRetryAfterFailure"],
            allow_retry_after_expiry=values["behavior.allowRetryAfterExpiry"],
            log_duplicates=values["behavior.logDuplicates"],
        ),
        monitoring=Monitoring(
            track_cache_hit_rate=values["monitoring.trackCacheHitRate"],
            track_key_generation=values["monitoring.trackKeyGeneration"],
            alert_on_high_duplicate_rate=values["monitoring.alertOnHighDuplicateRate"],
            duplicate_rate_threshold=values["monitoring.duplicateRateThreshold"],
        ),
    )


def _redis_url(values: Mapping[str, Any]) -> Secret:
    password: str | None = values["cache.redis.password"]
    credentials = "" if password is None else f":{quote(password, safe='')}@"
    host: str = values["cache.redis.host"]
    url_host = f"[{host}]" if ":" in host else host
    return Secret(f"redis://{credentials}{url_host}:{values['cache.redis.port']}/{values['cache.redis.db']}")


def _leaves(section: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key of the file with its path; raises SettingError for an unknown key."""
    for name, value in section.items():
        path = f"{prefix}{name}"
        if path in _BY_PATH:
            yield path, value
        elif path not in _SECTIONS:
            close = difflib.get_close_matches(path, _BY_PATH, n=1)
            hint = f"; did you mean {SECTION}.{close[0]}?" if close else ""
            raise SettingError(f"{SECTION}.{path}", f"is not a setting{hint}")
        elif isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        elif value is not None:
            raise SettingError(f"{SECTION}.{path}", "must be a mapping of settings, not a single value")


def _value(setting: Setting, environment: Mapping[str, str], file_values: Mapping[str, Any]) -> Any:
    has_file = setting.secret and environment.get(f"{setting.name}_FILE")
    if setting.name in environment or has_file or setting.field not in file_values:
        return value_of(setting, setting.name, environment, setting.default)
    path, value = f"{SECTION}.{setting.field}", file_values[setting.field]
    if value is None and setting.default is None:
        return None
    if setting.secret and not isinstance(value, str):
        # YAML reads an unquoted 0123 as the number 83, which is another password.
        raise SettingError(path, "must be a string in quotes: YAML changes some values without quotes")
    if not isinstance(value, bool | int | float | str):
        raise SettingError(path, f"must be a single value, not {type(value).__name__}")
    return parsed(setting, path, str(value))
