"""Corrections and busts change the gateway's position, in whatever order they arrive, and a replay finds the same."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import permutations
from typing import cast

import pytest
from msgspec.structs import replace

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.errors import JournalUnavailable
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.changes import Execution
from switchyard.domain.journal.lines import parse_line
from switchyard.domain.journal.replay import Replay
from switchyard.flow.executions.record import CURSOR_SECONDS
from switchyard.ports.queries import Queries
from tests.support.build import ACCOUNT, an_accept
from tests.support.databases import Database
from tests.support.recording import KEY, RecorderHarness, fills
from tests.support.wrapped import Forwarding

TOTAL = (ACCOUNT, ACCOUNT_TOTAL)


class _Raced(Forwarding):
    """The queries, with a look at the recorded executions during which something else happens."""

    def __init__(self, queries: Queries, executions: Callable[..., Awaitable[Mapping[str, Execution]]]) -> None:
        super().__init__(queries)
        self.executions = executions


async def check_replay(harness: RecorderHarness) -> None:
    """A replay of the journal ends with the positions of the database."""
    replay = Replay()
    for event in await harness.journal.read(0, 0, 1000):
        replay.apply(parse_line(event.line.encode() + b"\n"))
    held = await harness.journal.load_positions([KEY, TOTAL])
    assert replay.positions == held


@pytest.mark.parametrize("named", ["fill", "correct"])
async def test_fill_correction_and_bust_end_alike_in_every_order_of_arrival(database: Database, named: str) -> None:
    harness = RecorderHarness(database)
    expected = Decimal(0)
    for order in [*permutations(("fill", "correct", "bust")), *permutations(("fill", "correct"))]:
        [state] = await harness.orders(an_accept())
        [fill], [other] = fills([state], "100"), fills([state], "5")
        fill = replace(fill, last_price=Decimal(10))
        correction = replace(
            fill,
            exec_id=f"{fill.exec_id}-correct",
            exec_type="CORRECT",
            ref_exec_id=fill.exec_id,
            last_qty=Decimal(70),
            last_price=Decimal(11),
        )
        ref = fill.exec_id if named == "fill" else correction.exec_id
        bust = replace(fill, exec_id=f"{fill.exec_id}-bust", exec_type="CANCEL", ref_exec_id=ref, last_qty=Decimal(0))
        reports = {"fill": fill, "correct": correction, "bust": bust}
        # Each on a page of its own; a new process reads every second one.
        for number, name in enumerate(order):
            harness.venue.script.append(reports[name])
            harness.clock.advance(timedelta(seconds=CURSOR_SECONDS))  # the next process reads on from here
            if number % 2:
                harness.start()
            assert await harness.recorder.run_once() == 1
        harness.venue.script += [other, *(reports[name] for name in order)]  # all come again
        await harness.recorder.run_once()
        expected += 5 if "bust" in order else 75
        assert (await harness.position()).qty == expected, order
        assert (await harness.state(state)).order.filled_qty == 105
    assert harness.report_count("set_aside") == 0
    await check_replay(harness)


async def test_a_bust_realises_no_result_that_no_trade_made(database: Database) -> None:
    harness = RecorderHarness(database)
    buy, sell = await harness.orders(an_accept(), an_accept(side="SELL"))
    first, second = fills([buy, buy], "100")
    [closing] = fills([sell], "100")
    harness.venue.script = [
        replace(first, last_price=Decimal(10)),
        replace(second, last_price=Decimal(20)),
        replace(first, exec_id="bust-1", exec_type="CANCEL", ref_exec_id=first.exec_id, last_qty=Decimal(0)),
    ]
    await harness.recorder.run_once()
    position = await harness.position()
    assert (position.qty, position.cost_basis, position.realised_pnl) == (Decimal(100), Decimal(2000), Decimal(0))
    harness.venue.script += [
        replace(closing, last_price=Decimal(30)),
        replace(closing, exec_id="bust-2", exec_type="CANCEL", ref_exec_id=second.exec_id, last_qty=Decimal(0)),
    ]
    await harness.recorder.run_once()
    position = await harness.position()
    # Of the other order, so it is set aside; the venue names the right one next.
    assert (position.qty, harness.report_count("set_aside")) == (Decimal(0), 1)
    harness.venue.script.append(
        replace(second, exec_id="bust-3", exec_type="CANCEL", ref_exec_id=second.exec_id, last_qty=Decimal(0))
    )
    await harness.recorder.run_once()
    position = await harness.position()
    # Cash is exact: 3000 came in for a hundred sold.
    assert (position.qty, position.realised_pnl - position.cost_basis) == (Decimal(-100), Decimal(3000))
    await check_replay(harness)


async def test_a_process_that_is_killed_while_it_records_an_early_bust_leaves_it_to_the_next_ones(
    database: Database,
) -> None:
    harness = RecorderHarness(database)
    [state] = await harness.orders(an_accept())
    [fill] = fills([state], "100")
    bust = replace(fill, exec_id="bust-1", exec_type="CANCEL", ref_exec_id=fill.exec_id, last_qty=Decimal(0))
    harness.venue.script.append(bust)
    harness.crashes_before_cursor = True
    with pytest.raises(JournalUnavailable):
        await harness.recorder.run_once()
    harness.crashes_before_cursor = False
    harness.start()
    await harness.recorder.run_once()
    harness.start()
    harness.venue.script.append(fill)
    await harness.recorder.run_once()
    assert (await harness.position()).qty == 0
    await check_replay(harness)


async def test_an_execution_that_a_lookup_shows_is_revised_by_the_bust_that_another_process_has_read(
    database: Database,
) -> None:
    """A process that is behind in the reports finds the execution first, and the venue never reports it."""
    behind, ahead = RecorderHarness(database), RecorderHarness(database)
    [state, other] = await behind.orders(an_accept(), an_accept())
    [fill], [first] = fills([state], "100"), fills([other], "5")
    behind.venue.script.append(first)
    await behind.recorder.run_once()
    bust = replace(fill, exec_id="bust-1", exec_type="CANCEL", ref_exec_id=fill.exec_id, last_qty=Decimal(0))
    ahead.venue.script += [first, bust]
    await ahead.recorder.run_once()

    assert await behind.recorder.apply([fill]) == 1

    assert (await behind.position()).qty == 5
    await check_replay(behind)


async def test_a_bust_that_two_processes_read_at_once_is_looked_for_by_both(database: Database) -> None:
    late, first = RecorderHarness(database), RecorderHarness(database)
    [state] = await late.orders(an_accept())
    [fill], [earlier] = fills([state], "100"), fills([state], "5")
    for one in (late, first):
        one.venue.script.append(earlier)
        await one.recorder.run_once()
    bust = replace(fill, exec_id="bust-1", exec_type="CANCEL", ref_exec_id=fill.exec_id, last_qty=Decimal(0))
    known = late.recorder.revisions._queries.executions
    asked = 0

    async def executions(venue: VenueName, ids: Sequence[str]) -> Mapping[str, Execution]:
        """Let the other process record the bust after this one has looked for it."""
        nonlocal asked
        found, asked = await known(venue, ids), asked + 1
        if asked == 1:
            await first.recorder.run_once()
        return found

    late.recorder.revisions._queries = cast(Queries, _Raced(late.queries, executions))
    first.venue.script.append(bust)
    late.venue.script.append(bust)
    await late.recorder.run_once()
    late.venue.script.append(fill)
    await late.recorder.run_once()
    assert (await late.position()).qty == 5
    await check_replay(late)
