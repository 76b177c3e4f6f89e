"""The bridge from an adapter to the flow: makes messages of orders, and outcomes of what the venue said.

An adapter says what the venue answered; this module alone decides what that means: proven unsent, rejected, accepted
or in doubt. It calls the adapter and nothing else, and keeps no state but the venue's clock. What passes between it
and the adapter has the venue's symbols, accounts and form of client order ids.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Final, TypeVar, assert_never

import msgspec
import structlog
from msgspec.structs import replace

from switchyard.domain.ids import AccountId, VenueClientOrderId, VenueName, carries, from_venue, to_venue
from switchyard.domain.orders.amends import AMENDS_MAX, Amend, Amounts, current_id
from switchyard.domain.orders.order import Order, TimeInForce
from switchyard.domain.orders.reasons import RejectCode, bounded_detail, printable
from switchyard.domain.orders.reports import ExecutionReport
from switchyard.domain.reconcile.breaks import StatementFill
from switchyard.domain.values import canonical
from switchyard.ports.clock import Clock
from switchyard.ports.venue import (
    SEND_LIMIT,
    Accepted,
    Ambiguous,
    Capabilities,
    NeverReceived,
    OnDeparture,
    OrderToFind,
    ProbeResult,
    ReportPage,
    SendOutcome,
    StatementPage,
    UnreadableReport,
    Unsent,
    VenueAmend,
    VenueFill,
    VenueOrder,
    VenueRejected,
    VenueUnavailable,
    ignore_departure,
    supports,
)
from switchyard.venue.credentials import ASK_SECONDS, Credential, Question
from switchyard.venue.interface import (
    Adapter,
    AmendOrder,
    Answer,
    CancelOrder,
    CancelsAfter,
    CancelsAll,
    Descriptor,
    Fill,
    Found,
    HasStatement,
    Meaning,
    Members,
    Message,
    NewOrder,
    OrderRef,
    Refused,
    Report,
    StatementLine,
    Took,
    Unclear,
    Unreadable,
)
from switchyard.venue.transport import CONNECT_SECONDS, BrokerResponse, Exchange, Lost, NotSent, Pool, Transport
from switchyard.venue.wire import ANSWER_BYTES_MAX, Changes, HttpWire, VenueTime

log = structlog.get_logger()

_T = TypeVar("_T")

# From the first byte sent to the last byte read, by time in force. An IOC order is useless after its send deadline.
RESPONSE_SECONDS: Final[Mapping[TimeInForce, float]] = MappingProxyType(
    {"IOC": 2.5, "FOK": 5.0, "GTC": 5.0, "DAY": 5.0, "GTD": 5.0}
)
# As many connections as a worker has send slots by default (OUTBOX_BATCH_SIZE times OUTBOX_PARALLELISM). Spare ones are
# enough for two orders at once after a quiet time, and for a claimed batch under load.
SENDS: Final = Pool(128, spares_min=2, spares_max=32)
# Queries use a separate pool, so that orders in doubt can be looked up while every send hangs. One spare connection is
# enough to read the next reports without a handshake.
QUERIES: Final = Pool(16, spares_min=1, spares_max=4)
# With less time for an answer, the cancel of an order in the place of another one waits for the next attempt.
CANCEL_SECONDS_MIN: Final = 1.0
# A venue that asks for a longer pause is down, not busy: send again after this time.
RETRY_AFTER_MAX: Final = timedelta(hours=1)
CURSOR_LENGTH_MAX: Final = 1_024
# Enough to recognise the order and the fill; a log line should not carry more.
UNREADABLE_LENGTH_MAX: Final = 2_000
# A lookup that says so settles an order in doubt without a fill.
_ENDED: Final = frozenset({"CANCELED", "REJECTED", "EXPIRED"})
# Accepted by a gateway with another adapter, or before the adapter had this form.
_LACKS_ROOM: Final = "the venue's form of client order ids has no room for this one"
_LACKS_TIME: Final = Unsent("VENUE_DOWN", "its clock is not known yet")

# Meanings that only some messages can have.
_ANSWERS: Final[Mapping[Meaning, type | tuple[type, ...]]] = MappingProxyType(
    {
        "unknown_order": (CancelOrder, AmendOrder),
        "order_final": (CancelOrder, AmendOrder),
        "stale_amend": AmendOrder,
    }
)

_Members = list[tuple[str, object]]


def _good_till(order: Order) -> datetime | None:
    """When the venue ends a GTD order; a DAY order ends with the venue's own trading day."""
    return order.expires_at if order.time_in_force == "GTD" else None


