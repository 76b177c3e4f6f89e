"""`make chaos`: the nemesis over all venue classes and both engines, bounded in faults and time, on loopback only."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import get_args

from tests.nemesis.run import CLASSES, attack, summary
from tests.support.nemesis_faults import COMMON
from tests.support.nemesis_judge import Verdict
from tests.support.nemesis_process import NO_BUG
from tests.support.nemesis_site import Engine
from tests.support.planted import DEFECTS

# Each site has two or three processes of its own, which mostly wait for each other.
SITES_AT_ONCE = 4
HOP_HOLD_SECONDS = 8.0


def main() -> int:
    """Attack every site and print the figures; returns 1 if the promise was broken anywhere."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="switchyard-chaos-") as folder:
        verdicts = asyncio.run(_attack_all(Path(folder), options))
    _print(summary(options.seed, verdicts))
    for verdict in verdicts:
        for complaint in verdict.complaints():
            _print(complaint)
    return 0 if all(verdict.holds for verdict in verdicts) else 1


async def _attack_all(folder: Path, options: argparse.Namespace) -> list[Verdict]:
    sites = [(engine, dedupe) for dedupe in options.classes for engine in options.engines]
    free = asyncio.Semaphore(SITES_AT_ONCE)

    async def attack_one(engine: Engine, dedupe: str) -> Verdict:
        async with free:
            verdict = await attack(
                folder / f"{engine}-{dedupe}",
                engine,
                dedupe,
                seed=options.seed,
                faults=-(-options.faults // len(sites)),
                seconds=options.seconds * SITES_AT_ONCE / len(sites),
                hop_hold_seconds=HOP_HOLD_SECONDS,
                bug=options.bug,
                kinds=[fault for fault in COMMON if fault.__name__ in options.kinds],
            )
            _print(f"{verdict.site}: {verdict.faults.total()} faults, {verdict.orders} orders, holds: {verdict.holds}")
            return verdict

    return list(await asyncio.gather(*(attack_one(engine, dedupe) for engine, dedupe in sites)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="draws the orders and the faults")
    parser.add_argument("--faults", type=int, default=500, help="in all, over all sites")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for the faults of all sites together")
    parser.add_argument("--classes", nargs="+", default=CLASSES, choices=CLASSES)
    parser.add_argument("--engines", nargs="+", default=get_args(Engine), choices=get_args(Engine))
    names = [fault.__name__ for fault in COMMON]
    parser.add_argument("--kinds", nargs="+", default=[], choices=names, help="only these faults")
    parser.add_argument("--bug", default=NO_BUG, choices=[NO_BUG, *DEFECTS], help="plant a bug: the run must then fail")
    return parser.parse_args()


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
