"""The paper exchange is killed and has every acknowledged order after its restart."""

import asyncio
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.paper.exchange import PaperExchange
from switchyard.domain.ids import VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.ports.venue import Accepted
from tests.support.process import clean_environment
from tests.support.venue_orders import an_order, read_reports

ACKNOWLEDGED_BEFORE_KILL = 2_000
CALLERS = 64


def exchange_at(path: Path) -> PaperExchange:
    return PaperExchange(VenueName("sim"), path=path, catalogue=Catalogue(), clock=SystemClock())


async def submit_until_killed(path: Path) -> None:
    """The process that is killed: it prints every acknowledgement."""
    exchange = exchange_at(path)
    await exchange.start()
    numbers = count()

    async def submit() -> None:
        for number in numbers:
            outcome = await exchange.submit(an_order(f"order-{number}"))
            assert isinstance(outcome, Accepted)
            os.write(1, f"order-{number} {outcome.venue_order_id}\n".encode())

    await asyncio.gather(*(submit() for _ in range(CALLERS)))


def acknowledged_before_a_kill(path: Path) -> dict[str, str]:
    """Run that process, kill it while it submits, and return the acknowledgements: client order id, venue order id."""
    command = [sys.executable, "-m", "tests.crash.test_paper_exchange_kill", str(path)]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(ACKNOWLEDGED_BEFORE_KILL)]
        finally:
            process.kill()
        lines += process.stdout
    assert process.returncode == -signal.SIGKILL
    return dict(line.split() for line in lines if line.endswith("\n"))


async def test_every_acknowledged_order_survives_a_kill_and_is_executed_once(tmp_path: Path) -> None:
    path = tmp_path / "paper.db"
    acknowledged = acknowledged_before_a_kill(path)
    assert len(acknowledged) >= ACKNOWLEDGED_BEFORE_KILL

    exchange = exchange_at(path)
    await exchange.start()
    outcomes = await asyncio.gather(*(exchange.submit(an_order(client_id)) for client_id in acknowledged))
    assert outcomes == [Accepted(venue_order_id) for venue_order_id in acknowledged.values()]
    await exchange.submit(an_order("the last one"))
    reports = await read_reports(exchange, len(acknowledged) + 1)
    while reports[-1].venue_client_order_id != "the last one":
        reports += (await exchange.reports(str(len(reports)), 100)).reports
    await exchange.close()

    reported = [report.venue_client_order_id for report in reports]
    assert acknowledged.keys() <= set(reported)
    assert len(set(reported)) == len(reported)
    assert {report.status for report in reports} == {"FILLED"}


if __name__ == "__main__":
    asyncio.run(submit_until_killed(Path(sys.argv[1])))
