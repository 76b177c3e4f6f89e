"""The check of a replay that a correction or bust moved the position as its figures say. Pure."""

from collections.abc import Mapping

from switchyard.domain.decisions.revise import revised
from switchyard.domain.events import position_fact
from switchyard.domain.facts import RevisionFact
from switchyard.domain.lines import AuditLine
from switchyard.domain.orders import Order
from switchyard.domain.positions import ACCOUNT_TOTAL, Position, PositionKey, account_total
from switchyard.domain.replay_mismatch import ReplayMismatch
from switchyard.domain.revised_positions import revised_total


def revised_positions(
    line: AuditLine, order: Order, held: Mapping[PositionKey, Position], fact: RevisionFact
) -> list[Position]:
    """The positions after the line, or ReplayMismatch; none where the revision took nothing back."""
    if fact.revised is None:
        if fact.position is not None or fact.account_total is not None:
            raise ReplayMismatch(line.seq, "a position without a revised execution")
        return []
    before = held.get((order.account_id, order.symbol))
    if before is None or fact.position is None:
        raise ReplayMismatch(line.seq, f"the position is missing after the revision {fact.exec_id}")
    now = fact.position.updated_at or order.updated_at
    after = revised(order, before, fact, now, fact.position.day)
    if position_fact(after, order) != fact.position:
        raise ReplayMismatch(line.seq, "the position does not follow from the revision")
    total = held.get((order.account_id, ACCOUNT_TOTAL)) or account_total(order.account_id, now)
    result = revised_total(total, before, after)
    shown = None if result is total else position_fact(result, order)
    if shown != fact.account_total:
        raise ReplayMismatch(line.seq, "the account's results do not follow from the revision")
    return [after] if result is total else [after, result]
