"""Tells the state of a venue from its settings, its gate and its health."""

from typing import Literal

from switchyard.bootstrap.core import Core
from switchyard.bootstrap.rates import burst_of
from switchyard.domain.venue_state import HealthRecord, SendState, VenueState
from switchyard.flow.executions.gate import VenueGate
from switchyard.flow.health.board import HealthBoard
from switchyard.settings import VenueSettings


def venue_states(core: Core) -> list[VenueState]:
    """Every venue of the settings."""
    return [venue_state(venue, core.gates.get(venue.name), core.health) for venue in core.settings.venues]


def venue_state(settings: VenueSettings, gate: VenueGate | None, health: HealthBoard) -> VenueState:
    """The venue as `GET /venues` shows it; without a gate another process sends to it."""
    record = health.record(settings.name)
    state, reason = _send_state(gate, record)
    latency = None if record is None else record.latency_seconds
    rate = None if record is None else record.reject_rate
    return VenueState(
        venue=settings.name,
        kind=_kind(settings.url),
        state=state,
        reason=reason,
        breaker=None if record is None else record.breaker,
        faults=None if record is None else record.faults,
        rate_per_sec=settings.rate_per_sec,
        burst=None if settings.rate_per_sec is None else burst_of(settings),
        latency_ms=None if latency is None else round(latency * 1000, 1),
        reject_rate=None if rate is None else round(rate, 3),
    )


def _send_state(gate: VenueGate | None, record: HealthRecord | None) -> tuple[SendState, str | None]:
    if record is None:
        return "unknown", "no worker has reported on it lately"
    problem = None if gate is None else gate.problem
    if gate is not None and not gate.is_open:
        return "closed", "its orders and reports are being read" if problem is None else problem.reason
    if record.reason is not None:
        return "held", record.reason
    return "open", None if problem is None else problem.reason


def _kind(url: str) -> Literal["paper", "http", "null"]:
    if url.startswith("http"):
        return "http"
    return "paper" if url == "paper:" else "null"
