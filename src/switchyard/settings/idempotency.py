"""The `idempotency` block: derived keys, the cache in front of the key store, and what is watched."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from switchyard.domain.derived_keys import KeyParts
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import AccountId
from switchyard.settings import parse
from switchyard.settings.setting import Secret, Setting, parsed, value_of

BLOCK = "idempotency"


class KeyGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """How a key is derived from an order."""

    algorithm: Literal["SHA256"]
    timestamp_resolution_ms: int
    parts: KeyParts


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where results are kept close at hand, and for how long."""

    redis_url: Secret | None
    """None: in memory."""
    redis_ttl: timedelta
    ttl: timedelta
    cleanup_interval: timedelta


class Behavior(msgspec.Struct, frozen=True, kw_only=True):
    """What a repeat gets."""

    return_cached_result: bool
    allow_retry_after_failure: bool
    allow_retry_after_expiry: bool
    log_duplicates: bool


class Monitoring(msgspec.Struct, frozen=True, kw_only=True):
    """What is counted, and when it is too much."""

    track_cache_hit_rate: bool
    track_key_generation: bool
    alert_on_high_duplicate_rate: bool
    duplicate_rate_threshold: float


class IdempotencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The block as the flow sees it; what each key means is said in `IDEMPOTENCY_SETTINGS`."""

    enabled: bool
    derive: bool | frozenset[AccountId]
    secret: Secret | None
    key_generation: KeyGeneration
    cache: CacheSettings
    behavior: Behavior
    monitoring: Monitoring

    def derives_for(self, account_id: AccountId) -> bool:
        """Whether a request of this account without a key gets a derived one."""
        return self.enabled and (self.derive if isinstance(self.derive, bool) else account_id in self.derive)


def _key(path: str, default: str | None, reader: Callable[[str], Any], text: str, *, secret: bool = False) -> Setting:
    """A key of the block; its environment variable is its path in capitals."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path).replace(".", "_").upper()
    return Setting(f"IDEMPOTENCY_{words}", path, default, reader, text, secret=secret)


def _milliseconds(low: int, high: int) -> Callable[[str], timedelta]:
    return lambda value: timedelta(milliseconds=parse.whole(low, high)(value))


def _seconds(low: int, high: int) -> Callable[[str], timedelta]:
    return lambda value: timedelta(seconds=parse.whole(low, high)(value))


_DAY_MS = 86_400_000
_YEAR_MS = 365 * _DAY_MS
_WITH_REDIS = "with `cache.type` `redis` and no `SWITCHYARD_REDIS_URL`."

