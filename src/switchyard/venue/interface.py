"""The interface for venue adapters: what an adapter declares, what it is given, and what it answers.

An adapter translates. It turns a message into requests, and the venue's answers into what the venue said. It never
decides what an answer, or its absence, means for an order: the core does (`bridge.py`), from whether bytes left, from
whether the answer surely belongs to the request, and from the codes that the descriptor lists. So an adapter lets
every error of its wire pass through, never repeats a request, and needs no rule about time-outs.

Everything here is data or a Protocol. Amounts are `Decimal`, times have an offset, symbols and accounts have the
venue's names. The interface is provisional until version 0.1.0.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from switchyard.domain.ids import IdForm
from switchyard.domain.orders.order import OrderType, Side, TimeInForce
from switchyard.domain.orders.reports import ExecType, ReportStatus
from switchyard.domain.values import ZERO
from switchyard.ports.venue import Capabilities, NeverReceived, ProbeResult

_T = TypeVar("_T")

# What a code of the venue means for the message that it answers. A code that is not listed is never final.
Meaning = Literal[
    "rejected",  # the venue's documents call it final: the message was not and will not be carried out
    "unauthorized",  # final, and about the credentials: the venue is not sent to with them until they change
    "throttled",  # not processed because of a rate limit: sent again after a pause
    "busy",  # not processed because the venue has no room: sent again after a pause
    "duplicate",  # the venue had this client order id before: it is looked up
    "expired",  # this copy of the request came too late; another copy may have come in time
    "unknown_order",  # a cancel, an amend or a lookup: the venue does not have the order
    "order_final",  # a cancel or an amend: the order has already ended
    "stale_amend",  # an amend that does not name the last id of the order
]

# How far a claim of the descriptor was checked.
Evidence = Literal[
    "read",  # read in the venue's documents or official code
    "tried on an example",  # tried against a counterpart that follows the documents
    "tried live",  # tried at the venue itself
]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a claim of the descriptor comes from."""

    claim: str
    """The name of the capability or option, such as `dedupe`."""
    source: str
    """A document and its section; not a promise of the adapter's author."""
    read_on: date
    evidence: Evidence = "read"


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The names of JSON members, wherever they are in an answer. Empty sets if the venue's answers are not JSON."""

    ids: frozenset[str] = frozenset()
    """Hold client order ids: an answer that names another order is never believed."""
    taken: frozenset[str] = frozenset()
    """Only an order that the venue has taken has them: a denial that shows one is doubt. A member without a value, or
    with the number zero, also as a text, is not shown."""
    filled: frozenset[str] = frozenset()
    """The same, also for an order that the answer calls rejected."""
    status: str = "status"
    """Holds the state of an order."""
    taken_statuses: frozenset[str] = frozenset()
    """The states, in lower case, of an order that the venue has taken."""
    amended: frozenset[str] = frozenset()
    """Hold the id of an amend that was carried out."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A value that the adapter takes, as `name=value` in `VENUE_OPTIONS_<VENUE>`, or `VENUE_SECRETS_<VENUE>`."""

    name: str
    """In lower case: letters, digits and `_`."""
    text: str
    """One sentence for operators."""
    is_secret: bool = False
    """A secret may also come from a file (`…_FILE`), and is never shown."""
    is_required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    """The allowed values; empty if every text is."""


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a kind of venue before it is opened: the core acts on it, `venues describe` shows it."""

    kind: str
    """The scheme of `VENUE_URL_<VENUE>`, such as `acme` in `acme:https://api.example.com`: letters, digits and `-`."""
    title: str
    """The venue's name for people, and what the adapter covers."""
    capabilities: Capabilities
    """What the venue guarantees. Settings may only weaken it."""
    states_rules: bool = False
    """Whether the operator states the venue's rules in settings, because the adapter is a protocol and not a venue."""
    in_process: bool = False
    """Whether the venue is in this process: a send has ended with its process, and answers need no correlation."""
    id_form: IdForm = IdForm()
    """The form of client order ids that the venue takes: the adapter is given them, and returns them, in this form.

    It is a part of the orders at the venue: with another form later, they would not be found.
    """
    members: Members = Members()
    """How the core reads answers in JSON a second time, whatever the adapter makes of them."""
    codes: Mapping[str, Meaning] = MappingProxyType({})
    """The meaning of the venue's codes, as `CODE`, `STATUS` or `STATUS:CODE`; the most specific entry counts."""
    options: tuple[Option, ...] = ()
    default_url: str = ""
    """The venue's address if the setting names the kind alone; empty: the setting must have one."""
    rate_per_sec: Decimal | None = None
    """Orders and cancels per second that the venue allows; `VENUE_RATE_PER_SEC_` may lower it."""
    asks_by_post: bool = False
    """Whether questions are POST requests too, such as at a venue that takes JSON-RPC. Then an adapter may send POST
    requests with `Wire.ask` while it answers a question: never those that change something."""
    time_header: str | None = None
    """The response header with the venue's time in RFC 3339; None: `Date`, which is cut to seconds."""
    sources: tuple[Source, ...] = ()


class NewOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Place an order."""

    client_order_id: str
    """In the venue's form. The only id that a repeated message has too."""
    symbol: str
    side: Side
    type: OrderType
    time_in_force: TimeInForce
    qty: Decimal
    """In units."""
    price: Decimal | None = None
    stop_price: Decimal | None = None
    reduce_only: bool = False
    """Set only if the descriptor has `reduce_only`."""
    post_only: bool = False
    """The venue must reject or cancel the order if it would trade at once. Set only with the capability `post_only`."""
    display_qty: Decimal | None = None
    """The part of the quantity that the venue shows to the market. Set only with the capability `display_qty`."""
    good_till: datetime | None = None
    """With the time in force GTD, and then always: when the venue must end the order; `expires_at` is the request's."""
    account: str | None = None
    """The venue's name of the account; None if accounts are not mapped."""
    attempted_at: datetime
    """The time of the attempt by the venue's clock: sign with it, so that a paused sender's request is too old."""
    expires_at: datetime | None = None
    """With `request_expiry`: the venue must reject the request if it arrives later, by its own clock."""
    trace_id: str | None = None
    requested_at: datetime | None = None


class CancelOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Cancel what is open of an order. A repeated cancel must have no effect."""

    client_order_id: str
    """The id by which the venue knows the order now."""
    venue_order_id: str | None
    symbol: str
    side: Side
    account: str | None = None
    attempted_at: datetime


class AmendOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Change an open order to these amounts; used only if the capability `amend` is not `none`."""

    client_order_id: str
    """The amend's own."""
    orig_client_order_id: str
    """The id by which the venue must know the order now; it must reject an older one."""
    venue_order_id: str | None
    symbol: str
    side: Side
    qty: Decimal
    """The new total quantity, including what is filled."""
    price: Decimal | None = None
    stop_price: Decimal | None = None
    reduce_only: bool = False
    """This and the next three: as in the order, for a venue that wants them repeated."""
    post_only: bool = False
    display_qty: Decimal | None = None
    good_till: datetime | None = None
    account: str | None = None
    attempted_at: datetime
    expires_at: datetime | None = None


Message = NewOrder | CancelOrder | AmendOrder


class OrderRef(msgspec.Struct, frozen=True, kw_only=True):
    """An order to look up: venues differ in what they need besides the id."""

    client_order_id: str
    symbol: str | None
    """None if only the id is known, such as of an order that a restore has lost."""
    side: Side | None = None
    venue_order_id: str | None = None
    account: str | None = None
    attempts: int | None = None
    """How many attempts to send the message were begun, by any process, each with one copy at most; None: not known.

    A proof that the venue never received the message must cover all of them.
    """


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """One execution, under the same id in reports, lookups and statements, so that it counts once."""

    exec_id: str
    qty: Decimal
    price: Decimal
    at: datetime
    fee: Decimal | None = None
    """Negative for a rebate; None if the venue does not say."""
    fee_currency: str | None = None
    """None: the currency in which the instrument is settled."""
    exec_type: ExecType | None = None
    """None: a fill. A correction or a bust must say so: its quantity would count as a new fill."""
    ref_exec_id: str | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """An order as the venue shows it; a member that the venue does not show is None."""

    client_order_id: str
    venue_order_id: str
    status: ReportStatus
    filled_qty: Decimal = ZERO
    fills: tuple[Fill, ...] = ()
    """Every execution so far, if the lookup shows them; the core alarms if they do not add up to `filled_qty`."""
    qty: Decimal | None = None
    price: Decimal | None = None
    stop_price: Decimal | None = None
    symbol: str | None = None
    side: Side | None = None
    accepted_at: datetime | None = None
    amended_by: str | None = None
    """The client order id of the last amend that was carried out in place."""
    replaced_by: str | None = None
    """The client order id of the order that an amend has put in the place of this one."""


class Took(msgspec.Struct, frozen=True, kw_only=True):
    """The venue has the order, or has carried out the cancel or the amend."""

    venue_order_id: str
    order: Found | None = None
    """The order, if the answer shows it: its `client_order_id` must come from the answer, not from the message."""
    already: bool = False
    """Whether the venue said that it had the order before this request."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The venue answered with an error of its own."""

    code: str
    """The venue's code, as text; looked up in `Descriptor.codes` with the status of the response."""
    text: str | None = None
    retry_after: timedelta | None = None
    order: Found | None = None
    """The order that the answer shows beside the error."""


