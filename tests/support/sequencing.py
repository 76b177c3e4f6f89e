"""A sequencer that runs, for tests of the stages that propose to it."""

import asyncio
from collections.abc import Callable, Sequence

from switchyard.adapters.system_clock import SystemRandomness
from switchyard.domain.journal.changes import Change
from switchyard.flow.commit.sequencer import Sequencer
from switchyard.flow.results import OrderResults
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.telemetry.metrics import Metrics

_running: set[asyncio.Task[None]] = set()


def running_sequencer(
    journal: Journal,
    clock: Clock,
    metrics: Metrics,
    results: OrderResults | None = None,
    note: Callable[[Sequence[Change]], None] | None = None,
) -> Sequencer:
    """A sequencer that commits until the test's event loop ends."""
    sequencer = Sequencer(
        journal,
        clock=clock,
        randomness=SystemRandomness(),  # two sequencers of one test must not give a group the same id
        metrics=metrics,
        wakes=[],
        capacity=10_000,
        on_broken=_note_broken,
        completion=results,
        on_committed=[*([] if results is None else [results.count]), *([] if note is None else [note])],
    )
    task = asyncio.create_task(sequencer.run())
    _running.add(task)
    task.add_done_callback(_running.discard)
    return sequencer


def _note_broken(error: str) -> None:
    raise AssertionError(f"the journal is broken: {error}")
