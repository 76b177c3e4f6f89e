"""Reports that were filed as strays, over every database: they are applied, each once, when their order exists."""

from collections.abc import AsyncIterator
from decimal import Decimal

import pytest

from switchyard.domain.decisions import decide_by_hand, record_doubt
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.orders.reports import ExecutionIdScope
from switchyard.flow.executions.sync import StrayRecall
from tests.support.build import VENUE, a_report, an_accept, state_after
from tests.support.databases import Database
from tests.support.memory.clock import START
from tests.support.recording import RecorderHarness

TEN = Decimal(10)


@pytest.fixture
async def harness(database: Database) -> AsyncIterator[RecorderHarness]:
    yield RecorderHarness(database)


def recall_of(harness: RecorderHarness) -> StrayRecall:
    return StrayRecall(harness.venue, harness.recorder, queries=harness.queries)


@pytest.mark.parametrize("scope", ["venue", "symbol", "order"])
async def test_a_filed_fill_is_applied_once_after_the_verdict_sent(
    harness: RecorderHarness, scope: ExecutionIdScope
) -> None:
    harness.venue.execution_ids = scope
    accepted = an_accept()
    lost, other = state_after(accepted), state_after(an_accept(client_id="lost-2"))
    reports = [a_report(lost, "PARTIALLY_FILLED", exec_id=exec_id, qty=TEN) for exec_id in ("7", "8")]
    harness.venue.script = [*reports, a_report(other, exec_id="7", qty=TEN)]
    await harness.recorder.run_once()
    recall = recall_of(harness)
    assert await recall.run_once() == 0

    [state] = await harness.orders(accepted)
    doubt = record_doubt(state, state.row("new", 1), "EXECUTED_BEFORE", None, START)
    in_doubt = state_after(accepted, doubt)
    verdict = DecisionFact(verdict="sent", by="night desk", reason="console")
    await harness.orders(doubt, decide_by_hand(in_doubt, in_doubt.row("new", 1), verdict, START))
    assert (await harness.state(state)).order.status == "WORKING"

    assert await recall.run_once() == 2
    assert (await harness.state(state)).order.filled_qty == 20
    assert await recall.run_once() == await recall_of(harness).run_once() == 0
    harness.venue.script += reports  # the venue sends them again
    await harness.recorder.run_once()
    assert (await harness.state(state)).order.filled_qty == (await harness.position()).qty == 20


async def test_only_filed_reports_of_existing_orders_are_matched(harness: RecorderHarness) -> None:
    accepted = an_accept()
    lost = [state_after(accepted), state_after(an_accept(client_id="lost-2"))]
    harness.venue.script = [a_report(state, exec_id=f"{number}") for number, state in enumerate(lost)]
    await harness.recorder.run_once()
    assert await harness.queries.matched_strays(VENUE, limit=10) == []
    await harness.orders(accepted)
    [matched] = await harness.queries.matched_strays(VENUE, limit=10)
    assert (matched.exec_id, matched.stray_client_order_id) == ("0", lost[0].order.venue_client_order_id)
    assert await harness.queries.matched_strays(VENUE, after="0", limit=10) == []
