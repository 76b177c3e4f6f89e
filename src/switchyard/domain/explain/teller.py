"""What is known of an order while its events are told one after the other."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from switchyard.domain import fold
from switchyard.domain.facts import OrderChange, OutboxFact, ReportFact
from switchyard.domain.lifecycle import is_final
from switchyard.domain.money import average, plain
from switchyard.domain.orders import Order, average_price, remaining_qty
from switchyard.domain.outbox import OutboxKind

Kind = Literal["check", "route", "send", "doubt", "decision", "report", "amend", "cancel", "position", "end", "result"]


class Said(NamedTuple):
    """One sentence about an event."""

    kind: Kind
    text: str


class Teller:
    """An order as its events so far have made it; `row` is the order as it is now."""

    def __init__(self, row: Order, checks: Sequence[str]) -> None:
        self.row = row
        self.checks = checks
        """The names of the checks that a new order of this kind has today."""
        self.order: Order | None = None
        """None until the event that made its first version."""
        self.status = row.status
        self.report: ReportFact | None = None
        """The last report, until the event that shows its effect."""
        self._attempts: dict[tuple[OutboxKind, int], int] = {}
        self.in_doubt: set[tuple[OutboxKind, int]] = set()

    @property
    def venue(self) -> str:
        """The venue that has or gets the order at this moment."""
        return self.row.venue if self.order is None else self.order.venue

    def accept(self, order: Order) -> None:
        """Begin with the first version."""
        self.order = order
        self.status = order.status

    def change(self, change: OrderChange) -> bool:
        """Apply a later event; returns whether the order has ended with it."""
        had_ended = is_final(self.status)
        if self.order is not None and change.version == self.order.version + 1:
            self.order = fold.changed(self.order, change, self.report)
        self.status, self.report = change.status, None
        return is_final(change.status) and not had_ended

    def attempt(self, fact: OutboxFact) -> int:
        """The attempt of a row that an event is about."""
        key = (fact.kind, fact.number)
        if fact.attempt is not None:
            self._attempts[key] = fact.attempt
        return self._attempts.get(key, 1)

    def doubted(self, fact: OutboxFact) -> None:
        """Note a doubt about a row."""
        self.in_doubt.add((fact.kind, fact.number))

    def settled(self, fact: OutboxFact) -> bool:
        """End the doubt about a row; returns whether there was one."""
        key = (fact.kind, fact.number)
        was = key in self.in_doubt
        self.in_doubt.discard(key)
        return was

    def fills(self) -> str:
        """What is filled, of how much, and at which average."""
        order = self.order or self.row
        if not order.filled_qty:
            return f"nothing of {plain(order.qty)} is filled"
        mean = average_price(order)
        price = "" if mean is None else f" at an average of {plain(mean)}"
        rest = remaining_qty(order)
        left = f", {plain(rest)} left" if rest and not is_final(order.status) else ""
        return f"{plain(order.filled_qty)} of {plain(order.qty)} filled{price}{left}"

    def filled_with(self, report: ReportFact) -> str:
        """The running total with a report, of how much, and at which average."""
        if self.order is None:
            return f"{plain(report.filled_qty_total)} of {plain(self.row.qty)} so far"
        filled, notional = fold.with_fill(self.order, report)
        return f"{plain(filled)} of {plain(self.order.qty)} so far, at an average of {plain(average(notional, filled))}"
