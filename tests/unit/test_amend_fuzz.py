"""Amends under faults of every kind, by seed: the venue and the journal agree, and nothing is reserved too low."""

import asyncio
import random
from datetime import timedelta

import pytest

from switchyard.flow.sending import dispatch
from switchyard.ports.venue import Capabilities
from tests.support.amend_site import AmendField, amend_violations, unsettled_amends
from tests.support.sending_faults import Plan
from tests.support.sending_judge import violations
from tests.support.virtual_time import run_virtually

SEEDS = 20
# Virtual time; longer than the backoff of an amend with a few failed attempts.
SETTLE_SECONDS = 1_500


def a_plan(chance: random.Random) -> Plan:
    def rate(often: float, share: float = 0.4) -> float:
        return chance.uniform(0, often) if chance.random() < share else 0.0

    return Plan(
        unavailable=rate(0.2),
        lost=rate(0.2),
        unread=rate(0.2),
        slow=rate(0.3, 0.6),
        refused=rate(0.2),
        ambiguous=rate(0.5, 0.7),
        limited=rate(0.1, 0.2),
        slow_seconds=chance.choice([0.05, 0.5, 3.0]),
    )


def some_capabilities(chance: random.Random) -> Capabilities:
    dedupe = chance.choice(["permanent", "ttl", "while_open", "none"])
    return Capabilities(
        dedupe=dedupe,  # type: ignore[arg-type]
        dedupe_ttl=timedelta(seconds=60) if dedupe == "ttl" else None,
        lookup="all",
        acceptance_window=timedelta(seconds=1),
        amend=chance.choice(["in_place", "cancel_replace"]),
    )


def disturb(field: AmendField, chance: random.Random, slots: int) -> None:
    worker = chance.choice(field.living)
    match chance.choices(
        ["post", "amend", "trade", "cancel", "kill", "recover", "pause", "crash", "join"],
        [20, 50, 25, 6, 1, 8, 2, 1, 1],
    )[0]:
        case "post":
            field.post(worker)
        case "amend":
            field.call(worker, field.amend_one(worker))
        case "trade":
            field.trade()
        case "cancel":
            field.call(worker, field.cancel_one(worker))
        case "kill":
            field.call(worker, field.set_and_clear_kill(worker))
        case "recover":
            field.call(worker, worker.recover())
        case "pause":
            field.call(worker, worker.pause(chance.uniform(0.1, 3.5)))
        case "crash" if len(field.living) == 2:
            worker.kill()
        case "join" if len(field.living) == 1:
            field.add_worker(slots)


async def run(seed: int) -> AmendField:
    chance = random.Random(seed)
    field = AmendField(seed, a_plan(chance), some_capabilities(chance))
    slots = chance.randint(2, 20)
    for _ in range(chance.randint(1, 2)):
        field.add_worker(slots)
    pause = chance.choice([0.01, 0.1, 0.5])
    for _ in range(chance.randint(80, 250)):
        disturb(field, chance, slots)
        await asyncio.sleep(chance.uniform(0, pause))
    field.plan.calm()
    for _ in range(SETTLE_SECONDS):
        if not (field.unsettled() or unsettled_amends(field) or any(worker.leftovers() for worker in field.living)):
            break
        await asyncio.sleep(1)
    await asyncio.sleep(60)  # for what is in doubt
    return field


def judged(seed: int) -> list[str]:
    async def run_and_judge() -> list[str]:
        field = await run(seed)
        found = [*violations(field), *amend_violations(field)]
        for worker in field.workers:
            worker.kill()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    return run_virtually(run_and_judge())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_venue_and_the_journal_agree_on_amended_orders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "RECOVERY_SECONDS", 5.0 if seed % 2 else 0.05)
    found = judged(seed)
    assert not found, "\n".join(found)
