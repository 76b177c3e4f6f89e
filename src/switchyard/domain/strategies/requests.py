"""Requests of the PDCA API: bodies, the stored request and its items, and their states. Pure."""

import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from switchyard.domain.errors import InvalidField
from switchyard.domain.strategies.registry import (
    Health,
    MetricName,
    MetricValue,
    StrategyKey,
    check_strategy_id,
    check_tags,
)
from switchyard.domain.values import AMOUNT_LIMIT, check_label, converted, digest

Operation = Literal["pdca.recheck", "pdca.recheck_all"]
RunnerName = Literal["embedded", "airflow"]
RequestState = Literal["queued", "running", "succeeded", "failed", "partial"]
ItemState = Literal["queued", "running", "succeeded", "failed"]

# A worker that was killed does not say so: after this many claims without a result the item itself is the suspect.
ATTEMPTS_MAX = 5
# Keeps a page of 100 results, with what else it shows of them, below 1 MB.
RESULT_BYTES_MAX = 6_000
ARTIFACTS_PER_ITEM_MAX = 8
# An artifact is stored in the database, and downloaded in one answer.
ARTIFACT_BYTES_MAX = 1_000_000


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Strategies with any of the tags and any of the healths; an empty list is no condition."""

    tags_any: tuple[str, ...] = ()
    health: tuple[Health, ...] = ()


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The time that a recheck looks at, both ends inclusive; fixed when the request is accepted."""

    from_: datetime = msgspec.field(name="from")
    to: datetime
    lookback_days: int | None = None
    """What the request asked for, if it did not name the ends."""


class RecheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted request; its strategies are its items."""

    request_id: str
    operation: Operation
    client_id: str
    window: Window
    reason: str
    dry_run: bool
    metrics: tuple[MetricName, ...]
    """The metrics to compute; all, if empty."""
    batch_size: int
    """Strategies of one batch; the next batch begins when all of this one have ended."""
    runner: RunnerName
    created_at: datetime
    filter: Filter | None = None
    """Of `recheck_all`."""
    trace_id: str | None = None
    traceparent: str | None = None
    """The W3C trace context of the request; no behaviour depends on it."""


class RunnerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the run of a request."""

    submitted_at: datetime | None = None
    """When the runner took the request; none while it has not."""
    run_id: str | None = None
    """The run's name at the runner: `dag_run_id` at Airflow."""
    run_state: str | None = None
    """The runner's own word for the state of the run."""
    error: str | None = None
    """Why the last attempt to submit or to ask failed."""
    tries: int = 0


class Fence(msgspec.Struct, frozen=True):
    """The right to finish one item; a later claim of the item takes it away."""

    request_id: str
    key: StrategyKey
    generation: int


class ItemResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the recheck of one strategy found."""

    health: Health
    health_reasons: tuple[str, ...] = ()
    metrics: dict[MetricName, MetricValue] = {}
    enforced: str | None = None
    """What was done because of it, such as `reduce_only`."""


class ItemError(msgspec.Struct, frozen=True, kw_only=True):
    """Why the recheck of one strategy failed."""

    code: str
    message: str


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a recheck produced, without its content."""

    name: str
    media_type: str
    size: int
    sha256: str


