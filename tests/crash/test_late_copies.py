"""A proxy delivers an order long after its sender gave up: the venue, which executes every copy, executes one.

The judge is the venue's log.
"""

import time

import aiohttp
import pytest

from tests.support.cluster import Cluster
from tests.support.hop_proxy import hop_proxy
from tests.support.orders import place, until_statuses
from tests.support.polling import until

ORDER = b"POST /orders "
PROBE = b"GET /orders/probe-"
# The venue executes every copy, although its settings promise more: its log then shows each resend.
CLAIMS = {"VENUE_DEDUPE_SIM": "while_open", "VENUE_LOOKUP_SIM": "all"}
# Response time, window and lingering time end after 12 s, so that without the hold a copy would be sent by then.
HELD_SECONDS = 16.0
HOP_HOLD = {"VENUE_WINDOW_SEC_SIM": "1", "VENUE_HOP_HOLD_SEC_SIM": "30"}


async def test_an_order_that_a_proxy_holds_is_not_sent_again_within_the_hold(
    cluster: Cluster, session: aiohttp.ClientSession
) -> None:
    venue = await cluster.broker(dedupe="none").start()
    async with hop_proxy(venue.port) as proxy:
        process = cluster.process(**venue.client_settings(**CLAIMS, **HOP_HOLD, VENUE_URL_SIM=proxy.url))
        await process.start()
        proxy.hold(ORDER)
        order_id = await place(session, process, "held")
        await until(lambda: proxy.waiting == 1)
        held_at = time.monotonic()
        # A copy would be held too, and delivered with the first one.
        await until(lambda: proxy.waiting > 1 or time.monotonic() - held_at >= HELD_SECONDS, pause_seconds=0.1)
        proxy.release()
        await until_statuses(session, process, "FILLED")
        assert process.stop() == 0
    assert venue.executions() == {order_id: 1}


@pytest.mark.parametrize("offset", ["-3600", "3600"])
async def test_a_copy_of_an_order_that_was_sent_again_has_expired(
    cluster: Cluster, session: aiohttp.ClientSession, offset: str
) -> None:
    venue = await cluster.broker(f"--clock-offset={offset}", dedupe="none").start()
    async with hop_proxy(venue.port) as proxy:
        settings = venue.client_settings(**CLAIMS, VENUE_REQUEST_EXPIRY_SIM="true", VENUE_URL_SIM=proxy.url)
        process = await cluster.process(**settings).start()
        # The second probe follows the answer to the first, which shows the venue's clock.
        await until(lambda: sum(request.startswith(PROBE) for request in proxy.requests) > 1)
        await venue.set_faults(refused_5xx=1)
        order_id = await place(session, process, "refused")
        await until(lambda: "order_uncertain" in process.log)
        [late] = [request for request in proxy.delivered if request.startswith(ORDER)]
        await venue.clear_faults()
        await until(lambda: venue.executions() == {order_id: 1})
        assert b"REQUEST_EXPIRED" in await proxy.replay(late)
        await until_statuses(session, process, "FILLED")
        assert process.stop() == 0
    assert venue.executions() == {order_id: 1}