IDEMPOTENCY_SETTINGS: tuple[Setting, ...] = (
    _key("enabled", "true", parse.flag,
         "Whether keys are derived and results are cached. `false` switches off both, never the key store: a key that a "
         "client sends still makes one order, and `Idempotency-Derive: true` is rejected rather than ignored."),
    _key("keyGeneration.algorithm", "SHA256", parse.choice("SHA256"),
         "Digest of derived keys; an HMAC of it where `IDEMPO_SECRET` is set."),
    _key("keyGeneration.timestampResolution", "60000", parse.whole(1, _DAY_MS),
         "Milliseconds of a time window: an equal order within this time of the first is its duplicate."),
    _key("keyGeneration.includeAccount", "true", parse.flag,
         "Whether the account enters a derived key; the key store keeps accounts apart in any case."),
    _key("keyGeneration.includeSymbol", "true", parse.flag, "Whether the symbol enters a derived key."),
    _key("keyGeneration.includeSide", "true", parse.flag, "Whether the side enters a derived key."),
    _key("keyGeneration.includeQuantity", "true", parse.flag, "Whether the quantity enters a derived key."),
    _key("keyGeneration.includeOrderType", "true", parse.flag, "Whether the type enters a derived key."),
    _key("keyGeneration.includePrices", "true", parse.flag, "Whether limit and stop price enter a derived key."),
    _key("cache.type", "in_memory", parse.choice("in_memory", "redis"),
         "Where results are cached. `SWITCHYARD_REDIS_URL`, where set, makes it Redis."),
    _key("cache.ttl", "3600000", _milliseconds(1, _YEAR_MS),
         "Milliseconds that a derived key is remembered, and a result kept in memory: from creation, a repeat does not "
         "prolong it. A key is never forgotten before its order has ended."),
    _key("cache.cleanupInterval", "300000", _milliseconds(100, _DAY_MS),
         "Milliseconds between two sweeps of expired results out of memory."),
    _key("cache.redis.host", "localhost", parse.host, f"Redis' host, {_WITH_REDIS}"),
    _key("cache.redis.port", "6379", parse.whole(1, 65_535), f"Redis' port, {_WITH_REDIS}"),
    _key("cache.redis.db", "0", parse.whole(0, 65_535), f"Redis' database number, {_WITH_REDIS}"),
    _key("cache.redis.password", None, parse.text, f"Redis' password, {_WITH_REDIS}", secret=True),
    _key("cache.redis.ttlSeconds", "3600", _seconds(1, _YEAR_MS // 1000), "Seconds that a result is kept in Redis."),
    _key("behavior.returnCachedResult", "true", parse.flag,
         "Whether a repeat may be answered from the cache. `false`: from SQL each time. The answer is the same."),
    _key("behavior.allowRetryAfterFailure", "true", parse.flag,
         "Whether an order that failed and provably never left may be tried again under its derived key, as a new "
         "order. `false`: the failure is what a repeat gets. An order in doubt is never tried again."),
    _key("behavior.allowRetryAfterExpiry", "true", parse.flag,
         "Whether a derived key older than `cache.ttl` begins anew, which is logged and counted. `false`: it stands "
         "for its first order as long as the key store has it."),
    _key("behavior.logDuplicates", "true", parse.flag, "Whether each duplicate that is found makes a log line."),
    _key("monitoring.trackCacheHitRate", "true", parse.flag,
         "Whether `idempotency_cache_hits_total` and `idempotency_cache_misses_total` are counted."),
    _key("monitoring.trackKeyGeneration", "true", parse.flag,
         "Whether `idempotency_key_generation_duration_ms` is measured."),
    _key("monitoring.alertOnHighDuplicateRate", "true", parse.flag,
         "Whether too many duplicates make an error log line, at most one in 5 minutes."),
    _key("monitoring.duplicateRateThreshold", "0.05", parse.ratio,
         "Too many: a greater share than this of the placements of the last 5 minutes. Between 0 and 1."),
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
    """The block: from the environment, else from the file, else the defaults."""
    if section is not None and not isinstance(section, Mapping):
        raise SettingError(BLOCK, "must be a section of keys")
    written = dict(_leaves(section or {}))
    values = {path: _value(setting, environment, written) for path, setting in _BY_PATH.items()}
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
    login = "" if password is None else f":{quote(password, safe='')}@"
    host: str = values["cache.redis.host"]
    shown_host = f"[{host}]" if ":" in host else host
    return Secret(f"redis://{login}{shown_host}:{values['cache.redis.port']}/{values['cache.redis.db']}")


def _leaves(section: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that is written, by its path; one that nobody knows stops the start."""
    for name, value in section.items():
        path = f"{prefix}{name}"
        if path in _BY_PATH:
            yield path, value
        elif path not in _SECTIONS:
            close = difflib.get_close_matches(path, _BY_PATH, n=1)
            hint = f"; did you mean {BLOCK}.{close[0]}?" if close else ""
            raise SettingError(f"{BLOCK}.{path}", f"is not a setting{hint}")
        elif isinstance(value, Mapping):
            yield from _leaves(value, f"{path}.")
        elif value is not None:
            raise SettingError(f"{BLOCK}.{path}", "must be a section of keys")


def _value(setting: Setting, environment: Mapping[str, str], written: Mapping[str, Any]) -> Any:
    has_file = setting.secret and environment.get(f"{setting.name}_FILE")
    if setting.name in environment or has_file or setting.field not in written:
        return value_of(setting, setting.name, environment, setting.default)
    path, value = f"{BLOCK}.{setting.field}", written[setting.field]
    if value is None and setting.default is None:
        return None
    if setting.secret and not isinstance(value, str):
        # YAML reads 0123 as 83: what is not in quotes may be another password than the one that was written.
        raise SettingError(path, "must be a text in quotes")
    if not isinstance(value, bool | int | float | str):
        raise SettingError(path, "must be a single value")
    return parsed(setting, path, str(value))
