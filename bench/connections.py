"""Measures how long one order takes to a broker on loopback, by how its connection is made.

`python -m bench.connections [ORDERS]`: each round sends one order on a reused, a new and a spare connection, one after
the other, so that the three forms share every disturbance. The broker is a process of its own and answers at once.
"""

import asyncio
import itertools
import multiprocessing
import socket
import sys
import time

import msgspec
import uvloop

from bench.percentiles import percentile
from switchyard.adapters.system_clock import SystemClock
from switchyard.adapters.venues.http.adapter import http_venue
from switchyard.domain.ids import VenueName
from switchyard.ports.venue import Accepted, Capabilities
from switchyard.venue.bridge import SENDS, Bridge
from switchyard.venue.transport import Pool
from tests.support.ports import free_port
from tests.support.scripted_server import reply
from tests.support.venue_orders import an_order

ORDERS = 3_000
WARM_UP = 200
# Between two rounds, as orders come from a strategy; a spare connection that was used is replaced meanwhile.
PAUSE_SECONDS = 0.005
FORMS = ("reused", "new", "spare")


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            order = msgspec.json.decode(await reader.readexactly(length))
            answer = {
                "broker_order_id": "brk-1",
                "accepted_at": "2026-01-05T09:00:00Z",
                "status": "accepted",
                "idempotency_key": order["idempotency_key"],
            }
            writer.write(reply(200, answer))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _serve(port: int) -> None:
    async def run() -> None:
        server = await asyncio.start_server(_answer, "127.0.0.1", port)
        await server.serve_forever()

    uvloop.run(run())


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _venue(form: str, port: int) -> Bridge:
    return http_venue(
        VenueName("broker"),
        url=f"http://127.0.0.1:{port}",
        capabilities=Capabilities(dedupe="permanent", lookup="none"),
        clock=SystemClock(),
        sends=SENDS if form == "spare" else Pool(SENDS.connections_max, reuses=form == "reused"),
    )


async def measure(port: int, orders: int) -> dict[str, list[float]]:
    """The milliseconds of each order, by form."""
    venues = {form: _venue(form, port) for form in FORMS}
    for venue in venues.values():
        await venue.start()
    taken: dict[str, list[float]] = {form: [] for form in FORMS}
    turns = itertools.cycle(itertools.permutations(FORMS))
    for number in range(-WARM_UP, orders):
        for form in next(turns):
            order = an_order(f"{form}-{number}")
            began = time.perf_counter()
            outcome = await venues[form].submit(order)
            ended = time.perf_counter()
            assert isinstance(outcome, Accepted), outcome
            if number >= 0:
                taken[form].append((ended - began) * 1000)
        await asyncio.sleep(PAUSE_SECONDS)
    for venue in venues.values():
        await venue.close()
    return taken


def main() -> None:
    """Print the table."""
    orders = int(sys.argv[1]) if len(sys.argv) > 1 else ORDERS
    port = free_port()
    broker = multiprocessing.Process(target=_serve, args=(port,), daemon=True)
    broker.start()
    while not _is_listening(port):
        time.sleep(0.01)
    taken = uvloop.run(measure(port, orders))
    print("| connection | p50 ms | p99 ms |\n|---|---|---|")
    for form, times in taken.items():
        print(f"| {form} | {percentile(times, 50):.2f} | {percentile(times, 99):.2f} |")
    broker.terminate()


if __name__ == "__main__":
    main()