class VenueNames:
    """The venue's names; a symbol without an entry has the same name there."""

    def __init__(
        self,
        accounts: Mapping[AccountId, str] = MappingProxyType({}),
        symbols: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        assert len(set(symbols.values())) == len(symbols), "two symbols have one name at the venue"
        self._accounts = accounts
        self._symbols = symbols
        self._ours = {theirs: ours for ours, theirs in symbols.items()}
        # Several accounts of ours may trade in one of the venue's: then its name does not tell which.
        there = list(accounts.values())
        self._accounts_here = {theirs: ours for ours, theirs in accounts.items() if there.count(theirs) == 1}

    def lacks(self, account: AccountId) -> bool:
        """Whether accounts are mapped and this one is not: its orders must not go to another one's account."""
        return bool(self._accounts) and account not in self._accounts

    def account(self, account: AccountId) -> str | None:
        """The venue's name of an account; None if accounts are not mapped."""
        return self._accounts.get(account)

    def symbol_there(self, symbol: str) -> str:
        """The venue's name of our symbol."""
        return self._symbols.get(symbol, symbol)

    def symbol_here(self, symbol: str) -> str:
        """Our name of the venue's symbol."""
        return self._ours.get(symbol, symbol)

    def account_here(self, account: str) -> AccountId | None:
        """Our account that alone has this name at the venue."""
        return self._accounts_here.get(account)


class Way(msgspec.Struct, frozen=True):
    """The address of a venue over HTTP, and the connections to it."""

    url: str
    sends: Pool = SENDS
    """For orders, amends and cancels."""
    queries: Pool = QUERIES
    note_unasked: Callable[[], None] = lambda: None
    """As in `Transport`."""


class Bridge:
    """ports.venue.Venue over an adapter."""

    def __init__(
        self,
        name: VenueName,
        descriptor: Descriptor,
        adapter: Adapter,
        *,
        clock: Clock,
        way: Way,
        capabilities: Capabilities | None = None,
        codes: Mapping[str, Meaning] = MappingProxyType({}),
        names: VenueNames | None = None,
        response_seconds: Mapping[TimeInForce, float] = RESPONSE_SECONDS,
        credential: Credential | None = None,
    ) -> None:
        """`capabilities`: those of the descriptor, weakened by settings; `codes` are added to the descriptor's."""
        assert CONNECT_SECONDS + max(response_seconds.values()) <= SEND_LIMIT.total_seconds()
        self.name = name
        self.descriptor = descriptor
        self.adapter = adapter
        self.capabilities = capabilities or descriptor.capabilities
        self.names = names or VenueNames()
        self.credential = credential or Credential(name, {}, clock)
        self.time = VenueTime(clock, descriptor.time_header)
        self._id_form = descriptor.id_form
        self._clock = clock
        assert not way.sends.reuses or self.capabilities.dedupe == "permanent", (
            "a second response would repeat an order"
        )
        assert not way.queries.reuses, "an empty page in answer to another query would be believed"
        self._sends, self._queries = (
            Transport(way.url, pool, note_unasked=way.note_unasked) for pool in (way.sends, way.queries)
        )
        self._response_seconds = response_seconds
        self._is_started = False
        self._rules = AnswerRules(
            codes={**descriptor.codes, **codes},
            members=descriptor.members,
            believes_unsure=way.sends.reuses,
        )

    @property
    def clock_offset(self) -> timedelta | None:
        """How far the venue's clock is ahead of ours, as its last answers show it."""
        return self.time.skew if self.time.is_known else None

    async def start(self) -> None:
        """Open connections ahead of the first order."""
        self._is_started = True
        await self._sends.start()
        await self._queries.start()
        await self.adapter.open()

    async def close(self) -> None:
        """Close every connection; sends in flight end in doubt. May be started again."""
        if not self._is_started:
            return
        self._is_started = False
        await self.adapter.close()
        await self._sends.close()
        await self._queries.close()

    async def submit(self, order: Order, on_departure: OnDeparture = ignore_departure) -> SendOutcome:
        """Send an order under its `venue_client_order_id`."""
        if not supports(self.capabilities, order):
            # Accepted by a gateway with other settings. A venue that ignores `stop_price` would execute it at once.
            return VenueRejected("BROKER_REJECTED", "UNSUPPORTED_BY_VENUE")
        if self._lacks_time:
            return _LACKS_TIME
        if self.names.lacks(order.account_id):
            setting = f"VENUE_ACCOUNTS_{self.name.upper()}"
            return VenueRejected("UNAUTHORIZED", f"{setting} has no account of {self.name} for {order.account_id}")
        if not self._carries(order.venue_client_order_id):
            return VenueRejected("BROKER_REJECTED", _LACKS_ROOM)
        message = NewOrder(
            client_order_id=self._id_there(order.venue_client_order_id),
            symbol=self.names.symbol_there(order.symbol),
            side=order.side,
            type=order.type,
            time_in_force=order.time_in_force,
            qty=order.qty,
            price=order.price,
            stop_price=order.stop_price,
            reduce_only=self._is_reduce_only(order),
            post_only=order.post_only,
            display_qty=order.display_qty,
            good_till=_good_till(order),
            account=self.names.account(order.account_id),
            attempted_at=self._attempted_at(order),
            expires_at=self._expires_at(order),
            trace_id=order.trace_id or order.order_id,
            requested_at=order.requested_at,
        )
        wire = self._wire(self._response_seconds[order.time_in_force], on_departure, changes="message")
        outcome = await self._sent(message, (), wire)
        if isinstance(outcome, Accepted) or not self._rules.is_duplicate(message, wire.answer, wire.exchange):
            return outcome
        return await self._find_duplicate(order, message) or outcome

    async def submit_many(
        self, orders: Sequence[Order], on_departure: OnDeparture = ignore_departure
    ) -> list[SendOutcome]:
        """Send each order as soon as the one before has departed; return the outcomes in the same order."""
        if len(orders) == 1:
            return [await self.submit(orders[0], on_departure)]
        async with asyncio.TaskGroup() as group:
            sends = []
            for order in orders:
                departed = asyncio.Event()
                sends.append(group.create_task(self._submit_next(order, departed)))
                await departed.wait()
            on_departure()
        return [send.result() for send in sends]

    async def cancel(self, order: Order) -> SendOutcome:
        """Cancel an order by its present client order id.

        If an amend has replaced the order there, the one in its place is cancelled, as long as time remains.
        """
        if not self._carries(*_ids(order)):
            return VenueRejected("BAD_REQUEST", _LACKS_ROOM)
        client_id, began_at, is_successor = self._id_there(current_id(order)), self._clock.monotonic(), False
        response_seconds = self._response_seconds[order.time_in_force]
        while True:
            message = CancelOrder(
                client_order_id=client_id,
                venue_order_id=None if is_successor else order.venue_order_id,
                symbol=self.names.symbol_there(order.symbol),
                side=order.side,
                account=self.names.account(order.account_id),
                attempted_at=self._attempted_at(order),
            )
            wire = self._wire(response_seconds, changes="message")
            outcome = await self._sent(message, map(self._id_there, _ids(order)), wire)
            elapsed_seconds = self._clock.monotonic() - began_at
            response_seconds = SEND_LIMIT.total_seconds() - CONNECT_SECONDS - elapsed_seconds
            if is_successor and outcome == VenueRejected("UNKNOWN_ORDER"):
                # The venue has just named it: it may be open, so the cancel waits for the next attempt.
                return Unsent("REPLACED", self._id_here(client_id), bytes_sent=True)
            if not isinstance(outcome, Unsent) or outcome.code != "REPLACED":
                return outcome
            assert outcome.detail is not None, "it names the order in its place"
            if response_seconds < CANCEL_SECONDS_MIN:
                return replace(outcome, detail=self._id_here(outcome.detail))
            client_id, is_successor = outcome.detail, True

    async def amend(self, order: Order, amend: Amend) -> SendOutcome:
        """Amend an order under the amend's own id, on a connection of its own, also if others are reused.

        A wrong denial of an amend is not put right by a resend, which no amend has, and in place no report names it.
        """
        if self._lacks_time:
            return _LACKS_TIME
        ids = (*_ids(order), amend.orig_client_order_id)
        if not self._carries(amend.client_order_id, *ids):
            return VenueRejected("BAD_REQUEST", _LACKS_ROOM)
        message = AmendOrder(
            client_order_id=self._id_there(amend.client_order_id),
            orig_client_order_id=self._id_there(amend.orig_client_order_id),
            venue_order_id=order.venue_order_id,
            symbol=self.names.symbol_there(order.symbol),
            side=order.side,
            qty=amend.qty,
            price=amend.price,
            stop_price=amend.stop_price,
            reduce_only=self._is_reduce_only(order),
            post_only=order.post_only,
            display_qty=order.display_qty,
            good_till=_good_till(order),
            account=self.names.account(order.account_id),
            attempted_at=self._attempted_at(order),
            expires_at=self._expires_at(order),
        )
        wire = self._wire(self._response_seconds[order.time_in_force], is_alone=True, changes="message")
        return await self._sent(message, map(self._id_there, ids), wire)

    async def find(self, order: OrderToFind) -> VenueOrder | None:
        """Return the order as the venue has it, or None if the venue says that it does not; raises VenueUnavailable."""
        if self.capabilities.lookup == "none":
            raise self._unavailable("it has no order lookup")
        found = await self.find_or_proof(order)
        return None if isinstance(found, NeverReceived) else found

    async def find_or_proof(self, order: OrderToFind) -> VenueOrder | NeverReceived | None:
        """As `find`; or the venue's proof that it never received a message with this id, and never will."""
        legs = await self._find(self._ref(order))
        if isinstance(legs, NeverReceived):
            return legs
        return self._venue_order(legs[-1], legs[:-1]) if legs else None

    async def open_orders(self) -> AsyncIterator[Sequence[VenueOrder]]:
        """Yield every order that the venue may still fill, in pages; raises VenueUnavailable."""
        if self.capabilities.lookup == "none":
            raise self._unavailable("it has no order lookup")
        version, wire = self._checked_version(), self._wire()
        pages, count = aiter(self.adapter.open_orders(wire)), 0
        try:
            while True:
                try:
                    with wire.used():
                        page = [self._venue_order(found) for found in await anext(pages)]
                except StopAsyncIteration:
                    break
                except Exception as error:
                    self._note_question(None, wire, version, is_answered=False)
                    raise self._unavailable(error) from error
                count += len(page)
                yield page
        finally:
            await wire.end()
        self._check_answered(wire, count)

    async def reports(self, after: str | None, limit: int) -> ReportPage:
        """Return the next execution reports; raises VenueUnavailable."""
        wire = self._wire()
        try:
            page = await self._asked(lambda: self.adapter.reports(after, limit, wire), wire, "reports")
            self._check_answered(wire, len(page.reports))
            if len(page.cursor) > CURSOR_LENGTH_MAX or not page.cursor.isprintable():
                raise ValueError(f"its cursor is not printable, or exceeds {CURSOR_LENGTH_MAX} characters")
            checked = [_checked_report(each) for each in page.reports]
            reports = [self._execution_report(each) for each in checked if not isinstance(each, Unreadable)]
            unreadable = [_unreadable_report(each) for each in checked if isinstance(each, Unreadable)]
        except Exception as error:
            raise self._unavailable(error) from error
        return ReportPage(reports, page.cursor, unreadable, page.restarted)

    async def probe(self) -> ProbeResult:
        """Ask the venue something harmless; raises VenueUnavailable."""
        wire = self._wire()
        try:
            result = await self._asked(lambda: self.adapter.probe(wire), wire, "probe")
            self._check_answered(wire)
            return result
        except Exception as error:
            raise self._unavailable(error) from error

    async def cancel_all(self) -> None:
        """Cancel every open order under our credentials; raises VenueUnavailable."""
        assert isinstance(self.adapter, CancelsAll), "the descriptor declares `cancel_all`"
        wire = self._wire(changes="everything")
        await self._acknowledged(self.adapter.cancel_all(wire), wire)

    async def cancel_all_after(self, seconds: int) -> None:
        """Set the time of the venue's dead man's switch, 0 for none; raises VenueUnavailable."""
        assert isinstance(self.adapter, CancelsAfter), "the descriptor declares `cancel_all_after`"
        wire = self._wire(changes="everything")
        await self._acknowledged(self.adapter.cancel_all_after(seconds, wire), wire)

    async def _acknowledged(self, call: Awaitable[None], wire: HttpWire) -> None:
        """Wait until the venue itself has acknowledged what concerns all orders; raises VenueUnavailable."""
        try:
            await self._called(call, wire)
            self._check_answered(wire)
        except Exception as error:
            raise self._unavailable(error) from error

    async def statement(self, after: str | None, limit: int) -> StatementPage:
        """Return the next executions of the venue's books; raises VenueUnavailable."""
        adapter = self.adapter
        assert isinstance(adapter, HasStatement), "only a venue with a statement is asked for it"
        wire = self._wire()
        try:
            page = await self._asked(lambda: adapter.statement(after, limit, wire), wire)
            self._check_answered(wire, len(page.lines))
            fills = [self._statement_fill(line) for line in page.lines]
        except Exception as error:
            raise self._unavailable(error) from error
        return StatementPage(fills, page.cursor, page.restarted)

    # Messages.

    @property
    def _lacks_time(self) -> bool:
        return self.capabilities.request_expiry and not self.time.is_known

    def _attempted_at(self, order: Order) -> datetime:
        """The time of the attempt by the venue's clock, so that a paused sender's request is too old when it arrives.

        Never a time that is still to come, which the clock of the process that accepted the order may have given to it.
        """
        return min(order.updated_at, self._clock.now()) + self.time.skew

    def _is_reduce_only(self, order: Order) -> bool:
        """Whether the venue is told that the order may only reduce the position: it cannot tell a close by itself."""
        return order.is_reduce_only and self.capabilities.reduce_only

    def _expires_at(self, order: Order) -> datetime | None:
        window = self.capabilities.acceptance_window
        if window is None or not self.capabilities.request_expiry:
            return None
        return self._attempted_at(order) + window

    def _wire(
        self,
        response_seconds: float = RESPONSE_SECONDS["GTC"],
        on_departure: OnDeparture = ignore_departure,
        *,
        is_alone: bool = False,
        changes: Changes = "nothing",
    ) -> HttpWire:
        return HttpWire(
            self._sends,
            self._queries,
            self.time,
            self._clock,
            response_seconds=response_seconds,
            on_departure=on_departure,
            believes_denials=self._rules.believes_unsure and not is_alone,
            is_alone=is_alone,
            changes=changes,
            asks_by_post=self.descriptor.asks_by_post,
        )

    async def _sent(self, message: Message, other_ids: Iterable[str], wire: HttpWire) -> SendOutcome:
        """Send a message and return its outcome; the order has `other_ids` at the venue too."""
        others = frozenset(other_ids)
        answer: Answer | None = None
        failure = ""
        version = self.credential.version
        try:
            async with asyncio.timeout(SEND_LIMIT.total_seconds()):
                answer = await self._called(self.adapter.send(message, wire), wire)
        except (Exception, SystemExit) as error:  # an adapter that ends the process would leave a half-dead one
            failure = repr(error)
            if wire.exchange is None or isinstance(wire.exchange, BrokerResponse):
                self._note_defect(message.client_order_id, error)
        try:
            _check_ids(answer)
            outcome = judged(message, others, answer, wire, self._clock.now(), self._rules, failure)
        except Exception as error:  # what the adapter returned is not what the interface says
            self._note_defect(message.client_order_id, error)
            outcome = Ambiguous("ADAPTER_FAILED", bounded_detail(repr(error)))
        if not isinstance(outcome, Accepted):
            outcome = replace(outcome, detail=self.credential.masked(outcome.detail))
        is_denied, exchange = isinstance(outcome, VenueRejected), wire.exchange
        # Of an answer that may belong to another request, nobody knows what it is about.
        is_sure = is_denied or (isinstance(exchange, BrokerResponse) and exchange.is_only_response)
        if is_sure and self._rules.is_unauthorized(message, wire.answer, exchange):
            code = wire.answer.code if isinstance(wire.answer, Refused) else "no code"
            status = exchange.status if isinstance(exchange, BrokerResponse) else 0
            is_first = self.credential.note_unauthorized(f"HTTP {status}, {code}", version)
            if not is_first and is_denied and self.capabilities.dedupe != "none":
                # It was under way when another one met the rejection, or the secrets changed: it is sent again.
                outcome = Unsent("CREDENTIAL_PAUSED", bounded_detail(code), bytes_sent=True)
        elif isinstance(outcome, Accepted | VenueRejected) and wire.exchange is not None:
            self.credential.note_message(version)
        return outcome

    async def _asked(self, call: Callable[[], Awaitable[_T]], wire: HttpWire, question: Question | None = None) -> _T:
        """The result of an adapter's call that asks the venue; raises VenueUnavailable while it must not be asked."""
        version = self._checked_version()
        is_answered = True
        try:
            result = await self._called(call(), wire)
            is_answered = result != "busy"
        except Exception:
            is_answered = False
            raise
        finally:
            self._note_question(question, wire, version, is_answered=is_answered)
        return result

    def _checked_version(self) -> int:
        """The version of the secrets; raises VenueUnavailable if the venue rejects them and was asked lately."""
        if not self.credential.may_ask():
            raise self._unavailable(f"{self.credential.reason}; it is asked again within {ASK_SECONDS:.0f} s")
        return self.credential.version

    def _note_question(self, question: Question | None, wire: HttpWire, version: int, *, is_answered: bool) -> None:
        """Tell the credential; without a response it is not known what the venue thinks of it."""
        if wire.has_response:
            self.credential.note_question(question, is_answered=is_answered, version=version)

    async def _called(self, call: Awaitable[_T], wire: HttpWire) -> _T:
        """The result of an adapter's call, after which its wire carries nothing any more."""
        try:
            with wire.used():
                return await call
        finally:
            await wire.end()

    def _check_answered(self, wire: HttpWire, shown: int = 0) -> None:
        """Raise VenueUnavailable for an adapter that says 'there is nothing' although nothing answered."""
        if not shown and not wire.is_answered:
            raise self._unavailable("its adapter has no answer that says so")

    def _note_defect(self, name: str, error: BaseException | str) -> None:
        client_id = self._id_here(name)
        shown = error if isinstance(error, str) else repr(error)
        log.error("venue_adapter_failed", venue=self.name, client_order_id=client_id, error=shown)

    async def _submit_next(self, order: Order, departed: asyncio.Event) -> SendOutcome:
        try:
            return await self.submit(order, departed.set)
        finally:
            departed.set()  # the next order must not wait for one that was never sent

    # Lookups.

    def _ref(self, order: OrderToFind) -> OrderRef:
        if not self._carries(order.client_order_id):
            raise self._unavailable(_LACKS_ROOM)
        return OrderRef(
            client_order_id=self._id_there(order.client_order_id),
            symbol=None if order.symbol is None else self.names.symbol_there(order.symbol),
            side=order.side,
            venue_order_id=order.venue_order_id,
            account=None if order.account_id is None else self.names.account(order.account_id),
            attempts=order.attempts,
        )

    async def _find(self, ref: OrderRef) -> list[Found] | NeverReceived:
        """The order, then each order that was put in the place of the one before; empty if it is unknown.

        An order that the venue names and does not show may be open there: only the first can be absent.
        """
        if self.capabilities.lookup == "none" and not self.capabilities.sequence_proof:
            raise self._unavailable("it has no order lookup")
        legs: list[Found] = []
        for _ in range(AMENDS_MAX + 1):
            found = await self._found(ref, self._lookup_wire())
            if legs and not isinstance(found, Found):
                raise self._unavailable(f"it names {ref.client_order_id} as the successor of an order, and lacks it")
            if isinstance(found, NeverReceived) and self.capabilities.sequence_proof:
                return found
            if not isinstance(found, Found):
                return []
            legs.append(found)
            if found.replaced_by is None:
                return legs
            ref = replace(ref, client_order_id=found.replaced_by, venue_order_id=None)
        raise self._unavailable(f"the orders that replace each other do not end: {ref.client_order_id}")

    def _lookup_wire(self) -> HttpWire:
        return HttpWire(
            self._sends,
            self._queries,
            self.time,
            self._clock,
            query_bytes_max=ANSWER_BYTES_MAX,
            asks_by_post=self.descriptor.asks_by_post,
            must_be_sure=_denies_or_ends,
        )

    async def _found(self, ref: OrderRef, wire: HttpWire) -> Found | NeverReceived | None:
        """The order in the answer to a lookup, None if the venue itself says that it is unknown.

        An answer that ends or denies the order must be the only response on its connection (`HttpWire.ask`), must name
        no other order, and must not show the order as taken.
        """
        try:
            found = await self._asked(lambda: self.adapter.find(ref, wire), wire)
        except Exception as error:
            raise self._unavailable(error) from error
        is_shown = isinstance(found, Found)
        if isinstance(found, NeverReceived) and not self.descriptor.capabilities.sequence_proof:
            problem = "its adapter answers with a proof that the descriptor does not declare (`sequence_proof`)"
            self._note_defect(ref.client_order_id, problem)
            raise self._unavailable(problem)
        if isinstance(found, Found):
            ids = (found.client_order_id, found.venue_order_id)
            if not all(isinstance(each, str) for each in ids):
                raise self._unavailable("its adapter shows ids that are no texts")
        if _denies_or_ends(found) and not wire.is_proof:
            raise self._unavailable("its adapter denies or ends an order without a sure answer that says so")
        if not isinstance(found, Found) or found.status == "REJECTED":
            objects = self._rules.objects(wire.asked_body)
            if objects is None or any(self._rules.shows_taken(members) for members in objects):
                raise self._unavailable("its answer contradicts itself")
            if not is_shown and not self._rules.names(objects) <= {ref.client_order_id}:
                raise self._unavailable("its answer names another order")
        if isinstance(found, Found) and ref.client_order_id not in (found.client_order_id, found.amended_by):
            raise self._unavailable(f"it was asked for {ref.client_order_id} and shows {found.client_order_id}")
        return found

    async def _find_duplicate(self, order: Order, message: NewOrder) -> Accepted | None:
        """Look up the order that the venue says it had before; None unless it shows this same order."""
        if self.capabilities.lookup == "none":
            return None
        ref = OrderRef(
            client_order_id=message.client_order_id,
            symbol=message.symbol,
            side=message.side,
            venue_order_id=order.venue_order_id,
            account=message.account,
        )
        wire = self._lookup_wire()
        try:
            found = await self._found(ref, wire)
        except VenueUnavailable:
            return None
        objects = self._rules.objects(wire.asked_body) or ()
        if not isinstance(found, Found) or not _shows(message, found):
            return None
        if not self._rules.names(objects) <= {ref.client_order_id}:
            return None
        return Accepted(found.venue_order_id, already_processed=True, accepted_at=found.accepted_at)

    def _unavailable(self, why: str | Exception) -> VenueUnavailable:
        return VenueUnavailable(f"{self.name}: {why}")

    # Client order ids, in the venue's form and in ours.

    def _carries(self, *client_ids: VenueClientOrderId) -> bool:
        return all(carries(self._id_form, each) for each in client_ids)

    def _id_there(self, client_id: VenueClientOrderId) -> str:
        return to_venue(client_id, self._id_form)

    def _id_here(self, text: str) -> VenueClientOrderId:
        return from_venue(text, self._id_form)

    # What the venue shows, in our terms.

    def _venue_order(self, found: Found, replaced: Sequence[Found] = ()) -> VenueOrder:
        legs = (*replaced, found)
        amends = [self._venue_amend(leg, leg.client_order_id) for leg in legs[1:]]
        if found.amended_by is not None and found.amended_by != found.client_order_id:
            amends.append(self._venue_amend(found, found.amended_by))
        return VenueOrder(
            venue_client_order_id=self._id_here(found.client_order_id),
            venue_order_id=found.venue_order_id,
            status=found.status,
            filled_qty=canonical(found.filled_qty),
            fills=tuple(map(_venue_fill, found.fills)),
            qty=None if found.qty is None else canonical(found.qty),
            price=None if found.price is None else canonical(found.price),
            stop_price=None if found.stop_price is None else canonical(found.stop_price),
            symbol=None if found.symbol is None else self.names.symbol_here(found.symbol),
            side=found.side,
            accepted_at=found.accepted_at,
            amends=tuple(amends),
        )

    def _venue_amend(self, leg: Found, client_id: str) -> VenueAmend:
        """The amend with this id, which gave the order its amounts."""
        return VenueAmend(
            client_order_id=self._id_here(client_id),
            replaces=client_id == leg.client_order_id,
            qty=None if leg.qty is None else canonical(leg.qty),
            price=None if leg.price is None else canonical(leg.price),
            stop_price=None if leg.stop_price is None else canonical(leg.stop_price),
        )

    def _execution_report(self, report: Report) -> ExecutionReport:
        return ExecutionReport(
            exec_id=report.exec_id,
            venue=self.name,
            venue_client_order_id=self._id_here(report.client_order_id),
            venue_order_id=report.venue_order_id,
            status=report.status,
            last_qty=canonical(report.qty),
            last_price=None if report.price is None else canonical(report.price),
            filled_qty_total=canonical(report.filled_qty),
            reason=bounded_detail(report.reason),
            at=report.at,
            fee=None if report.fee is None else canonical(report.fee),
            fee_currency=report.fee_currency,
            exec_type=report.exec_type,
            ref_exec_id=report.ref_exec_id,
        )

    def _statement_fill(self, line: StatementLine) -> StatementFill:
        fill = line.fill
        return StatementFill(
            exec_id=fill.exec_id,
            venue_client_order_id=self._id_here(line.client_order_id),
            venue_order_id=line.venue_order_id,
            symbol=self.names.symbol_here(line.symbol),
            side=line.side,
            qty=canonical(fill.qty),
            price=canonical(fill.price),
            at=fill.at,
            fee=None if fill.fee is None else canonical(fill.fee),
            fee_currency=fill.fee_currency,
            account_id=None if line.account is None else self.names.account_here(line.account),
            exec_type=fill.exec_type,
            ref_exec_id=fill.ref_exec_id,
        )


def _unreadable_report(each: Unreadable) -> UnreadableReport:
    text, error = (printable(part[:UNREADABLE_LENGTH_MAX]) for part in (each.text, each.error))
    return UnreadableReport(text=text, error=error)


def _check_ids(answer: Answer | None) -> None:
    """Raise TypeError for ids that are no texts: a JSON number would be stored as another id than the reports have."""
    shown = answer.order if isinstance(answer, Took | Refused) else None
    ids = [answer.venue_order_id] if isinstance(answer, Took) else []
    ids += [] if shown is None else [shown.client_order_id, shown.venue_order_id]
    if not all(isinstance(each, str) for each in ids):
        raise TypeError(f"ids must be texts: {ids!r}")


def _checked_report(report: Report | Unreadable) -> Report | Unreadable:
    """The report, or as one that cannot be read if it has data of other types than the interface says."""
    try:
        return report if isinstance(report, Unreadable) else msgspec.convert(msgspec.structs.asdict(report), Report)
    except msgspec.ValidationError as error:
        return Unreadable(text=repr(report), error=str(error))


def _denies_or_ends(result: object) -> bool:
    if isinstance(result, Found):
        return result.status in _ENDED
    return result is None or isinstance(result, NeverReceived)


def _ids(order: Order) -> tuple[VenueClientOrderId, ...]:
    return order.venue_client_order_id, current_id(order)


def _venue_fill(fill: Fill) -> VenueFill:
    return VenueFill(
        exec_id=fill.exec_id,
        qty=canonical(fill.qty),
        price=canonical(fill.price),
        at=fill.at,
        fee=None if fill.fee is None else canonical(fill.fee),
        fee_currency=fill.fee_currency,
        exec_type=fill.exec_type,
        ref_exec_id=fill.ref_exec_id,
    )


# What an answer means. Pure.


class AnswerRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the venue's documents say about its answers."""

    codes: Mapping[str, Meaning] = MappingProxyType({})
    members: Members = Members()
    believes_unsure: bool = False
    """Whether an answer counts that is not the only one on its connection: with connections that are reused, none is.
    Only of a venue that never executes an id twice."""

    def meaning(self, message: Message, refused: Refused, status: int) -> Meaning | None:
        """What the venue's code means for the message; the most specific entry counts, None if there is none."""
        for key in (f"{status}:{refused.code}", refused.code, str(status)):
            meaning = self.codes.get(key)
            if meaning is not None and isinstance(message, _ANSWERS.get(meaning, Message)):
                return meaning
        return None

    def is_unauthorized(self, message: Message, answer: Answer | None, exchange: Exchange | None) -> bool:
        """Whether the venue rejects our credential; an answer without a readable code says so by its status."""
        if not isinstance(exchange, BrokerResponse) or not isinstance(answer, Refused | Unclear):
            return False
        refused = answer if isinstance(answer, Refused) else Refused(code="")
        return self.meaning(message, refused, exchange.status) == "unauthorized"

    def is_duplicate(self, message: Message, answer: Answer | None, exchange: Exchange | None) -> bool:
        """Whether the venue says that it had the message before."""
        if not isinstance(exchange, BrokerResponse):
            return False
        meaning = self.meaning(message, answer, exchange.status) if isinstance(answer, Refused) else None
        return exchange.status == 409 or meaning == "duplicate"

    def objects(self, body: bytes) -> list[_Members] | None:
        """The members of every JSON object in the body, wherever it is; None if the body is neither empty nor JSON.

        Of a venue whose members are not declared, nothing is read.
        """
        objects: list[_Members] = []
        if not self.members.ids and not self.members.taken:
            return objects
        try:
            # Not msgspec: it drops the first of two equal members.
            json.loads(body or b"{}", object_pairs_hook=objects.append)
        except (ValueError, RecursionError):
            return None
        return objects

    def names(self, objects: Collection[_Members]) -> set[str]:
        """The client order ids that the objects name."""
        ids = self.members.ids
        return {str(value) for members in objects for name, value in members if name in ids and value is not None}

    def shows_taken(self, members: _Members) -> bool:
        """Whether the object shows an order that the venue has taken, whatever became of it since."""
        known = self.members
        statuses = {value.lower() for name, value in members if name == known.status and isinstance(value, str)}
        shown = {name for name, value in members if value and not _is_zero(value)}
        if statuses & known.taken_statuses or shown & known.filled:
            return True
        return "rejected" not in statuses and bool(shown & known.taken)

    def shows_carried_out(self, message: Message, members: _Members) -> bool:
        """Whether the object shows that the message was carried out."""
        match message:
            case NewOrder():
                return self.shows_taken(members)
            case AmendOrder(client_order_id=amend_id):
                if any(name in self.members.amended and value == amend_id for name, value in members):
                    return True
                names = self.members.ids
                return self.shows_taken(members) and any(n in names and value == amend_id for n, value in members)
            case CancelOrder():
                return False
            case _:
                assert_never(message)


def judged(
    message: Message,
    other_ids: Collection[str],
    answer: Answer | None,
    wire: HttpWire,
    now: datetime,
    rules: AnswerRules,
    failure: str = "",
) -> SendOutcome:
    """The outcome of a message, which has `other_ids` at the venue too.

    `answer`: what the adapter says of it; `failure`: the error that it raised.
    """
    exchange = wire.exchange
    if exchange is None:
        if wire.departed:
            return Ambiguous("NETWORK_TIMEOUT", "the adapter took too long")
        if isinstance(answer, Refused):
            # Before anything was sent: the adapter cannot express the order, such as a quantity off the venue's step.
            return VenueRejected("BAD_REQUEST", bounded_detail(answer.text or answer.code))
        return Unsent("VENUE_DOWN", bounded_detail(f"the adapter sent nothing{failure and f': {failure}'}"))
    match exchange:
        case NotSent(code, detail):
            return Unsent(code, detail)
        case Lost(code, detail, address):
            return Ambiguous(code, detail, address)
        case BrokerResponse():
            outcome = _answered(message, other_ids, answer, wire.answer, exchange, now, rules)
            return replace(outcome, address=exchange.address) if isinstance(outcome, Ambiguous) else outcome
        case _:
            assert_never(exchange)


def _answered(
    message: Message,
    other_ids: Collection[str],
    answer: Answer | None,
    read: Answer | None,
    exchange: BrokerResponse,
    now: datetime,
    rules: AnswerRules,
) -> SendOutcome:
    """The outcome of a message that has a response; `read`: what the adapter made of the response alone.

    A response that names an order other than this one is never the answer. One that names none, or this one, may be a
    second response to another request or a copy of the answer to an earlier attempt: unless it shows that the order was
    accepted, it must be the only response on its connection; or a repeated id must never be executed again, and
    nothing may have arrived behind it yet. A venue may deny a message whose result its own answer shows, or a broken
    error response may have swallowed the answer that follows it.
    """
    if answer is None:
        return Ambiguous("ADAPTER_FAILED", "the adapter failed after the response")
    if answer != read:
        return Ambiguous("ADAPTER_FAILED", "the adapter's answer is not what it read in the response")
    objects = rules.objects(exchange.body)
    is_other = objects is not None and not rules.names(objects) <= {message.client_order_id, *other_ids}
    outcome = _told(message, answer, exchange, now, rules, is_other=is_other)
    is_denial = isinstance(outcome, VenueRejected | Unsent)
    is_proof = isinstance(outcome, Accepted) and not (isinstance(answer, Took) and answer.order is None)
    if isinstance(outcome, Ambiguous):
        return outcome
    if is_denial and any(rules.shows_carried_out(message, members) for members in objects or ()):
        return Ambiguous("UNKNOWN", f"HTTP {exchange.status} shows that the request was carried out")
    if objects is None:
        return Ambiguous("UNKNOWN", "the answer cannot be read")
    if is_other:
        return Ambiguous("UNKNOWN", "the answer names another order")
    if exchange.is_followed and not is_proof:
        return Ambiguous("UNKNOWN", f"HTTP {exchange.status} has another response behind it")
    # An amend is not sent again, so the recognition of repeated ids does not put a wrong denial of it right.
    is_put_right = rules.believes_unsure and not isinstance(message, AmendOrder)
    if is_proof or exchange.is_only_response or is_put_right:
        return outcome
    return Ambiguous("UNKNOWN", f"HTTP {exchange.status} may answer another request")


def _told(
    message: Message, answer: Answer, exchange: BrokerResponse, now: datetime, rules: AnswerRules, *, is_other: bool
) -> SendOutcome:
    """The outcome by what the adapter has read alone; `is_other`: the response names another order."""
    match answer:
        case Took():
            return _taken(message, answer, is_other=is_other)
        case Refused():
            return _refused(message, answer, exchange, now, rules, is_other=is_other)
        case Unclear(text=text):
            is_conflict = exchange.status == 409 and isinstance(message, NewOrder)
            return _undocumented(exchange, text, is_conflict=is_conflict)
        case _:
            assert_never(answer)


def _taken(message: Message, answer: Took, *, is_other: bool) -> SendOutcome:
    shown = answer.order
    if shown is None:
        return Accepted(answer.venue_order_id, already_processed=answer.already)
    match message:
        case NewOrder():
            if is_other or not _shows(message, shown):
                return Ambiguous("UNKNOWN", "the answer is about another order")
            if shown.status == "REJECTED":
                return VenueRejected("BROKER_REJECTED")
            return Accepted(answer.venue_order_id, already_processed=answer.already, accepted_at=shown.accepted_at)
        case CancelOrder(client_order_id=client_id):
            if is_other or shown.client_order_id != client_id:
                return Ambiguous("UNKNOWN", "the answer is not about this order")
            return Accepted(answer.venue_order_id)
        case AmendOrder():
            if not _shows_amend(message, shown):
                return Ambiguous("UNKNOWN", "the answer does not show this amend")
            return Accepted(answer.venue_order_id, already_processed=answer.already)
        case _:
            assert_never(message)


def _refused(
    message: Message, answer: Refused, exchange: BrokerResponse, now: datetime, rules: AnswerRules, *, is_other: bool
) -> SendOutcome:
    shown, meaning = answer.order, rules.meaning(message, answer, exchange.status)
    is_conflict = rules.is_duplicate(message, answer, exchange) and not isinstance(message, CancelOrder)
    if is_conflict and shown is not None:
        if isinstance(message, NewOrder) and _shows(message, shown) and not is_other:
            return Accepted(shown.venue_order_id, already_processed=True, accepted_at=shown.accepted_at)
        if isinstance(message, AmendOrder):
            if _shows_amend(message, shown):
                return Accepted(shown.venue_order_id, already_processed=True)
            if message.client_order_id in (shown.amended_by, shown.client_order_id, shown.replaced_by):
                return Ambiguous("CONFLICT", "carried out before, perhaps with other amounts")
    match meaning:
        case "rejected" | "unauthorized":
            return VenueRejected(_reject_code(exchange.status, meaning), _words(answer))
        case "throttled":
            return Unsent("RATE_LIMITED", retry_after=_pause(answer, exchange, now), bytes_sent=True)
        case "busy":
            return Unsent("VENUE_BUSY", _words(answer), retry_after=_pause(answer, exchange, now), bytes_sent=True)
        case "expired":
            # A lookup finds the order, or it is absent and sent again with a new expiry.
            return Ambiguous("REQUEST_EXPIRED")
        case "unknown_order":
            return VenueRejected("UNKNOWN_ORDER")
        case "order_final":
            if isinstance(message, CancelOrder) and shown is not None and shown.replaced_by is not None:
                return Unsent("REPLACED", shown.replaced_by, bytes_sent=True)
            return VenueRejected("ORDER_FINAL")
        case "stale_amend":
            return VenueRejected("CONFLICT", _words(answer))
        case "duplicate" | None:
            detail = f"HTTP {exchange.status}" if exchange.status >= 300 and not is_conflict else answer.code
            return _undocumented(exchange, detail, is_conflict=is_conflict)
        case _:
            assert_never(meaning)


def _is_zero(value: object) -> bool:
    """Whether the value is a number that is zero, also as a text."""
    try:
        return isinstance(value, str) and not Decimal(value)
    except ArithmeticError:
        return False


def _words(answer: Refused) -> str | None:
    """The venue's code and words, for people."""
    return bounded_detail(answer.code if answer.text is None else f"{answer.code}: {answer.text}")


def _undocumented(exchange: BrokerResponse, detail: str, *, is_conflict: bool) -> Ambiguous:
    """The doubt that an answer leaves which the venue's documents do not call final.

    Such as a redirect, a proxy's time-out or a page of another server.
    """
    if exchange.status >= 500:
        return Ambiguous("BROKER_5XX")
    return Ambiguous("CONFLICT" if is_conflict else "UNKNOWN", bounded_detail(detail))


def _reject_code(status: int, meaning: Meaning) -> RejectCode:
    if meaning == "unauthorized" or status in (401, 403):
        return "UNAUTHORIZED"
    if status == 409:
        return "CONFLICT"
    return "BAD_REQUEST" if status >= 400 else "BROKER_REJECTED"


def _shows(message: NewOrder, found: Found) -> bool:
    """Whether the answer proves that the venue has this order: it names its id, and no member that it shows differs."""
    pairs = (found.symbol, message.symbol), (found.side, message.side)
    is_equal = all(theirs is None or theirs == ours for theirs, ours in pairs)
    is_equal = is_equal and not _amounts(found).differ(message.qty, message.price, message.stop_price)
    return is_equal and found.client_order_id == message.client_order_id


def _shows_amend(message: AmendOrder, found: Found) -> bool:
    """Whether the answer proves that the venue has carried this amend out, with these amounts.

    After a restore, a client may repeat the key of an amend with other amounts than the lost one had.
    """
    is_equal = not _amounts(found).differ(message.qty, message.price, message.stop_price)
    return is_equal and message.client_order_id in (found.amended_by, found.client_order_id)


def _amounts(found: Found) -> Amounts:
    return Amounts(qty=found.qty, price=found.price, stop_price=found.stop_price)


def _pause(answer: Refused, exchange: BrokerResponse, now: datetime) -> timedelta | None:
    """The pause that the venue asks for, limited to RETRY_AFTER_MAX; None if it asks for none that can be read."""
    if answer.retry_after is not None:
        return max(timedelta(), min(answer.retry_after, RETRY_AFTER_MAX))
    text = exchange.headers.get("retry-after")
    if text is None:
        return None
    try:
        if text.isascii() and text.isdigit():
            pause = timedelta(seconds=min(int(text), RETRY_AFTER_MAX.total_seconds()))
        else:
            pause = parsedate_to_datetime(text) - now
    except (ValueError, TypeError, OverflowError):
        return None
    return max(timedelta(), min(pause, RETRY_AFTER_MAX))
