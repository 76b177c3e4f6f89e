"""Clients that amend, cancel and kill over workers with faults, and the judge of what became of it."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

import msgspec

from switchyard.domain import decisions
from switchyard.domain.errors import OutcomeUnknown, RequestError, Unavailable
from switchyard.domain.ids import OrderId, VenueName
from switchyard.domain.journal.changes import Change
from switchyard.domain.journal.lines import AuditLine, state_digest
from switchyard.domain.journal.replay import Replay
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.amends import amend_of, amend_rows, open_amend
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.risk.claims import LimitSettings
from switchyard.domain.risk.kills import Kill
from switchyard.flow.intake.amends import AmendAnswer, AmendService
from switchyard.flow.intake.order_intake import DuplicateWatch
from switchyard.flow.risk.limit_claims import LimitClaims
from switchyard.flow.risk.pre_trade import OrderRate, PreTradeRisk
from switchyard.ports.journal import Journal
from switchyard.telemetry.metrics import Metrics
from tests.support.amend_venue import AmendingAdapter, AmendingVenue, Leg
from tests.support.sending_site import Field, Worker


class NoQuotes:
    """ports.quotes.Quotes without a market."""

    def quote(self, venue: VenueName, symbol: str) -> None:
        return None

    async def ask(self, venue: VenueName, symbol: str) -> None:
        return None


def a_service(worker: Worker) -> AmendService:
    """The desk of a worker's process."""
    field, metrics = worker.field, Metrics()
    journal = cast(Journal, worker.journal)
    return AmendService(
        catalogue=Catalogue(),
        quotes=cast(Any, NoQuotes()),
        risk=PreTradeRisk([], metrics),
        limits=LimitClaims(LimitSettings(), cast(Any, journal)),
        rate=OrderRate(),
        journal=journal,
        keys=field.database.keys,
        commit=worker.sequencer.commit,
        clock=field.clock,
        duplicates=DuplicateWatch(metrics, rate=None, logs=False),
        capabilities=dict.fromkeys(field.venues, field.capabilities),
        tag="test",
        key_ttl=timedelta(hours=24),
        resolution=timedelta(minutes=1),
    )


class AmendField(Field):
    """Orders that rest, with amends of them."""

    venue = AmendingVenue
    adapter = AmendingAdapter

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.answers: dict[str, AmendAnswer] = {}
        self.broken: list[str] = []
        self.requests: list[tuple[OrderId, dict[str, Any], str]] = []
        for venue in self.amending_venues:
            venue.on_change = self._check_reserved

    @property
    def amending_venues(self) -> list[AmendingVenue]:
        return [cast(AmendingVenue, venue) for venue in self.venues.values()]

    def trade(self) -> None:
        """Let the market move at one venue."""
        self.random.choice(self.amending_venues).trade(self.random, self.clock.now())

    async def amend_one(self, worker: Worker) -> None:
        """Have a client amend an order that it knows of, sometimes under a key that it used before."""
        if not self.acknowledged:
            return
        if self.requests and self.random.random() < 0.3:
            order_id, body, key = self.random.choice(self.requests[-5:])
        else:
            order_id, body, key = self._a_request()
            self.requests.append((order_id, body, key))
        order = self.database.journal.orders[order_id]
        version = order.version if self.random.random() < 0.1 else None
        try:
            amendment = await a_service(worker).amend(order.account_id, order_id, body, key, version=version)
        except (Unavailable, OutcomeUnknown, RequestError):
            return
        first = self.answers.setdefault(key, amendment.answer)
        if first.amend_id != amendment.answer.amend_id:
            self.broken.append(f"{key} stands for two amends: {first} and {amendment.answer}")

    def _a_request(self) -> tuple[OrderId, dict[str, Any], str]:
        body: dict[str, Any] = {}
        if self.random.random() < 0.8:
            body["qty"] = Decimal(self.random.choice([1, 200, 400, 700, 1000, 1500, 3000]))
        if not body or self.random.random() < 0.4:
            body["price"] = Decimal(self.random.choice(["149.5", "150.125", "151"]))
        return self.random.choice(sorted(self.acknowledged)[-30:]), body, f"amend-{len(self.requests)}"

    async def set_and_clear_kill(self, worker: Worker) -> None:
        """Set a kill for an account, look for amends that begin under it, and clear it."""
        account = self.random.choice(self.lines)[0]
        kill = Kill(
            kill_id=cast(Any, f"kill_{self.random.getrandbits(60)}"),
            account_id=cast(Any, account),
            set_by="fuzz",
            set_reason="fuzz",
            set_at=self.clock.now(),
            version=1,
        )
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await worker.sequencer.commit(decisions.set_kill(kill))
        await asyncio.sleep(self.random.uniform(0, 1))
        stored = self.database.journal.kills.get(kill.kill_id)
        while stored is not None and stored.is_active:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await worker.sequencer.commit(decisions.clear_kill(stored, "fuzz", "over", self.clock.now()))
            stored = self.database.journal.kills.get(kill.kill_id)

    def note(self, changes: Sequence[Change]) -> None:
        super().note(changes)
        for order in [order for change in changes for order in change.orders]:
            for venue in self.amending_venues:
                leg = venue.newest.get(order.venue_client_order_id)
                if leg is not None:
                    self._check_reserved(leg)

    def _check_reserved(self, leg: Leg) -> None:
        """What the venue may still fill is reserved here, unless the order has ended."""
        journal = self.database.journal
        state = journal.state(journal._by_client_id[leg.root])
        order = state.order
        if is_final(order.status) or not leg.is_open:
            return
        if max(order.qty, order.amend_qty or order.qty) < leg.qty:
            self.broken.append(f"{order.order_id} reserves {order.qty} or {order.amend_qty}, the venue has {leg.qty}")
        row = open_amend(state)
        known = {(order.qty, order.price)} | ({(amend_of(row).qty, amend_of(row).price)} if row is not None else set())
        if (leg.qty, leg.price) not in known:
            self.broken.append(f"{order.order_id} is {known} here, at the venue {leg.qty} @ {leg.price}")


