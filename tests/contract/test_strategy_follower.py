"""The registry follows the journal: each strategy of an accepted order is registered once, wherever it was stopped."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from switchyard.adapters.pdca.store import SqlPdcaStore
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import Place
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.do_order import as_order, do_order_request
from switchyard.domain.strategies.registry import StrategyKey
from switchyard.flow.registry.follower import EVENTS_MAX, KNOWN_SECONDS, PAUSE_SECONDS_MAX, StrategyFollower
from switchyard.ports.strategies import PdcaStore, Registered, StrategyQuery
from switchyard.settings import load_settings
from tests.support.build import ACCOUNT, an_accept
from tests.support.journal_checks import commit
from tests.support.memory.clock import ManualClock
from tests.support.memory.database import MemoryDatabase
from tests.support.pdca import NOW, add_strategies, strategy_key


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PdcaStore]:
    store = await SqlPdcaStore.on_file(tmp_path / "pdca.db")
    yield store
    await store.close()


async def registered(store: PdcaStore) -> list[str]:
    return [strategy.strategy_id for strategy in (await store.strategies(StrategyQuery())).strategies]


async def test_strategies_of_orders_are_registered_once_by_any_number_of_followers(store: PdcaStore) -> None:
    journal = MemoryDatabase(ManualClock()).journal
    followers = [StrategyFollower(journal, store, clock=ManualClock()) for _ in range(2)]
    await add_strategies(store, "known", tags=("daily",), account=ACCOUNT)
    await commit(journal, an_accept(strategy="carry"), an_accept(), an_accept(strategy="known"))
    await commit(journal, an_accept(client_order_id='"strategy":"forged"', tags=('{"strategy":"forged"}',)))
    for follower in followers:
        await follower.run_once()
    assert await registered(store) == ["carry", "known"]
    assert (await store.place()).seq == (await journal.head(0)).seq
    await commit(journal, an_accept(strategy="later"), an_accept(strategy="carry"))
    for follower in followers:
        await follower.run_once()
    assert await registered(store) == ["carry", "known", "later"]
    known = await store.strategy(strategy_key("known", ACCOUNT))
    assert known is not None and known.tags == ("daily",)


async def test_an_order_registers_a_strategy_for_its_own_account_alone(store: PdcaStore) -> None:
    journal = MemoryDatabase(ManualClock()).journal
    clock = ManualClock()
    follower = StrategyFollower(journal, store, clock=clock)
    await add_strategies(store, "carry", tags=("daily",), account="ann")
    await commit(journal, an_accept(strategy="carry", account=AccountId("bob")))
    await follower.run_once()
    assert [(each.account_id, each.tags, each.registered) for each in await store.named("carry", None, 9)] == [
        ("ann", ("daily",), True),
        ("bob", (), False),
    ]
    # Once it was deleted, a later order registers it again.
    assert await store.delete_strategy(strategy_key("carry", "bob"))
    clock.advance(timedelta(seconds=KNOWN_SECONDS))
    await commit(journal, an_accept(strategy="carry", account=AccountId("bob")))
    await follower.run_once()
    assert [each.account_id for each in await store.named("carry", None, 9)] == ["ann", "bob"]


async def test_a_journal_of_another_history_is_read_from_the_beginning(store: PdcaStore) -> None:
    first = MemoryDatabase(ManualClock()).journal
    await commit(first, *(an_accept(strategy="old") for _ in range(3)))
    await StrategyFollower(first, store, clock=ManualClock()).run_once()
    for events in (1, 9):  # shorter than what was read, and longer
        restored = MemoryDatabase(ManualClock()).journal
        await commit(restored, *(an_accept(strategy=f"restored-{events}") for _ in range(events)))
        follower = StrategyFollower(restored, store, clock=ManualClock())
        assert await follower.run_once() == EVENTS_MAX  # at once again
        await follower.run_once()
        assert f"restored-{events}" in await registered(store)
        assert (await store.place()).hash == (await restored.head(0)).hash


async def test_a_full_registry_takes_no_more_and_its_reader_goes_on(
    store: PdcaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.adapters.pdca.strategies.STRATEGIES_MAX", 2)
    journal = MemoryDatabase(ManualClock()).journal
    await commit(journal, *(an_accept(strategy=name) for name in ("a", "b", "c")))
    keys = [strategy_key(name) for name in ("a", "b", "c")]
    result = await store.register(await store.place(), await store.place(), keys, NOW)
    assert (result.new, result.left_out) == (tuple(keys[:2]), (keys[2],))
    await StrategyFollower(journal, store, clock=ManualClock()).run_once()
    assert (await store.place()).seq == (await journal.head(0)).seq


async def test_the_labels_of_a_full_account_are_written_once_and_delay_no_other_account(
    store: PdcaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.adapters.pdca.strategies.STRATEGIES_MAX", 2)
    monkeypatch.setattr("switchyard.flow.registry.follower.EVENTS_MAX", 5)
    written: list[list[tuple[str | None, str]]] = []
    register = store.register

    async def counted(after: Place, place: Place, keys: Sequence[StrategyKey], now: datetime) -> Registered:
        written.append([(key.account_id, key.strategy_id) for key in keys])
        return await register(after, place, keys, now)

    monkeypatch.setattr(store, "register", counted)
    clock = ManualClock()
    journal = MemoryDatabase(clock).journal
    follower = StrategyFollower(journal, store, clock=clock)
    bob = AccountId("bob")
    await commit(journal, *(an_accept(strategy=f"b{number}", account=bob) for number in range(50)))
    await commit(journal, an_accept(strategy="mine", account=AccountId("ann")))
    while await follower.run_once():
        pass
    assert written == [[("bob", f"b{number}") for number in range(5)], [("ann", "mine")]]
    # After the refresh the account may have room again.
    assert await store.delete_strategy(strategy_key("b0", "bob"))
    clock.advance(timedelta(seconds=KNOWN_SECONDS))
    await commit(journal, an_accept(strategy="later", account=bob))
    await follower.run_once()
    assert written[2:] == [[("bob", "later")]]
    assert await store.strategy(strategy_key("later", "bob")) is not None


async def test_a_follower_that_is_behind_pauses_for_a_bounded_time(
    store: PdcaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    follower = StrategyFollower(MemoryDatabase(clock).journal, store, clock=clock)
    paused: list[float] = []

    async def slow_page() -> int:
        clock.advance(timedelta(seconds=5))
        return EVENTS_MAX

    async def pause(seconds: float) -> None:
        paused.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(follower, "run_once", slow_page)
    monkeypatch.setattr("switchyard.flow.registry.follower.asyncio.sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await follower.run()
    assert paused == [PAUSE_SECONDS_MAX]


def test_an_order_of_the_do_layer_names_its_strategy_with_a_tag() -> None:
    catalogue = Catalogue(load_settings({}).instruments)
    body = {"order_id": "o", "instrument": "USDJPY", "side": "BUY", "qty": Decimal(1), "idempotency_key": "k"}
    assert as_order(do_order_request({**body, "tags": ["pdca", "strategy:carry.v1"]}), catalogue).strategy == "carry.v1"
    assert as_order(do_order_request({**body, "tags": ["strategy"]}), catalogue).strategy is None
    for tags in (["strategy:"], ["strategy:Carry"], ["strategy:a", "strategy:b"]):
        with pytest.raises(InvalidField, match="tags"):
            as_order(do_order_request({**body, "tags": tags}), catalogue)
