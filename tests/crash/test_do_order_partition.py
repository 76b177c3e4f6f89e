"""`/do/order` while its requests are held on their way: a repeated key never gets a second client order id."""

import asyncio
import signal
import time

import pytest

from tests.crash.test_do_order_broker import broker_and_gateway
from tests.support.cluster import Cluster
from tests.support.do_order import do_order, error
from tests.support.polling import until

KEYS = ("one", "two", "three")
# The end of a client order id counts the orders of its key.
FIRST_GENERATION = "00000"
HELD_SECONDS = 8.0
# Beyond the send deadline of an IOC order (2.5 s) and a resend that began just before it.
DEADLINE_SECONDS = 4.0
# After the venue continues: window and lingering time (6 s), and some more for a second order.
WATCHED_SECONDS = 10.0


@pytest.mark.parametrize("dedupe", ["forever", "open_only"])
async def test_a_key_repeated_during_a_partition_is_executed_once(cluster: Cluster, dedupe: str) -> None:
    async with broker_and_gateway(cluster, dedupe) as (venue, gateway):
        assert (await do_order(gateway, "first", time_in_force="IOC", price=None)).status == 201
        # The requests wait in the venue's input, and its engine takes them a second after its gateway read them.
        await venue.set_faults(accept_late=1)
        venue.send(signal.SIGSTOP)
        held_at = time.monotonic()
        try:
            lost = await asyncio.gather(*(do_order(gateway, key, time_in_force="IOC", price=None) for key in KEYS))
            assert {error(answer) for answer in lost} == {(504, "BROKER_TIMEOUT")}
            await until(lambda: time.monotonic() - held_at >= HELD_SECONDS, pause_seconds=0.1)
        finally:
            venue.send(signal.SIGCONT)
        continued_at = time.monotonic()

        async def is_watched() -> bool:
            await asyncio.gather(*(do_order(gateway, key, time_in_force="IOC", price=None) for key in KEYS))
            return sum(venue.orders().values()) > 1 + len(KEYS) or time.monotonic() - continued_at >= WATCHED_SECONDS

        await until(is_watched, pause_seconds=0.2)
        # An IOC order that was given up must not be sent again after its deadline. The kernel of the venue discards its
        # request with its connection, unless the stopped venue had accepted that: then the order is executed late.
        assert 1 < len(venue.orders()) <= 1 + len(KEYS)

        async def are_final() -> bool:
            repeats = await asyncio.gather(*(do_order(gateway, key, time_in_force="IOC", price=None) for key in KEYS))
            statuses[:] = sorted(str(repeat.json.get("status")) for repeat in repeats)
            return set(statuses) <= {"filled", "expired"}

        statuses: list[str] = []
        await until(are_final, lambda: str(statuses), pause_seconds=0.2)
        assert statuses.count("filled") == len(venue.orders()) - 1, "an executed order has another end than its fill"
        assert all(client_id.endswith(FIRST_GENERATION) for client_id in venue.orders()), "a second client order id"
        assert set(venue.orders().values()) == {1}


@pytest.mark.parametrize("dedupe", ["forever", "open_only"])
async def test_a_key_whose_order_is_proven_absent_is_not_tried_again(cluster: Cluster, dedupe: str) -> None:
    async with broker_and_gateway(cluster, dedupe) as (venue, gateway):
        await venue.set_faults(refused_5xx=1)
        sent_at = time.monotonic()
        assert error(await do_order(gateway, "k", time_in_force="IOC", price=None)) == (504, "BROKER_TIMEOUT")
        # With permanent deduplication the order is sent again until its deadline, and may then be executed.
        await until(lambda: time.monotonic() - sent_at >= DEADLINE_SECONDS, pause_seconds=0.1)
        await venue.clear_faults()

        async def has_ended() -> bool:
            repeat = await do_order(gateway, "k", time_in_force="IOC", price=None)
            return repeat.json.get("status") == "expired" or bool(venue.orders())

        await until(has_ended, pause_seconds=0.2)
        assert not venue.orders(), "the key was tried again under another client order id"
        final = await do_order(gateway, "k", time_in_force="IOC", price=None)
        assert (final.status, final.json["reason_code"]) == (200, "ABSENT_AT_VENUE")
        assert not venue.orders()
