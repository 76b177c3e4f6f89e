"""Commands to the paper exchange, and how the outcomes of a group reach their callers."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from switchyard.domain.ids import VenueClientOrderId
from switchyard.domain.orders.amends import Amend
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.ports.venue import Accepted, SendOutcome


class Command(NamedTuple):
    """A request for one or more orders, and the future of their outcomes that its caller awaits."""

    kind: Literal["submit", "cancel", "amend"]
    orders: Sequence[Order]
    outcomes: asyncio.Future[list[SendOutcome]]
    amend: Amend | None = None
    """Of the one order of an amend."""


def with_reports(
    group: Sequence[Command], outcomes: Sequence[SendOutcome], reports: Sequence[ExecutionReport]
) -> list[SendOutcome]:
    """The outcomes of the group; those of new orders with the reports on them."""
    by_order: dict[VenueClientOrderId, list[ExecutionReport]] = {}
    for report in reports:
        by_order.setdefault(report.venue_client_order_id, []).append(report)
    orders = [(command.kind, order) for command in group for order in command.orders]
    return [
        replace(outcome, reports=tuple(by_order.get(order.venue_client_order_id, ())))
        if kind == "submit" and isinstance(outcome, Accepted)
        else outcome
        for (kind, order), outcome in zip(orders, outcomes, strict=True)
    ]


def resolve(commands: Iterable[Command], outcomes: Sequence[SendOutcome]) -> None:
    """Give each command the outcomes of its orders."""
    start = 0
    for command in commands:
        end = start + len(command.orders)
        # Done if the caller was cancelled; its orders remain in the book.
        if not command.outcomes.done():
            command.outcomes.set_result(list(outcomes[start:end]))
        start = end
    assert start == len(outcomes)
