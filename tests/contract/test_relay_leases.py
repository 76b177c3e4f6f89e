"""The contract of `RelayLeases`, on every engine."""

import pytest

from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.lines import Place
from switchyard.ports.bus import LeaseLost
from tests.support.databases import Database

ONE, OTHER = WorkerId("one"), WorkerId("other")


async def test_a_lease_has_one_owner_who_alone_moves_its_place(database: Database) -> None:
    leases = database.relay_leases
    assert await leases.lease("orders") is None
    first = await leases.claim("orders", ONE, None)
    assert first is not None
    assert (first.owner, first.generation, first.beat, first.place) == (ONE, 1, 0, Place())
    assert await leases.claim("orders", OTHER, None) is None

    second = await leases.claim("orders", OTHER, first)
    assert second is not None
    assert (second.owner, second.generation) == (OTHER, 2)
    with pytest.raises(LeaseLost):
        await leases.renew(first, "id/3", Place(1, 5, "a" * 64))

    renewed = await leases.renew(second, "id/3", Place(1, 5, "a" * 64))
    assert (renewed.topic_id, renewed.place, renewed.beat) == ("id/3", Place(1, 5, "a" * 64), 1)
    assert await leases.lease("orders") == renewed
    assert await leases.claim("orders", ONE, second) is None
