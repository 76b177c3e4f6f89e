"""The check of a replay that only orders that were not sent from here went to another venue. Pure."""

from switchyard.domain.facts import OrderFact
from switchyard.domain.lines import AuditLine
from switchyard.domain.orders import Order
from switchyard.domain.outbox import OutboxRow
from switchyard.domain.replay_kills import KillReplay
from switchyard.domain.replay_mismatch import ReplayMismatch


def check_reroute(line: AuditLine, before: Order, row: OutboxRow | None, fact: OrderFact, kills: KillReplay) -> None:
    """Raise ReplayMismatch where the line moves an order that may be at its venue, or that a kill covers.

    `before` and `row` are the order and its own outbox row before the line.
    """
    to = fact.order.venue
    if line.type != "OrderRerouted":
        if to is not None or fact.reroute is not None:
            raise ReplayMismatch(line.seq, f"{line.type} moves order {before.order_id} to another venue")
        return
    shown = fact.reroute
    if to is None or shown is None or (shown.from_venue, shown.to) != (before.venue, to) or to == before.venue:
        raise ReplayMismatch(line.seq, f"order {before.order_id} is at {before.venue}, and the line moves another way")
    if row is not None and row.status == "uncertain" and (not row.attempt or row.last_error == "RESTORED"):
        return  # found there after a restore: nothing is sent
    if row is None or row.bytes_sent or row.status not in ("queued", "failed") or before.status != "ACCEPTED":
        raise ReplayMismatch(line.seq, f"order {before.order_id} was moved although it may be at {before.venue}")
    kills.expect_none(line, before)
