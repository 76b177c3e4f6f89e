"""The faults that the nemesis draws from: processes, venue, the path to it, database, clock, restores.

A fault takes its site through the whole trouble and ends it; only its consequences remain. All of them keep to what the
site's venue documents (window, hop hold, deduplication), so that a second execution is always the product's.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from tests.support.nemesis_site import WINDOW_SECONDS, Site
from tests.support.polling import until

Fault = Callable[[Site, Random], Awaitable[None]]

ORDERS = b"POST "
# Longer than a send waits for its answer (5 s) and the venue's window: whoever counts the window from the send alone
# believes that it is over.
GIVE_UP_SECONDS = (5.5 + WINDOW_SECONDS, 8.0 + WINDOW_SECONDS)

# What the venue may do to a request; each is set for a moment.
VENUE_FAULTS: tuple[dict[str, float], ...] = (
    {"drop_answer": 0.7},
    {"accepted_5xx": 0.7},
    {"refused_5xx": 0.7},
    {"accept_late": WINDOW_SECONDS / 2},
    {"rate_limit": 0.7},
    {"garbage": 0.7},
    {"close_mid_body": 0.7},
    {"slow_bytes": 0.05},
    {"conflict": 1.0, "drop_answer": 0.5},
    {"lookup_5xx": 0.8, "drop_answer": 0.5},
    {"lagging_lookup": WINDOW_SECONDS / 2, "drop_answer": 0.5},
    {"duplicate_reports": 0.5, "reordered_reports": 0.5},
    {"late_reports": 1.0},
    {"partial_fills": 3, "drop_answer": 0.3},
    {"refuse_connections": 1.0},
)


async def killed_sender(site: Site, chance: Random) -> None:
    """SIGKILL of the process that sends; sometimes a backup is made before it starts again."""
    await site.kill(site.sender)
    if chance.random() < 0.5:
        await asyncio.to_thread(site.back_up)
    await site.revive()


async def killed_gateway(site: Site, chance: Random) -> None:
    """SIGKILL of the process that takes the orders."""
    await site.kill(site.gateway)
    await site.revive()


async def paused_sender(site: Site, chance: Random) -> None:
    """SIGSTOP in mid-send, sometimes past the time after which a send counts as stuck."""
    site.sender.send(signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(0.5, 4.0))
    site.sender.send(signal.SIGCONT)


async def frozen_venue(site: Site, chance: Random) -> None:
    """The venue stops with requests in its input, and works through them afterwards."""
    site.simulator.send(signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(*GIVE_UP_SECONDS))
    site.simulator.send(signal.SIGCONT)


async def frozen_venue_and_killed_sender(site: Site, chance: Random) -> None:
    """The venue stops, the sender dies, and a new one starts while the venue does not answer."""
    site.simulator.send(signal.SIGSTOP)
    try:
        await asyncio.sleep(chance.uniform(0.3, 1.0))
        await site.kill(site.sender)
        await site.revive()
        await asyncio.sleep(chance.uniform(2.5, 4.0))
    finally:
        site.simulator.send(signal.SIGCONT)


async def venue_fault(site: Site, chance: Random) -> None:
    """The venue accepts and loses answers, answers with errors, lags, throttles, or reports twice and late."""
    faults = chance.choice(VENUE_FAULTS)
    await site.set_faults(faults)
    await asyncio.sleep(chance.uniform(0.7, 2.0))
    await site.set_faults(dict.fromkeys(faults, 0))


async def lost_answers(site: Site, chance: Random) -> None:
    """The venue executes orders, does not answer, and reports late: the plainest doubt there is."""
    await site.set_faults({"drop_answer": 1.0, "late_reports": 4.0})
    await asyncio.sleep(chance.uniform(1.0, 2.0))
    await site.set_faults({"drop_answer": 0.0, "late_reports": 0.0})


async def partition(site: Site, chance: Random) -> None:
    """No request, or no order, passes for some seconds; then the network delivers what no sender has destroyed."""
    site.proxy.partition(chance.choice((b"", ORDERS)))
    await asyncio.sleep(chance.uniform(*GIVE_UP_SECONDS))
    site.proxy.heal()


async def partition_and_killed_sender(site: Site, chance: Random) -> None:
    """The sender dies while its requests are on their way."""
    site.proxy.partition(ORDERS)
    await _until_waiting(site)
    await site.kill(site.sender)
    await site.revive()
    await asyncio.sleep(chance.uniform(2.5, 4.0))
    site.proxy.heal()


async def held_on_the_hop(site: Site, chance: Random) -> None:
    """A proxy keeps orders, for no longer than documented, and delivers them though their sender is dead."""
    release_at = time.monotonic() + 0.75 * site.hop_hold_seconds
    site.proxy.hold(ORDERS)
    await _until_waiting(site)
    await site.kill(site.sender)
    reviving = asyncio.create_task(site.revive())
    await asyncio.sleep(release_at - time.monotonic())
    site.proxy.release()
    await reviving


async def cut_connections(site: Site, chance: Random) -> None:
    """Connections are reset, in the middle of a request, of an answer, or all of them."""
    match chance.choice(("request", "answer", "all")):
        case "all":
            site.proxy.cut()
        case "request":
            site.proxy.cut_next("request", ORDERS)
        case _:
            site.proxy.cut_next("answer", ORDERS)
    await asyncio.sleep(chance.uniform(0.3, 1.0))
    site.proxy.heal()


async def half_open_connections(site: Site, chance: Random) -> None:
    """Connections stay established, and nothing passes."""
    site.proxy.blackhole()
    await asyncio.sleep(chance.uniform(1.0, 3.0))
    site.proxy.heal()


async def repeated_by_the_hop(site: Site, chance: Random) -> None:
    """A proxy that delivers every order twice, where the venue documents that it recognises a repeat."""
    site.proxy.duplicate(ORDERS)
    await asyncio.sleep(chance.uniform(0.5, 1.5))
    site.proxy.heal()


async def stepped_clock(site: Site, chance: Random) -> None:
    """The wall clock of the sender steps while orders are in doubt."""
    await site.set_faults({"accept_late": WINDOW_SECONDS / 2, "timed_share": 0.7})
    await asyncio.sleep(0.5)
    site.sender.step(chance.choice((60.0, 3600.0, -60.0, -3600.0)))
    # A process looks at its database's clock every 10 s; a new one does so at once.
    await site.kill(site.sender)
    await site.revive()
    await asyncio.sleep(chance.uniform(0.5, 1.0))
    await site.set_faults({"accept_late": 0, "timed_share": 1})
    site.sender.step(0.0)


async def killed_database(site: Site, chance: Random) -> None:
    """PostgreSQL crashes and recovers from its log."""
    assert site.server is not None
    await asyncio.to_thread(site.server.kill)
    await asyncio.sleep(chance.uniform(0.1, 1.0))
    await asyncio.to_thread(site.server.start)


async def restored_backup(site: Site, chance: Random) -> None:
    """An older database, or a whole older folder, is put back; the client repeats the keys that it may have lost."""
    if not site.has_backup:
        await site.kill(site.sender)
        await asyncio.to_thread(site.back_up)
        await site.revive()
        await asyncio.sleep(chance.uniform(1.0, 2.0))  # orders that the backup does not have
    for process in site.processes:
        await site.kill(process)
    lost = await asyncio.to_thread(lambda: site.restore(whole_folder=chance.random() < 0.5))
    site.client.forget(lost)
    await site.revive()
    await site.client.insist(lost)


async def _until_waiting(site: Site) -> None:
    """Wait until the proxy holds a request; under load that is soon, and a fault without one is harmless."""
    with contextlib.suppress(AssertionError):
        await until(lambda: site.proxy.waiting > 0, seconds_max=2.0)


COMMON: tuple[Fault, ...] = (
    killed_sender,
    paused_sender,
    frozen_venue,
    frozen_venue_and_killed_sender,
    venue_fault,
    lost_answers,
    partition,
    partition_and_killed_sender,
    held_on_the_hop,
    cut_connections,
    half_open_connections,
    stepped_clock,
    restored_backup,
)


def faults_of(site: Site) -> Sequence[Fault]:
    """The faults that this site is exposed to; venue faults come more often, since there are many of them."""
    faults = [*COMMON, venue_fault, venue_fault]
    if site.server is not None:
        faults += [killed_gateway, killed_database]
    if site.dedupe in ("permanent", "ttl"):
        faults.append(repeated_by_the_hop)
    return faults
