"""Runs the nemesis: load and seeded faults at some sites, then the judge's verdict on each."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.support.nemesis_faults import Fault, faults_of
from tests.support.nemesis_judge import Verdict, judge, upper_bound
from tests.support.nemesis_process import NO_BUG
from tests.support.nemesis_site import Engine, Site
from tests.support.polling import until

CLASSES = ("permanent", "ttl", "while_open", "none")
POSTERS = 3
# So that orders are sent, and in every stage of it, between two faults.
GAP_SECONDS = (0.3, 1.0)
# On a busy machine the faults may be over before a judge has anything to look at.
ORDERS_MIN = 12


async def attack(
    folder: Path,
    engine: Engine,
    dedupe: str,
    *,
    seed: int,
    faults: int,
    seconds: float,
    hop_hold_seconds: float,
    bug: str = NO_BUG,
    kinds: Sequence[Fault] = (),
) -> Verdict:
    """Load one site and inject faults until their number or the time is used up; then heal it and judge it."""
    # Text, so that each site has its own sequence that depends on the seed only.
    chance = Random(f"{seed} {engine} {dedupe}")
    site = Site(folder, engine, dedupe, seed=seed, hop_hold_seconds=hop_hold_seconds, bug=bug)
    injected: Counter[str] = Counter()
    stop = asyncio.Event()
    try:
        await site.start()
        load = asyncio.create_task(site.client.load(stop, POSTERS))
        deadline = time.monotonic() + seconds
        choice = list(kinds or faults_of(site))
        chance.shuffle(choice)
        while injected.total() < faults and time.monotonic() < deadline:
            await asyncio.sleep(chance.uniform(*GAP_SECONDS))
            # Each kind once, then by chance: a short run sees as many kinds as it can.
            fault = choice[injected.total()] if injected.total() < len(choice) else chance.choice(choice)
            await fault(site, chance)
            injected[fault.__name__] += 1
            await site.revive()
        await until(lambda: len(site.client.intents) >= ORDERS_MIN)
        stop.set()
        await load
        await site.heal()
        await site.client.insist([intent for intent in site.client.intents if intent.told == "unknown"])
        verdict = await judge(site)
        verdict.faults = injected
        return verdict
    finally:
        stop.set()
        await site.close()


def summary(seed: int, verdicts: Sequence[Verdict]) -> str:
    """The figures of a run, in lines."""
    orders = sum(verdict.orders for verdict in verdicts)
    twice = sum(len(verdict.twice) for verdict in verdicts)
    faults: Counter[str] = sum((verdict.faults for verdict in verdicts), Counter())
    lines = [
        f"seed {seed}: {orders} orders, {faults.total()} faults at {len(verdicts)} sites",
        f"lost {sum(len(verdict.lost) for verdict in verdicts)}, executed twice {twice}, "
        f"wrong {sum(len(verdict.wrong) for verdict in verdicts)}, "
        f"in doubt {sum(verdict.in_doubt for verdict in verdicts)}, "
        f"hidden {sum(len(verdict.hidden) for verdict in verdicts)}, "
        f"unsettled {sum(len(verdict.unsettled) for verdict in verdicts)}",
        f"95 % upper bound of the rate of second executions: {upper_bound(twice, orders):.2e}",
        "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(faults.items())),
    ]
    for verdict in verdicts:
        lines.append(
            f"  {verdict.site}: {verdict.orders} orders, {verdict.acknowledged} acknowledged, {verdict.executed} "
            f"executed, {verdict.faults.total()} faults, lost {len(verdict.lost)}, twice {len(verdict.twice)}, "
            f"wrong {len(verdict.wrong)}, in doubt {verdict.in_doubt}, hidden {len(verdict.hidden)}, "
            f"unsettled {len(verdict.unsettled)}"
        )
    return "\n".join(lines)