class Unclear(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that the adapter cannot read; a truncated page, another schema, an unlisted status."""

    text: str


Answer = Took | Refused | Unclear


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to an order, as the venue reports it."""

    exec_id: str
    """Unique within the scope that the descriptor declares (`execution_ids`)."""
    client_order_id: str
    venue_order_id: str
    status: ReportStatus
    """The order's state after this."""
    at: datetime
    qty: Decimal = ZERO
    """Of this execution; zero if it is none."""
    price: Decimal | None = None
    filled_qty: Decimal = ZERO
    """In total, including this one."""
    reason: str | None = None
    fee: Decimal | None = None
    fee_currency: str | None = None
    exec_type: ExecType | None = None
    ref_exec_id: str | None = None


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A report that the adapter cannot read. It may be a fill, so it is set aside and alarmed, and the page goes on."""

    text: str
    """What the venue sent."""
    error: str


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of reports, in the venue's order."""

    reports: Sequence[Report | Unreadable]
    cursor: str
    """Where the next page begins: opaque, printable, at most 1,024 characters, stored with what the reports changed."""
    restarted: bool = False
    """Whether the venue's numbering has started again, so that everything is read anew."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    """Below the venue's address, with the query, percent-encoded."""
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | None = None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The complete response to a request."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case; of several with one name the first."""
    body: bytes


class Wire(Protocol):
    """The way to the venue for one call of the adapter: it notes whether bytes left, gives up hard, never repeats."""

    @property
    def time(self) -> datetime:
        """The venue's time now, carried on from its last answer."""
        ...

    async def send(self, request: Request, read: Callable[[Response], Answer]) -> Answer:
        """Send the request that carries the message, at most once in a call, and return what `read` makes of the
        response.

        `read` is a pure function. An answer that denies the message counts only if it surely belongs to this request.
        Raises if there is no complete response: let it pass.
        """
        ...

    async def ask(self, request: Request, read: Callable[[Response], _T]) -> _T:
        """Ask for something, and return what `read` makes of the response; raises if there is no complete one.

        Only GET requests, unless the descriptor has `asks_by_post`. `read` is a pure function; it raises if the
        response cannot be read. In `find`, a result that denies or ends an
        order counts only if the response surely belongs to this request.
        """
        ...


class Adapter(Protocol):
    """One venue under one set of credentials. Methods may run at the same time.

    Every method may raise: an error of its wire, or of its own. The core then decides by what had left.
    """

    async def open(self) -> None:
        """Prepare; nothing is sent to the venue yet."""
        ...

    async def close(self) -> None:
        """Release what `open` has made."""
        ...

    async def send(self, message: Message, wire: Wire) -> Answer:
        """Send the message once, and return what the venue said about it."""
        ...

    async def find(self, ref: OrderRef, wire: Wire) -> Found | NeverReceived | None:
        """Return the order; None only if the venue itself says that it does not have it.

        `NeverReceived`, with the capability `sequence_proof`: the venue has proven that no message with this id arrived
        or can arrive. It must cover each copy that any process has sent; if the adapter cannot tell, it is no proof.
        """
        ...

    def open_orders(self, wire: Wire) -> AsyncIterator[Sequence[Found]]:
        """Yield every order that the venue may still fill, in pages; an error is never an empty page."""
        ...

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        """Return the next reports after the cursor, None for the first page; an error is never an empty page.

        It may wait up to a second until there are some. After an empty page it is called again a quarter of a second
        after the last call at the earliest.
        """
        ...

    async def probe(self, wire: Wire) -> ProbeResult:
        """Ask something harmless over the same way as `find`; return whether the venue itself answered or is busy."""
        ...


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """The market of a symbol at the venue."""

    symbol: str
    bid: Decimal
    ask: Decimal
    at: datetime
    """By the venue's clock."""
    bid_size: Decimal | None = None
    ask_size: Decimal | None = None


@runtime_checkable
class HasQuotes(Protocol):
    """An adapter with quotes. A venue without has none: the core never invents them."""

    async def quotes(self, symbols: Sequence[str], wire: Wire) -> Sequence[Quote | Unreadable]:
        """Return the quotes of the symbols; those without a market are left out."""
        ...


@runtime_checkable
class CancelsAll(Protocol):
    """An adapter whose venue cancels every open order of these credentials with one request."""

    async def cancel_all(self, wire: Wire) -> None:
        """Return once the venue has acknowledged it."""
        ...


@runtime_checkable
class CancelsAfter(Protocol):
    """An adapter whose venue has a dead man's switch: without a sign of life it cancels every open order."""

    async def cancel_all_after(self, seconds: int, wire: Wire) -> None:
        """Set the time after which the venue cancels all open orders of these credentials, in place of the one before.

        0 switches it off. Return once the venue has acknowledged it.
        """
        ...


class StatementLine(msgspec.Struct, frozen=True, kw_only=True):
    """One execution in the venue's books."""

    client_order_id: str
    venue_order_id: str
    symbol: str
    side: Side
    fill: Fill
    account: str | None = None


class StatementLines(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a statement; an empty page is the end."""

    lines: Sequence[StatementLine]
    cursor: str
    restarted: bool = False


@runtime_checkable
class HasStatement(Protocol):
    """An adapter whose venue lists every execution exactly once."""

    async def statement(self, after: str | None, limit: int, wire: Wire) -> StatementLines:
        """Return the next executions."""
        ...
