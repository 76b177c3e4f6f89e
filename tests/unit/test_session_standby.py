"""A worker that stands by for the session of a venue raises no alarm and reports nothing about the venue."""

from datetime import timedelta
from typing import Any, cast

from switchyard.flow.executions.strays import VenueGate
from switchyard.flow.health.venues import HealthBoard, HealthWriter, VenueBreaker
from switchyard.telemetry.metrics import Metrics
from tests.support.build import VENUE
from tests.support.memory.clock import ManualClock


def test_a_gate_that_stands_by_shows_no_figure_and_no_problem_and_does_not_open() -> None:
    clock, metrics = ManualClock(), Metrics()
    gate = VenueGate(VENUE, clock=clock, metrics=metrics)

    def shown() -> float | None:
        return metrics.registry.get_sample_value("venue_state", {"venue": VENUE})

    assert shown() == 0
    gate.stand_by()
    gate.stand_by()
    gate.open()
    clock.advance(timedelta(hours=1))
    assert (shown(), gate.is_open, gate.problem) == (None, False, None)
    gate.begin()
    assert shown() == 0
    gate.open()
    assert (shown(), gate.is_open) == (1, True)
    gate.stand_by()
    assert (shown(), gate.is_open) == (None, False)


def test_a_gate_that_is_locked_stays_locked_while_it_stands_by() -> None:
    gate = VenueGate(VENUE, clock=ManualClock(), metrics=Metrics())
    gate.stand_by()
    gate.lock("a second installation")
    assert gate.problem is not None and gate.problem.code == "CLOSED"


async def test_a_worker_reports_only_on_venues_that_it_uses() -> None:
    clock, metrics, board = ManualClock(), Metrics(), HealthBoard()
    pause = timedelta(seconds=1)
    board.watch([VenueBreaker(VENUE, faults_max=1, pause=pause, clock=clock, metrics=metrics)])
    written: list[Any] = []

    async def commit(change: Any) -> Any:
        written.append(change)

    writer = HealthWriter(board, [VENUE], cast(Any, commit), clock, lambda _venue: False)
    assert (await writer.run_once(), written) == (0, [])
    assert await HealthWriter(board, [VENUE], cast(Any, commit), clock).run_once() == 1
