"""A short seeded run of the nemesis: faults of every kind under load, judged from outside; and the harness itself."""

import asyncio
from pathlib import Path

import pytest

from tests.nemesis.run import attack, summary
from tests.support.nemesis_faults import (
    Fault,
    cut_connections,
    frozen_venue_and_killed_sender,
    killed_sender,
    lost_answers,
    partition,
    paused_sender,
    restored_backup,
    venue_fault,
)
from tests.support.nemesis_judge import Verdict, upper_bound
from tests.support.nemesis_site import Engine

SEED = 9
# Short, so that a proof of absence takes seconds; `make chaos` holds requests longer.
HOP_HOLD_SECONDS = 1.0
SECONDS = 12.0
PLANTED = ("blind_requeue", "doubt_is_rejection", "keys_are_not_stored", "pages_are_recorded_twice")

SITES: tuple[tuple[Engine, str, tuple[Fault, ...]], ...] = (
    ("sqlite", "permanent", (frozen_venue_and_killed_sender, restored_backup)),
    ("sqlite", "while_open", (partition, killed_sender)),
    ("sqlite", "none", (cut_connections, killed_sender, venue_fault)),
    ("postgres", "ttl", (venue_fault, paused_sender, killed_sender)),
)


async def test_under_seeded_faults_nothing_is_lost_executed_twice_or_hidden(tmp_path: Path) -> None:
    verdicts = await asyncio.gather(
        *(attacked(tmp_path / f"{engine}-{dedupe}", engine, dedupe, kinds) for engine, dedupe, kinds in SITES)
    )
    assert all(verdict.holds for verdict in verdicts), "\n".join(
        [summary(SEED, verdicts), *(line for verdict in verdicts for line in verdict.complaints())]
    )


async def test_planted_bugs_are_noticed(tmp_path: Path) -> None:
    verdicts = await asyncio.gather(
        *(attacked(tmp_path / bug, "sqlite", "none", (lost_answers,), bug) for bug in PLANTED)
    )
    unnoticed = [bug for bug, verdict in zip(PLANTED, verdicts, strict=True) if verdict.holds]
    assert not unnoticed, summary(SEED, verdicts)


async def attacked(folder: Path, engine: Engine, dedupe: str, kinds: tuple[Fault, ...], bug: str = "none") -> Verdict:
    return await attack(
        folder,
        engine,
        dedupe,
        seed=SEED,
        faults=len(kinds),
        seconds=SECONDS,
        hop_hold_seconds=HOP_HOLD_SECONDS,
        kinds=kinds,
        bug=bug,
    )


@pytest.mark.parametrize(
    ("events", "trials", "expected"), [(0, 1000, 0.003), (0, 0, 1.0), (1, 1000, 0.00474), (30, 10, 1.0)]
)
def test_the_upper_bound_of_a_rate_is_the_rule_of_three_where_nothing_happened(
    events: int, trials: int, expected: float
) -> None:
    assert upper_bound(events, trials) == pytest.approx(expected, rel=0.01)
