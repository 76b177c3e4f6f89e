"""Tells the state of a venue from its settings, its gate and its health."""

from typing import Literal

from switchyard.bootstrap.core import Core
from switchyard.bootstrap.rates import burst_of
from switchyard.domain.market.health import HealthRecord, SendState, VenueState
from switchyard.flow.executions.strays import ProblemCode, VenueGate
from switchyard.flow.health.venues import HealthBoard
from switchyard.settings import VenueSettings

VenueCode = ProblemCode | Literal["NOT_REPORTED"]


def venue_states(core: Core, detailed: bool = True) -> list[VenueState]:
    """Return every venue of the settings; `detailed`: with reasons as texts for operators, else as codes."""
    return [venue_state(venue, core.gates.get(venue.name), core.health, detailed) for venue in core.settings.venues]


def venue_state(settings: VenueSettings, gate: VenueGate | None, health: HealthBoard, detailed: bool) -> VenueState:
    """The venue as `GET /venues` shows it; without a gate another process sends to it."""
    record = health.record(settings.name)
    state, code, text = _send_state(gate, record)
    latency = None if record is None else record.latency_seconds
    rate = None if record is None else record.reject_rate
    return VenueState(
        venue=settings.name,
        kind=_kind(settings.url),
        state=state,
        reason=text if detailed else code,
        breaker=None if record is None else record.breaker,
        faults=None if record is None else record.faults,
        rate_per_sec=settings.rate_per_sec,
        burst=None if settings.rate_per_sec is None else burst_of(settings),
        latency_ms=None if latency is None else round(latency * 1000, 1),
        reject_rate=None if rate is None else round(rate, 3),
    )


def _send_state(gate: VenueGate | None, record: HealthRecord | None) -> tuple[SendState, VenueCode | None, str | None]:
    """Return the state with its reason, as a code and as a text that may quote a library's error."""
    if record is None:
        return "unknown", "NOT_REPORTED", "no worker has reported on it lately"
    problem = None if gate is None else gate.problem
    if gate is not None and not gate.is_open:
        if problem is None:
            return "closed", "NOT_SYNCHRONISED", "its orders and reports are being read"
        return "closed", problem.code, problem.reason
    if record.reason is not None:
        return "held", "BREAKER_OPEN", record.reason
    return ("open", None, None) if problem is None else ("open", problem.code, problem.reason)


def _kind(url: str) -> Literal["paper", "http", "null"]:
    if url.startswith("http"):
        return "http"
    return "paper" if url == "paper:" else "null"
