"""Accepted requests to recheck strategies: what is stored of them, and how far they are. Pure."""

from datetime import datetime
from typing import Literal

import msgspec

from switchyard.domain.pdca.metric_names import MetricName
from switchyard.domain.pdca.strategies import Health, MetricValue, StrategyKey

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