class RecheckItem(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy of a request."""

    key: StrategyKey
    batch: int
    """The number of its batch, as if the request had no items of tenants that the caller may not see."""
    state: ItemState
    attempts: int
    """Claims so far; more than one where a worker was lost."""
    started_at: datetime | None
    """When it was claimed first."""
    finished_at: datetime | None
    result: ItemResult | None
    error: ItemError | None
    artifacts: tuple[Artifact, ...] = ()


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many items have ever ended, in any process; those of removed requests count too."""

    succeeded: int
    failed: int


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How many strategies of a request are in which state; the states add up to the total."""

    total: int
    queued: int
    running: int
    succeeded: int
    failed: int

    @property
    def state(self) -> RequestState:
        """The state of the request."""
        if self.queued == self.total and self.total:
            return "queued"
        if self.queued or self.running:
            return "running"
        if not self.failed:
            return "succeeded"
        return "partial" if self.succeeded else "failed"


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


class WindowBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`from` and `to`, both inclusive, or `lookback_days`."""

    from_: datetime | UnsetType = msgspec.field(default=UNSET, name="from")
    to: datetime | UnsetType = UNSET
    lookback_days: int | UnsetType = UNSET


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
    stated = _normalised(converted(_with_whole_numbers(body), RecheckBody))
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
    stated = _normalised(converted(_with_whole_numbers(body), RecheckAllBody))
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
    match stated.lookback_days, stated.from_, stated.to:
        case _, datetime() as first, datetime() as last:
            return Window(from_=first, to=last)
        case int(days), _, _:
            begin = (now - timedelta(days=days - 1)).date()
            return Window(from_=datetime.combine(begin, time(), UTC), to=now, lookback_days=days)
    raise AssertionError("the body was not checked")


def _normalised(stated: Body) -> Body:
    """The body with its texts in NFC: the same words from another keyboard are the same request."""
    return msgspec.structs.replace(
        stated,
        reason=unicodedata.normalize("NFC", stated.reason),
        trace_id=None if stated.trace_id is None else unicodedata.normalize("NFC", stated.trace_id),
        window=_in_utc(stated.window),
    )


def _in_utc(window: WindowBody) -> WindowBody:
    return msgspec.structs.replace(
        window,
        from_=window.from_ if window.from_ is UNSET else _utc("window.from", window.from_),
        to=window.to if window.to is UNSET else _utc("window.to", window.to),
    )


def _utc(field: str, value: datetime) -> datetime:
    if value.tzinfo is None:
        raise InvalidField(field, "must have a time zone, such as 2025-08-24T03:34:56Z")
    if value.year not in _YEARS:
        raise InvalidField(field, f"must be between the years {_YEARS[0]} and {_YEARS[-1]}")
    return value.astimezone(UTC)


def _check_common(stated: RecheckBody | RecheckAllBody) -> None:
    _check_window(stated.window)
    check_label("reason", stated.reason, REASON_LENGTH_MAX)
    _check_once("params.recalc_metrics", stated.params.recalc_metrics)
    if stated.trace_id is not None:
        check_label("trace_id", stated.trace_id, TRACE_ID_LENGTH_MAX)


def _check_window(window: WindowBody) -> None:
    if window.lookback_days is not UNSET:
        if window.from_ is not UNSET or window.to is not UNSET:
            raise InvalidField("window", "must have either from and to, or lookback_days")
        if not 1 <= window.lookback_days <= LOOKBACK_DAYS_MAX:
            raise InvalidField("window.lookback_days", f"must be between 1 and {LOOKBACK_DAYS_MAX}")
        return
    if window.from_ is UNSET or window.to is UNSET:
        raise InvalidField("window", "must have from and to, or lookback_days")
    if window.from_ > window.to:
        raise InvalidField("window", "from must not be after to")
    if window.to - window.from_ > timedelta(days=LOOKBACK_DAYS_MAX):
        raise InvalidField("window", f"from and to must be at most {LOOKBACK_DAYS_MAX} days apart")


def _with_whole_numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with 14.0 as 14: the same number, which JSON Schema calls an integer too."""
    changed = {name: _whole(value) if name == "batch_size" else value for name, value in body.items()}
    if isinstance(window := changed.get("window"), Mapping):
        changed["window"] = {
            name: _whole(value) if name == "lookback_days" else value for name, value in window.items()
        }
    return changed


def _whole(value: Any) -> Any:
    is_whole = isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < AMOUNT_LIMIT
    return int(value) if is_whole else value


def _check_once(field: str, values: Sequence[str]) -> None:
    if len(set(values)) != len(values):
        raise InvalidField(field, "must not name anything twice")
