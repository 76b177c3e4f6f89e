"""Judges what a run of workers did, by the venue's own log and the journal."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.ids import OrderId
from switchyard.domain.orders.order import ended_unsent
from switchyard.flow.sending.sends import line_of
from switchyard.ports.venue import SEND_LIMIT
from tests.support.memory.clock import START
from tests.support.sending_faults import Departure
from tests.support.sending_site import Field

# Outcomes of attempts that ended here, without a byte at the venue.
NOT_SENT = ("ATTEMPT_STALE", "TURN_TIMEOUT", "DEADLINE_PASSED")


def violations(field: Field) -> Iterator[str]:
    """Every broken promise, in words."""
    yield from _executions(field)
    yield from _ends(field)
    yield from _fills(field)
    yield from _passed(field)
    yield from _late(field)
    yield from _attempts(field)
    for worker in field.living:
        if leftovers := worker.leftovers():
            yield f"{worker.name} has not come to rest: {leftovers}"
        yield from (f"{worker.name} failed: {failure}" for failure in worker.failures)
    for worker, call in field.calls:
        if not call.done():
            if worker.is_alive:
                yield f"a caller was not answered: {call}"
        elif not call.cancelled() and (error := call.exception()) is not None:
            yield f"a caller's error: {error!r}"


def _executions(field: Field) -> Iterator[str]:
    for client_id, count in field.executed.items():
        if count > 1:
            yield f"{client_id} was executed {count} times"


def _ends(field: Field) -> Iterator[str]:
    orders, outbox, executed = field.database.journal.orders, field.database.journal.outbox, field.executed
    for order_id in field.acknowledged - orders.keys():
        yield f"{order_id} was acknowledged and is lost"
    for order in orders.values():
        row, was_executed = outbox[order.order_id, "new", 1], order.venue_client_order_id in executed
        if row.status in ("queued", "failed", "sending"):
            yield f"{order.order_id} never ended: {row}"
        if row.status == "uncertain" and (was_executed or field.capabilities.dedupe != "none"):
            yield f"{order.order_id} stays in doubt, although the venue can be asked: {row}"
        if was_executed and ended_unsent(order):
            yield f"{order.order_id} was executed and has ended as unsent: {order.status} {order.reason}"
        if row.status == "sent" and not was_executed:
            yield f"{order.order_id} counts as sent and is not at the venue: {order.status} {row}"


def _fills(field: Field) -> Iterator[str]:
    """Each reported execution counts once, whether it came with an answer, from the stream, or both."""
    if field.plan_rejects:
        return  # a report whose commit the database rejects is set aside
    reported: Counter[OrderId] = Counter()
    journal = field.database.journal
    for venue in field.venues.values():
        for report in {report.exec_id: report for report in venue.reports}.values():
            reported[journal._by_client_id[report.venue_client_order_id]] += int(report.last_qty)
    for order in journal.orders.values():
        if order.filled_qty != reported[order.order_id]:
            yield f"{order.order_id} is filled {order.filled_qty} of {reported[order.order_id]} reported"
    held = sum(position.qty for position in journal.positions.values() if position.symbol != ACCOUNT_TOTAL)
    if held != reported.total():
        yield f"positions hold {held} of {reported.total()} reported"


def _passed(field: Field) -> Iterator[str]:
    """First sends of an account and symbol to a venue leave in journal order."""
    first: dict[OrderId, int] = {}
    departures = field.departures
    for place, departure in enumerate(departures):
        first.setdefault(departure.order.order_id, place)
    lines: dict[object, list[tuple[int, OrderId]]] = {}
    for order_id, place in first.items():
        departure = departures[place]
        if not _lost_its_place(field, order_id, departure.at):
            lines.setdefault((line_of(departure.order), departure.order.venue), []).append((place, order_id))
    outbox = field.database.journal.outbox
    for line, departed in lines.items():
        by_journal = sorted(departed, key=lambda entry: outbox[entry[1], "new", 1].seq)
        for earlier, later in pairwise(by_journal):
            if earlier[0] > later[0] and _waited_there(field, earlier[1], departures[later[0]]):
                yield f"{line}: {later[1]} passed {earlier[1]}\n{_story(field, later[1])}\n{_story(field, earlier[1])}"


def _waited_there(field: Field, order_id: OrderId, departure: Departure) -> bool:
    """Whether the order was in the queue of the venue for which another one left; it may have been at another one."""
    rows = [row for at, row in field.history[order_id] if at <= departure.at]
    return bool(rows) and rows[-1].venue == departure.order.venue


def _late(field: Field) -> Iterator[str]:
    """A DAY or GTD order does not leave after its end, except for the time that a send takes that began before."""
    for departure in field.departures:
        expires_at = departure.order.expires_at
        if expires_at is not None and START + timedelta(seconds=departure.at) >= expires_at + SEND_LIMIT:
            yield f"{departure.order.order_id} left after {expires_at}\n{_story(field, departure.order.order_id)}"


def _lost_its_place(field: Field, order_id: OrderId, departed_at: float) -> bool:
    """Whether an attempt failed at the venue, or came into doubt, before the order left for the first time."""
    return any(
        at <= departed_at and row.status in ("failed", "uncertain") and row.last_error != "ATTEMPT_STALE"
        for at, row in field.history[order_id]
    )


def _attempts(field: Field) -> Iterator[str]:
    departed = Counter(departure.order.order_id for departure in field.departures)
    for order_id, versions in field.history.items():
        begun = {row.attempt for _, row in versions if row.status == "sending"}
        unsent = {row.attempt for _, row in versions if row.status in ("failed", "dead") and row.last_error in NOT_SENT}
        if departed[order_id] > len(begun - unsent):
            yield f"{order_id} left {departed[order_id]} times\n{_story(field, order_id)}"
        killed = {worker.name for worker in field.workers if not worker.is_alive}
        for (_, before), (at, after) in pairwise(versions):
            is_taken_for_dead = after.last_error == "SENDER_DIED" and before.status == "sending"
            if is_taken_for_dead and before.worker not in killed and not field.plan_rejects:
                yield f"{order_id}: a living sender was taken for dead at {at}\n{_story(field, order_id)}"


def _story(field: Field, order_id: OrderId) -> str:
    lines = [
        f"  {at:9.3f} {row.status} attempt {row.attempt} {row.last_error} {row.worker} at {row.venue} lane {row.lane}"
        for at, row in field.history[order_id]
    ]
    lines += [
        f"  {departure.at:9.3f} left from {departure.worker}"
        for departure in field.departures
        if departure.order.order_id == order_id
    ]
    seq = field.database.journal.outbox[order_id, "new", 1].seq
    return f"{order_id} seq {seq}\n" + "\n".join(sorted(lines))
