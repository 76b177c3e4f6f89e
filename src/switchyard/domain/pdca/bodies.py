"""The bodies of `POST /pdca/recheck` and `POST /pdca/recheck_all`: their checks, their digest. Pure."""

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any, TypeVar

import msgspec

from switchyard.domain.canonical import digest
from switchyard.domain.errors import InvalidField
from switchyard.domain.fields import converted
from switchyard.domain.labels import check_label
from switchyard.domain.pdca.metric_names import MetricName
from switchyard.domain.pdca.requests import Filter, Window
from switchyard.domain.pdca.strategies import check_strategy_id, check_tags

STRATEGIES_PER_REQUEST_MAX = 50
# Also the longest time between `from` and `to`.
LOOKBACK_DAYS_MAX = 180
BATCH_SIZE_DEFAULT = 25
# Strategies that are rechecked at the same time for one request.
BATCH_SIZE_MAX = 100
REASON_LENGTH_MAX = 64
TRACE_ID_LENGTH_MAX = 128
# No journal has events outside these years, and every engine can store them.
_YEARS = range(1970, 3000)


class WindowBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """`from` and `to`, both inclusive, or `lookback_days`."""

    from_: datetime | None = msgspec.field(default=None, name="from")
    to: datetime | None = None
    lookback_days: int | None = None


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to compute."""

    recalc_metrics: tuple[MetricName, ...] = ()
    """All metrics, if empty."""


class RecheckBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /pdca/recheck`."""

    strategies: tuple[str, ...]
    window: WindowBody
    reason: str
    dry_run: bool = False
    params: Params = Params()
    trace_id: str | None = None


class RecheckAllBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /pdca/recheck_all`."""

    window: WindowBody
    reason: str
    filter: Filter = Filter()
    batch_size: int = BATCH_SIZE_DEFAULT
    dry_run: bool = False
    params: Params = Params()
    trace_id: str | None = None


Body = TypeVar("Body", RecheckBody, RecheckAllBody)


def checked_recheck(body: Mapping[str, Any]) -> RecheckBody:
    """The body of `POST /pdca/recheck`; raises InvalidField for the first wrong field."""
    stated = _normalised(converted(body, RecheckBody))
    if not 1 <= len(stated.strategies) <= STRATEGIES_PER_REQUEST_MAX:
        raise InvalidField(
            "strategies", f"must name 1 to {STRATEGIES_PER_REQUEST_MAX} strategies, got {len(stated.strategies)}"
        )
    for strategy in stated.strategies:
        check_strategy_id("strategies", strategy)
    _check_once("strategies", stated.strategies)
    _check_common(stated)
    return stated


def checked_recheck_all(body: Mapping[str, Any]) -> RecheckAllBody:
    """The body of `POST /pdca/recheck_all`; raises InvalidField for the first wrong field."""
    stated = _normalised(converted(body, RecheckAllBody))
    check_tags("filter.tags_any", stated.filter.tags_any)
    _check_once("filter.health", stated.filter.health)
    if not 1 <= stated.batch_size <= BATCH_SIZE_MAX:
        raise InvalidField("batch_size", f"must be between 1 and {BATCH_SIZE_MAX}, got {stated.batch_size}")
    _check_common(stated)
    return stated


def request_digest(stated: RecheckBody | RecheckAllBody) -> str:
    """The digest of the request with its defaults; `trace_id` does not count."""
    return digest(msgspec.to_builtins(stated))


def window_at(stated: WindowBody, now: datetime) -> Window:
    """The window of a request that is accepted now.

    A lookback of n days covers n days in UTC, the last of them today up to now.
    """
    if stated.lookback_days is None:
        assert stated.from_ is not None and stated.to is not None, "the body was checked"
        return Window(from_=stated.from_, to=stated.to)
    first = (now - timedelta(days=stated.lookback_days - 1)).date()
    return Window(from_=datetime.combine(first, time(), UTC), to=now, lookback_days=stated.lookback_days)


def _normalised(stated: Body) -> Body:
    """The body with its texts in NFC: the same words from another keyboard are the same request."""
    return msgspec.structs.replace(
        stated,
        reason=unicodedata.normalize("NFC", stated.reason),
        trace_id=None if stated.trace_id is None else unicodedata.normalize("NFC", stated.trace_id),
        window=_in_utc(stated.window),
    )


def _in_utc(window: WindowBody) -> WindowBody:
    ends = {}
    for field, value in (("from", window.from_), ("to", window.to)):
        if value is None:
            continue
        if value.tzinfo is None:
            raise InvalidField(f"window.{field}", "must have a time zone, such as 2025-08-24T03:34:56Z")
        if value.year not in _YEARS:
            raise InvalidField(f"window.{field}", f"must be between the years {_YEARS[0]} and {_YEARS[-1]}")
        ends[field] = value.astimezone(UTC)
    return WindowBody(from_=ends.get("from"), to=ends.get("to"), lookback_days=window.lookback_days)


def _check_common(stated: RecheckBody | RecheckAllBody) -> None:
    _check_window(stated.window)
    check_label("reason", stated.reason, REASON_LENGTH_MAX)
    _check_once("params.recalc_metrics", stated.params.recalc_metrics)
    if stated.trace_id is not None:
        check_label("trace_id", stated.trace_id, TRACE_ID_LENGTH_MAX)


def _check_window(window: WindowBody) -> None:
    if window.lookback_days is not None:
        if window.from_ is not None or window.to is not None:
            raise InvalidField("window", "must have either from and to, or lookback_days")
        if not 1 <= window.lookback_days <= LOOKBACK_DAYS_MAX:
            raise InvalidField("window.lookback_days", f"must be between 1 and {LOOKBACK_DAYS_MAX}")
        return
    if window.from_ is None or window.to is None:
        raise InvalidField("window", "must have from and to, or lookback_days")
    if window.from_ > window.to:
        raise InvalidField("window", "from must not be after to")
    if window.to - window.from_ > timedelta(days=LOOKBACK_DAYS_MAX):
        raise InvalidField("window", f"from and to must be at most {LOOKBACK_DAYS_MAX} days apart")


def _check_once(field: str, values: Sequence[str]) -> None:
    if len(set(values)) != len(values):
        raise InvalidField(field, "must not name anything twice")