def amend_violations(field: AmendField) -> Iterator[str]:
    """Every broken promise about amends, in words."""
    yield from field.broken
    journal = field.database.journal
    for venue in field.amending_venues:
        yield from (f"amend {amend_id} was carried out {n} times" for amend_id, n in venue.amends.items() if n > 1)
        for leg in venue.newest.values():
            yield from _differences(field, journal.state(journal._by_client_id[leg.root]), leg)
    for order_id in journal.orders:
        state = journal.state(order_id)
        for row in amend_rows(state):
            waits = state.row("new", 1).status == "uncertain"  # of a venue that cannot be asked
            if row.status in ("queued", "failed", "sending") and not waits:
                yield f"{row.outbox_id} never ended: {row}"
            if row.status == "uncertain" and field.capabilities.dedupe != "none":
                yield f"{row.outbox_id} stays in doubt, although the venue can be asked: {row}"
    for answer in field.answers.values():
        if not any(row.venue_client_order_id == answer.amend_id for row in amend_rows(journal.state(answer.order_id))):
            yield f"{answer} was acknowledged and is lost"
    yield from _replayed(field)


def _differences(field: AmendField, state: Any, leg: Leg) -> Iterator[str]:
    order, row = state.order, open_amend(state)
    if row is not None and row.status == "uncertain":
        return  # of a venue that cannot be asked: either is possible
    if (order.qty, order.price) != (leg.qty, leg.price) and field.capabilities.dedupe != "none":
        yield f"{order.order_id} is {order.qty} @ {order.price} here and {leg.qty} @ {leg.price} at the venue: {state}"
    if order.filled_qty != leg.filled:
        yield f"{order.order_id} is filled {order.filled_qty} here and {leg.filled} at the venue"
    ends = {"FILLED": "FILLED", "CANCELED": "CANCELED"}
    if leg.is_open == is_final(order.status) or (not leg.is_open and order.status != ends[leg.status]):
        yield f"{order.order_id} is {order.status} here and {leg.status} at the venue: {state}"
    if order.amend_qty is not None:
        yield f"{order.order_id} still reserves an amend: {state}"


def _replayed(field: AmendField) -> Iterator[str]:
    """The journal's lines make the same rows again."""
    journal, replay = field.database.journal, Replay()
    for event in journal.events.get(0, []):
        replay.apply(msgspec.json.decode(event.line, type=AuditLine))
    stored = sorted(journal.orders.values(), key=lambda order: order.order_id)
    if state_digest(replay.sorted_orders()) != state_digest(stored):
        yield "the replayed orders differ"
    for key, row in journal.outbox.items():
        if replay.outbox.get(key) != row:
            yield f"the replayed row differs: {replay.outbox.get(key)} instead of {row}"
    for key_id, entry in journal.keys.items():
        made = replay.keys.get(key_id)
        # Two results of one commit raise the version of a key once; a replay does not see commits.
        if made is None or msgspec.structs.replace(made, version=entry.version) != entry:
            yield f"the replayed key differs: {made} instead of {entry}"


def unsettled_amends(field: AmendField) -> list[OrderId]:
    """Orders with an amend or a cancel that waits or is under way."""
    outbox = field.database.journal.outbox
    return [
        row.order_id
        for row in outbox.values()
        if row.kind != "new"
        and row.status in ("queued", "failed", "sending")
        and outbox[row.order_id, "new", 1].status != "uncertain"
    ]
