"""Positions are written in the same commit as their fills and count each fill once, on every engine."""

from decimal import Decimal

import msgspec
import pytest

from switchyard.domain.accounts.positions import Position
from switchyard.domain.decisions import apply_report
from switchyard.domain.journal.changes import Change, Committed, Conflict, merged
from switchyard.domain.values import EXACT, canonical
from switchyard.ports.journal import PAGE_MAX, Journal
from switchyard.ports.queries import Queries
from tests.support.build import ACCOUNT, a_report, an_accept, numbered, state_after
from tests.support.databases import Database
from tests.support.journal_checks import commit, verified
from tests.support.memory.clock import START

KEY = (ACCOUNT, "USDJPY")


def a_fill(accepted: Change, position: Position | None, exec_id: str) -> Change:
    state = state_after(accepted)
    return apply_report(state, position, a_report(state, exec_id=exec_id), START)


async def held(journal: Journal) -> Position | None:
    return (await journal.load_positions([KEY])).get(KEY)


async def test_a_position_is_written_with_its_fill(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    assert await held(journal) is None
    filled = a_fill(accepted, None, "exec-1")

    await commit(journal, filled)

    [position] = filled.positions
    assert await held(journal) == position
    assert [position.qty, position.cost_basis, position.version] == [1000, 150_125, 1]
    other = (ACCOUNT, "EURUSD")
    assert await journal.load_positions([other, KEY]) == {KEY: position}


async def test_a_stale_position_rejects_the_whole_change(journal: Journal) -> None:
    first, second = an_accept(), an_accept()
    await commit(journal, first, second)
    await commit(journal, a_fill(first, None, "exec-1"))
    position = await held(journal)
    late = a_fill(second, None, "exec-2")

    assert await journal.append(0, "late", [late], START) == [Conflict()]

    assert await held(journal) == position
    order_id = second.orders[0].order_id
    assert await journal.load([order_id]) == {order_id: numbered(state_after(second), 2)}
    assert len(await verified(journal)) == 4
    await commit(journal, a_fill(second, position, "exec-2"))


async def test_a_position_of_a_rejected_change_does_not_change(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    filled = a_fill(accepted, None, "exec-1")
    await commit(journal, filled)

    again = a_fill(accepted, filled.positions[0], "exec-1")

    assert await journal.append(0, "again", [again], START) == [Conflict()]
    assert await held(journal) == filled.positions[0]


async def test_one_change_may_hold_several_fills_of_a_position(journal: Journal) -> None:
    accepted = [an_accept(), an_accept(side="SELL", qty=Decimal(300)), an_accept(account="acc-2")]
    await commit(journal, *accepted)
    bought = a_fill(accepted[0], None, "exec-1")
    sold = a_fill(accepted[1], bought.positions[0], "exec-2")
    elsewhere = a_fill(accepted[2], None, "exec-3")

    await commit(journal, merged([bought, sold, elsewhere]))

    position = await held(journal)
    assert position == sold.positions[0]
    assert position.version == 2
    assert len(await journal.load_positions([elsewhere.positions[0].key, KEY])) == 2


async def test_the_first_of_several_fills_names_the_expected_version(journal: Journal) -> None:
    accepted = [an_accept(), an_accept(), an_accept()]
    await commit(journal, *accepted)
    first = a_fill(accepted[0], None, "exec-1")
    second = a_fill(accepted[1], first.positions[0], "exec-2")
    third = a_fill(accepted[2], second.positions[0], "exec-3")

    assert await journal.append(0, "too early", [merged([second, third])], START) == [Conflict()]

    await commit(journal, first)
    await commit(journal, merged([second, third]))
    assert await held(journal) == third.positions[0]


@pytest.mark.parametrize("amount", ["0.00000001", "999999999999999", "999999999999999.12345678"])
async def test_amounts_keep_every_digit_in_canonical_form(journal: Journal, amount: str) -> None:
    exact = Decimal(amount)
    bought, sold = an_accept(qty=exact, price=exact), an_accept(qty=exact, price=Decimal("0.5"), side="SELL")
    await commit(journal, bought, sold)
    opened = a_fill(bought, None, "exec-1")
    await commit(journal, opened)

    position = await held(journal)
    assert position == opened.positions[0]
    # Compared as text: equal decimals may have different forms.
    assert str(position.cost_basis) == str(canonical(EXACT.multiply(exact, exact)))
    await commit(journal, a_fill(sold, position, "exec-2"))

    closed = await held(journal)
    assert closed is not None
    assert str(closed.qty) == "0"
    assert closed.realised_pnl == EXACT.subtract(EXACT.multiply(exact, Decimal("0.5")), EXACT.multiply(exact, exact))


async def test_positions_of_an_account_are_listed_in_pages(database: Database, queries: Queries) -> None:
    symbols = ["BTC", "a", "Ä", "日経225", "B"]
    accepted = [an_accept(symbol=symbol) for symbol in symbols] + [an_accept(account="acc-2", symbol="C")]
    await commit(database.journal, *accepted)
    fills = [a_fill(change, None, f"exec-{number}") for number, change in enumerate(accepted)]
    await commit(database.journal, *fills)

    first = await queries.positions(ACCOUNT, limit=3)
    rest = await queries.positions(ACCOUNT, after=first[-1].symbol, limit=PAGE_MAX * 10)

    assert [position.symbol for position in first + rest] == sorted(symbols, key=str.encode)
    assert {position.key: position for position in first + rest} == {
        position.key: position for change in fills[:-1] for position in change.positions
    }


async def test_a_report_without_a_fill_changes_no_position(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    state = state_after(accepted)
    acknowledged = apply_report(state, None, a_report(state, "WORKING", qty=Decimal(0)), START)

    assert acknowledged.positions == ()
    assert '"position"' not in "".join(event.tail for event in acknowledged.events)
    [outcome] = await journal.append(0, "acknowledged", [acknowledged], START)
    assert isinstance(outcome, Committed)


async def test_a_fill_without_a_price_counts_at_the_order_price(journal: Journal) -> None:
    accepted = an_accept()
    await commit(journal, accepted)
    state = state_after(accepted)
    report = msgspec.structs.replace(a_report(state), last_price=None)

    await commit(journal, apply_report(state, None, report, START))

    position = await held(journal)
    assert position is not None
    assert position.average_price == state.order.price
