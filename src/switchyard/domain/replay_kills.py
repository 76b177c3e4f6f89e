"""The kills of a replay: the rows that their lines make, and the check that nothing was placed under one. Pure."""

from collections.abc import Iterable

import msgspec

from switchyard.domain.facts import KillClearedFact, KillFact
from switchyard.domain.ids import KillId
from switchyard.domain.kills import Kill, KillOrder, covering
from switchyard.domain.lifecycle import is_final
from switchyard.domain.lines import AuditLine
from switchyard.domain.orders import Order
from switchyard.domain.replay_mismatch import ReplayMismatch


class KillReplay:
    """The kills after the lines so far, and the orders that each of them covered."""

    def __init__(self) -> None:
        self.rows: dict[KillId, Kill] = {}
        self.orders: list[KillOrder] = []
        self._active: dict[KillId, Kill] = {}

    def set(self, line: AuditLine, fact: KillFact, orders: Iterable[Order]) -> None:
        """Apply a `KillSwitchSet`; `orders` are all orders before it."""
        if fact.kill_id in self.rows:
            raise ReplayMismatch(line.seq, f"kill {fact.kill_id} was set before")
        kill = Kill(
            kill_id=fact.kill_id,
            account_id=fact.account_id,
            strategy=fact.strategy,
            venue=fact.venue,
            symbol=fact.symbol,
            mode=fact.mode,
            set_by=fact.by,
            set_reason=fact.reason,
            set_at=fact.set_at,
            version=1,
            seq=line.seq,
        )
        self.rows[kill.kill_id] = self._active[kill.kill_id] = kill
        self.orders += [
            KillOrder(kill.kill_id, order.order_id)
            for order in orders
            if not is_final(order.status) and kill.covers(order)
        ]

    def clear(self, line: AuditLine, fact: KillClearedFact) -> None:
        """Apply a `KillSwitchCleared`."""
        kill = self._active.pop(fact.kill_id, None)
        if kill is None:
            raise ReplayMismatch(line.seq, f"kill {fact.kill_id} is not active")
        self.rows[kill.kill_id] = msgspec.structs.replace(
            kill,
            cleared_by=fact.by,
            cleared_reason=fact.reason,
            cleared_at=fact.cleared_at,
            version=kill.version + 1,
        )

    def expect_none(self, line: AuditLine, order: Order) -> None:
        """Raise ReplayMismatch where an active kill covers an order that the line accepts or begins to send."""
        kill = covering(self._active.values(), order) if self._active else None
        if kill is not None:
            raise ReplayMismatch(line.seq, f"order {order.order_id} was placed although kill {kill.kill_id} covers it")
