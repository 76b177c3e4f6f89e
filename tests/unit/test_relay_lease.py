"""One relay is active: another takes over from one that is gone at once, from one that is silent after ten seconds."""

from datetime import timedelta

import pytest

from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import Place
from switchyard.flow.bus.relay import SILENCE_SECONDS_MAX, HeldLease
from switchyard.ports.bus import LeaseLost
from tests.support.memory.clock import ManualClock
from tests.support.memory.liveness import MemoryLiveness
from tests.support.memory.relay_leases import MemoryRelayLeases


class Relays:
    """Two relays of one database."""

    def __init__(self) -> None:
        self.clock, self.liveness = ManualClock(), MemoryLiveness()
        leases = MemoryRelayLeases()
        self.first, self.second = (
            HeldLease("events", WorkerId(name), leases=leases, liveness=self.liveness, clock=self.clock)
            for name in ("rly_1", "rly_2")
        )

    def wait(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))


async def test_a_relay_whose_process_is_gone_is_replaced_at_once() -> None:
    relays = Relays()
    await relays.first.take()
    await relays.second.take()
    assert (relays.first.held is not None, relays.second.held) == (True, None)
    relays.liveness.living.remove(WorkerId("rly_1"))
    await relays.second.take()
    assert relays.second.held is not None


async def test_a_silent_relay_is_replaced_and_cannot_move_the_place_any_more() -> None:
    relays = Relays()
    await relays.first.take()
    for seq in range(3):  # it renews: for as long as it does, nobody takes over
        await relays.second.take()
        assert relays.second.held is None
        relays.wait(SILENCE_SECONDS_MAX - 1)
        await relays.first.renew("topic", Place(1, seq, "a" * 64))
    await relays.second.take()
    relays.wait(SILENCE_SECONDS_MAX + 1)
    await relays.second.take()
    assert relays.second.held is not None
    assert relays.second.held.place == Place(1, 2, "a" * 64)
    with pytest.raises(LeaseLost):
        await relays.first.renew("topic", Place(1, 9, "b" * 64))
    await relays.second.renew("topic", Place(1, 3, "c" * 64))
