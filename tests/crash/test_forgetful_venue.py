"""A venue that does not find filled orders and reports late: absent there does not prove that nothing was executed."""

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.orders import place, until_all
from tests.support.polling import until
from tests.support.process import Process
from tests.support.venue_process import VenueProcess

# Longer than the time after which 'absent' counts as proof (window, the sender's socket time-out, a few probes): a
# worker that takes 'absent' for 'not executed' acts before the reports come.
LATE_SECONDS = 15.0
NEVER_SECONDS = 3600.0
WINDOW = {"VENUE_WINDOW_SEC_SIM": "1"}


@pytest.fixture(params=["--lookup=open", "--fault=not_found_after_fill=1"])
def forgetful(request: pytest.FixtureRequest) -> str:
    """The venue's option that hides filled orders from its lookup."""
    return str(request.param)


async def broker_reporting_after(seconds: float, cluster: Cluster, forgetful: str) -> VenueProcess:
    faults = {"drop_answer": 1.0, "late_reports": seconds}
    return await cluster.broker(forgetful, dedupe="open_only", faults=faults).start()


async def started(cluster: Cluster, broker: VenueProcess, lookup: str) -> Process:
    """A process whose settings declare which orders the venue's lookup finds."""
    return await cluster.process(**broker.client_settings(**WINDOW, VENUE_LOOKUP_SIM=lookup)).start()


async def test_an_order_in_doubt_waits_for_its_report_and_is_executed_once(
    forgetful: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await broker_reporting_after(LATE_SECONDS, cluster, forgetful)
    process = await started(cluster, broker, "open")
    order_id = await place(session, process, "once")
    await until_all(session, process, lambda order: order["status"] == "UNKNOWN")
    await until_all(session, process, lambda order: order["status"] == "FILLED")
    assert broker.executions() == {order_id: 1}


async def test_declaring_a_lookup_of_ended_orders_that_the_venue_lacks_leads_to_a_second_execution(
    forgetful: str, cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    broker = await broker_reporting_after(NEVER_SECONDS, cluster, forgetful)
    process = await started(cluster, broker, "all")
    order_id = await place(session, process, "once")
    await until(lambda: broker.executions()[order_id] >= 2)
