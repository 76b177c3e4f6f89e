"""What an answer means is decided by what had left and by the response, whatever the adapter makes of it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from switchyard.domain.ids import IdForm, VenueClientOrderId, VenueName, narrowed, to_venue
from switchyard.domain.orders.amends import Amend
from switchyard.ports.venue import (
    Accepted,
    Ambiguous,
    Capabilities,
    NeverReceived,
    OnDeparture,
    SendOutcome,
    Unsent,
    VenueRejected,
    VenueUnavailable,
    ignore_departure,
    to_find,
)
from switchyard.venue import bridge as bridge_module
from switchyard.venue.bridge import AnswerRules, Bridge, Way
from switchyard.venue.interface import (
    AmendOrder,
    Answer,
    Descriptor,
    Found,
    Members,
    Message,
    OrderRef,
    Page,
    Refused,
    Report,
    Request,
    Response,
    Took,
    Unclear,
    Unreadable,
    Wire,
)
from switchyard.venue.transport import AwaitsEnd, BrokerResponse, Exchange, Lost, NotSent, Pool, never_awaited
from switchyard.venue.wire import NoAnswer
from tests.support.acme_venue import DESCRIPTOR, REQUEST, AcmeAdapter, read, read_found
from tests.support.memory.clock import ManualClock
from tests.support.venue_orders import MOMENT, an_order, by_id, unlocated

ORDER = an_order("one", price="1")
AMEND = Amend(
    client_order_id=VenueClientOrderId("two"),
    orig_client_order_id=VenueClientOrderId("one"),
    qty=Decimal(7),
    price=Decimal(1),
)
CAPABILITIES = Capabilities(dedupe="while_open", lookup="all", amend="in_place")

PROVING = replace(DESCRIPTOR, capabilities=replace(DESCRIPTOR.capabilities, sequence_proof=True))

WAY = Way("https://acme.invalid")


class Script:
    """In place of the transports: gives the exchanges of the script one after the other."""

    def __init__(self, *exchanges: Exchange | None, ends: bool = True) -> None:
        """`None`: no response comes, ever. `ends`: the venue ends each connection after its response."""
        self._exchanges = list(exchanges)
        self._ends = ends
        self.asked: list[str] = []
        self.awaited = 0

    async def ask(
        self,
        method: str,
        path: str,
        *,
        response_seconds: float,
        bytes_max: int,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        on_departure: OnDeparture = ignore_departure,
        awaits_end: AwaitsEnd = never_awaited,
        is_alone: bool = False,
    ) -> Exchange:
        self.asked.append(path)
        await asyncio.sleep(0)
        exchange = self._exchanges.pop(0)
        if isinstance(exchange, NotSent):
            return exchange
        on_departure()
        if exchange is None:
            await asyncio.Event().wait()
        elif isinstance(exchange, BrokerResponse) and awaits_end(exchange.status, exchange.headers, exchange.body):
            self.awaited += 1
            return replace(exchange, is_only_response=self._ends)
        return exchange  # type: ignore[return-value]


def answered(status: int = 200, **members: Any) -> BrokerResponse:
    """A response of the venue."""
    return BrokerResponse(status, msgspec.json.encode(members), {}, "127.0.0.1:1")


TAKEN = answered(cid="one", oid="o-1", state="open")
DENIED = answered(code=-10)
TIMED_OUT = Lost("NETWORK_TIMEOUT", None, "127.0.0.1:1")


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bridge]:
    """Makes the bridge over an adapter whose requests have these exchanges."""

    def made(
        script: Script, sending: Any = None, descriptor: Descriptor = DESCRIPTOR, way: Way = WAY, **capabilities: Any
    ) -> Bridge:
        monkeypatch.setattr(bridge_module, "Transport", lambda *_arguments, **_named: script)
        return Bridge(
            VenueName("sim"),
            descriptor,
            AcmeAdapter(sending),
            clock=ManualClock(),
            way=way,
            capabilities=replace(CAPABILITIES, **capabilities),
        )

    return made


def sent_nothing(outcome: SendOutcome, why: str) -> bool:
    """Whether the order is proven unsent because its adapter failed, and why."""
    assert isinstance(outcome, Unsent), outcome
    detail = outcome.detail or ""
    return outcome.code == "VENUE_DOWN" and detail.startswith("the adapter sent nothing: ") and why in detail


async def test_the_answer_counts_where_nothing_contradicts_it(over: Callable[..., Bridge]) -> None:
    assert await over(Script(TAKEN)).submit(ORDER) == Accepted("o-1")
    assert await over(Script(DENIED)).submit(ORDER) == VenueRejected("BROKER_REJECTED", "-10")


# Adapters that say more than they know.


def claiming(answer: object) -> Callable[[Message, Wire], Any]:
    """An adapter that claims this, whatever becomes of its request."""

    async def send(message: Message, wire: Wire) -> object:
        try:
            await wire.send(REQUEST, read)
        except Exception:
            return answer
        return answer

    return send


SHOWN = Found(client_order_id="one", venue_order_id="o-1", status="WORKING")
CLAIMS = [Refused(code="-10"), Refused(code="-20"), Took(venue_order_id="o-1", order=SHOWN), Unclear(text="?")]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: type(claim).__name__)
@pytest.mark.parametrize(
    ("exchange", "outcome"),
    [
        (TIMED_OUT, Ambiguous("NETWORK_TIMEOUT")),
        (Lost("NETWORK_DISCONNECTED", "reset"), Ambiguous("NETWORK_DISCONNECTED", "reset")),
        (NotSent("BROKER_DOWN", "no connection"), Unsent("BROKER_DOWN", "no connection")),
    ],
)
async def test_without_a_response_what_had_left_decides_and_no_claim(
    over: Callable[..., Bridge], exchange: Exchange, outcome: SendOutcome, claim: Answer
) -> None:
    bridge = over(Script(exchange, exchange, exchange), claiming(claim))
    for sent in (await bridge.submit(ORDER), await bridge.cancel(ORDER), await bridge.amend(ORDER, AMEND)):
        assert unlocated(sent) == outcome


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: type(claim).__name__)
async def test_an_answer_that_is_not_what_was_read_in_the_response_is_doubt(
    over: Callable[..., Bridge], claim: Answer
) -> None:
    sent = await over(Script(answered(code=-60)), claiming(claim)).submit(ORDER)
    assert unlocated(sent) == Ambiguous("ADAPTER_FAILED", "the adapter's answer is not what it read in the response")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Took(venue_order_id="o-1"), Unsent("VENUE_DOWN", "the adapter sent nothing")),
        (Took(venue_order_id="o-1", order=SHOWN), Unsent("VENUE_DOWN", "the adapter sent nothing")),
        (Unclear(text="?"), Unsent("VENUE_DOWN", "the adapter sent nothing")),
        (None, Unsent("VENUE_DOWN", "the adapter sent nothing")),
        (Refused(code="STEP", text="off the step of 0.1"), VenueRejected("BAD_REQUEST", "off the step of 0.1")),
        (Refused(code="STEP"), VenueRejected("BAD_REQUEST", "STEP")),
    ],
)
async def test_an_adapter_that_sends_nothing_may_only_refuse(
    over: Callable[..., Bridge], answer: Answer | None, outcome: SendOutcome
) -> None:
    async def send(message: Message, wire: Wire) -> Answer | None:
        return answer

    script = Script()
    assert await over(script, send).submit(ORDER) == outcome
    assert script.asked == []


async def test_a_message_is_sent_once_however_often_the_adapter_sends_it(over: Callable[..., Bridge]) -> None:
    async def twice(message: Message, wire: Wire) -> Answer:
        await wire.send(REQUEST, read)
        return await wire.send(REQUEST, read)

    async def until_it_answers(message: Message, wire: Wire) -> Answer:
        for _ in range(3):
            try:
                return await wire.send(REQUEST, read)
            except Exception:
                continue
        return Refused(code="-10")

    async def at_once(message: Message, wire: Wire) -> Answer:
        first, *_ = await asyncio.gather(*(wire.send(REQUEST, read) for _ in range(3)), return_exceptions=True)
        assert not isinstance(first, BaseException)
        return first

    cases: list[tuple[Exchange, Any, SendOutcome]] = [
        (TAKEN, twice, Ambiguous("ADAPTER_FAILED", "the adapter failed after the response")),
        (TIMED_OUT, until_it_answers, Ambiguous("NETWORK_TIMEOUT")),
        (NotSent("BROKER_DOWN"), until_it_answers, Unsent("BROKER_DOWN")),
        (TAKEN, at_once, Accepted("o-1")),
    ]
    for exchange, sending, outcome in cases:
        script = Script(exchange)
        assert unlocated(await over(script, sending).submit(ORDER)) == outcome
        assert script.asked == ["/order"]


async def test_a_message_leaves_only_through_send_so_that_its_departure_is_known(over: Callable[..., Bridge]) -> None:
    async def by_asking(message: Message, wire: Wire) -> Answer:
        return await wire.ask(REQUEST, read)

    script = Script()
    assert sent_nothing(await over(script, by_asking).submit(ORDER), "a POST changes something")
    assert script.asked == []


async def test_an_adapter_that_raises_is_judged_by_what_had_left(over: Callable[..., Bridge]) -> None:
    async def before(message: Message, wire: Wire) -> Answer:
        raise RuntimeError("a defect")

    async def after(message: Message, wire: Wire) -> Answer:
        await wire.send(REQUEST, read)
        raise RuntimeError("a defect")

    def raise_in_read(response: Response) -> Answer:
        raise RuntimeError("a defect")

    async def while_reading(message: Message, wire: Wire) -> Answer:
        return await wire.send(REQUEST, raise_in_read)

    failed = Ambiguous("ADAPTER_FAILED", "the adapter failed after the response")
    cases: list[tuple[Any, Exchange, SendOutcome]] = [
        (before, TAKEN, Unsent("VENUE_DOWN", "the adapter sent nothing: RuntimeError('a defect')")),
        (after, TAKEN, failed),
        (after, DENIED, failed),
        (after, TIMED_OUT, Ambiguous("NETWORK_TIMEOUT")),
        (after, NotSent("BROKER_DOWN"), Unsent("BROKER_DOWN")),
        (while_reading, DENIED, Ambiguous("UNKNOWN", "RuntimeError('a defect')")),
    ]
    for sending, exchange, outcome in cases:
        assert unlocated(await over(Script(exchange), sending).submit(ORDER)) == outcome


@pytest.mark.parametrize("departs", [True, False])
async def test_an_adapter_that_takes_too_long_is_judged_by_what_had_left(
    over: Callable[..., Bridge], monkeypatch: pytest.MonkeyPatch, departs: bool
) -> None:
    async def hangs(message: Message, wire: Wire) -> Answer:
        if departs:
            return await wire.send(REQUEST, read)
        await asyncio.Event().wait()
        raise AssertionError

    bridge = over(Script(None), hangs)
    monkeypatch.setattr(bridge_module, "SEND_LIMIT", timedelta(seconds=0.05))
    in_doubt = Ambiguous("NETWORK_TIMEOUT", "the adapter took too long")
    outcome = await bridge.submit(ORDER)
    assert outcome == in_doubt if departs else sent_nothing(outcome, "TimeoutError")


@pytest.mark.parametrize(
    "garbage",
    [
        "accepted",
        7,
        Took(venue_order_id="o-1", order=replace(SHOWN, qty="many")),
        Refused(code=10),  # type: ignore[arg-type]
        Refused(code="-40", order="one"),  # type: ignore[arg-type]
    ],
)
async def test_what_the_interface_does_not_have_is_doubt_and_the_other_orders_keep_their_outcomes(
    over: Callable[..., Bridge], garbage: Any
) -> None:
    async def send(message: Message, wire: Wire) -> Answer:
        return await wire.send(REQUEST, read if message.client_order_id != "two" else lambda response: garbage)

    others = [replace(TAKEN, body=TAKEN.body.replace(b"one", name)) for name in (b"one", b"two", b"three")]
    bridge = over(Script(*others), send, lookup="none")
    first, second, third = await bridge.submit_many([an_order(name, price="1") for name in ("one", "two", "three")])
    assert (first, third) == (Accepted("o-1"), Accepted("o-1"))
    assert isinstance(second, Ambiguous)


# Denials.


@pytest.mark.parametrize(
    ("script", "dedupe", "is_believed"),
    [
        (Script(DENIED), "while_open", True),
        (Script(DENIED, ends=False), "while_open", False),
        (Script(DENIED, ends=False), "permanent", False),
        (Script(replace(DENIED, is_followed=True)), "permanent", False),
        (Script(replace(DENIED, is_followed=True)), "while_open", False),
        (Script(answered(code=-10, cid="one")), "while_open", True),
        (Script(answered(code=-10, cid="another")), "permanent", False),
        (Script(answered(code=-10, errors=[{"cid": "another"}])), "permanent", False),
        (Script(answered(code=-10, oid="o-1")), "permanent", False),
        (Script(answered(code=-10, order={"state": "OPEN"})), "permanent", False),
        (Script(BrokerResponse(200, b'{"code": -10, "cid": "another", "cid": "one"}')), "permanent", False),
    ],
)
async def test_a_denial_counts_only_if_it_surely_answers_the_request(
    over: Callable[..., Bridge], script: Script, dedupe: str, is_believed: bool
) -> None:
    sent = await over(script, dedupe=dedupe).submit(ORDER)
    assert isinstance(sent, VenueRejected if is_believed else Ambiguous)


async def test_a_denial_on_a_connection_that_is_reused_counts_without_its_end(over: Callable[..., Bridge]) -> None:
    """So the broker must send nothing unasked: a repeated id would do no harm, but what is rejected is not repeated."""
    way = Way("https://acme.invalid", sends=Pool(1, reuses=True))
    sent = await over(Script(DENIED, ends=False), way=way, dedupe="permanent").submit(ORDER)
    assert isinstance(sent, VenueRejected)


@pytest.mark.parametrize(("ends", "is_believed"), [(True, True), (False, False)])
async def test_an_order_that_is_taken_but_not_shown_needs_the_only_response(
    over: Callable[..., Bridge], ends: bool, is_believed: bool
) -> None:
    sent = await over(Script(answered(oid="o-1"), ends=ends)).submit(ORDER)
    assert isinstance(sent, Accepted if is_believed else Ambiguous)


async def test_only_what_may_deny_awaits_the_end_of_its_connection(over: Callable[..., Bridge]) -> None:
    for exchange, awaited in [(TAKEN, 0), (answered(oid="o-1"), 1), (DENIED, 1), (BrokerResponse(200, b"?"), 0)]:
        script = Script(exchange)
        await over(script).submit(ORDER)
        assert script.awaited == awaited


# Codes.


@pytest.mark.parametrize(
    ("exchange", "outcome"),
    [
        (answered(code=-10), VenueRejected("BROKER_REJECTED", "-10")),
        (answered(422, code=-10), VenueRejected("BAD_REQUEST", "-10")),
        (answered(409, code=-10), VenueRejected("CONFLICT", "-10")),
        (answered(code=-30), VenueRejected("UNAUTHORIZED", "-30")),
        (answered(401, code=-10), VenueRejected("UNAUTHORIZED", "-10")),
        (answered(code=-20), Unsent("RATE_LIMITED", bytes_sent=True)),
        (answered(code=-21), Unsent("VENUE_BUSY", "-21", bytes_sent=True)),
        (answered(418, code=-1), Unsent("RATE_LIMITED", bytes_sent=True)),
        (answered(400, code=-1), VenueRejected("BAD_REQUEST", "-1")),
        (answered(400, code=-99), Unsent("VENUE_BUSY", "-99", bytes_sent=True)),
        (answered(code=-99), Ambiguous("UNKNOWN", "-99")),
        (answered(404, code=-99), Ambiguous("UNKNOWN", "HTTP 404")),
        (answered(code=-60), Ambiguous("REQUEST_EXPIRED")),
        (answered(503, code=-1), Ambiguous("BROKER_5XX")),
        (answered(409, code=-1), Ambiguous("CONFLICT", "-1")),
        (answered(code=-40), Ambiguous("CONFLICT", "-40")),
        (answered(400, code=-40), Ambiguous("CONFLICT", "-40")),
        # They say nothing about a new order.
        (answered(code=-50), Ambiguous("UNKNOWN", "-50")),
        (answered(400, code=-51), VenueRejected("BAD_REQUEST", "-51")),
    ],
)
async def test_a_code_means_what_the_descriptor_says_of_it_the_most_specific_entry_first(
    over: Callable[..., Bridge], exchange: BrokerResponse, outcome: SendOutcome
) -> None:
    sent = await over(Script(exchange), lookup="none").submit(ORDER)
    assert unlocated(sent) == outcome


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(-50, VenueRejected("UNKNOWN_ORDER")), (-51, VenueRejected("ORDER_FINAL")), (-40, Ambiguous("UNKNOWN", "-40"))],
)
async def test_the_codes_of_cancels(over: Callable[..., Bridge], code: int, outcome: SendOutcome) -> None:
    assert unlocated(await over(Script(answered(code=code))).cancel(ORDER)) == outcome


@pytest.mark.parametrize(
    ("lookup", "outcome"),
    [
        (TAKEN, Accepted("o-1", already_processed=True)),
        (answered(code=-50), Ambiguous("CONFLICT", "-40")),
        (answered(cid="another", oid="o-1"), Ambiguous("CONFLICT", "-40")),
        (answered(cid="one", oid="o-1", other={"cid": "another"}), Ambiguous("CONFLICT", "-40")),
        (TIMED_OUT, Ambiguous("CONFLICT", "-40")),
    ],
)
async def test_a_duplicate_is_accepted_once_a_lookup_shows_this_order(
    over: Callable[..., Bridge], lookup: Exchange, outcome: SendOutcome
) -> None:
    assert unlocated(await over(Script(answered(code=-40), lookup)).submit(ORDER)) == outcome


# Lookups.


@pytest.mark.parametrize(
    "script",
    [
        Script(answered(code=-50), ends=False),
        Script(answered(code=-50, oid="o-1")),
        Script(answered(code=-50, cid="another")),
        Script(answered(cid="another", oid="o-1")),
        Script(answered(code=-1)),
        Script(BrokerResponse(200, TAKEN.body, {"age": "7"})),
        Script(TIMED_OUT),
        Script(NotSent("BROKER_DOWN")),
    ],
)
async def test_an_absence_counts_only_if_the_answer_is_sure(over: Callable[..., Bridge], script: Script) -> None:
    with pytest.raises(VenueUnavailable, match="sim: "):
        await over(script).find(by_id("one"))


async def test_a_lookup_shows_the_order_or_its_absence(over: Callable[..., Bridge]) -> None:
    found = await over(Script(TAKEN, ends=False)).find(by_id("one"))
    assert found is not None and (found.venue_client_order_id, found.status) == ("one", "WORKING")
    assert await over(Script(answered(code=-50))).find(by_id("one")) is None


# Reports.


def a_report(**changes: Any) -> Report:
    return replace(
        Report(exec_id="1", client_order_id="one", venue_order_id="o-1", status="WORKING", at=MOMENT), **changes
    )


async def test_a_page_of_reports_keeps_its_cursor_and_its_unreadable_reports(over: Callable[..., Bridge]) -> None:
    bridge = over(Script())
    unreadable = Unreadable(text="\0" * 5_000, error="no\nreport")
    for cursor, restarted in (("c:9", False), ("c:1", True)):
        page = Page(reports=[a_report(), unreadable, a_report(exec_id="2")], cursor=cursor, restarted=restarted)
        bridge.adapter.reports = lambda *_, page=page: given(page)  # type: ignore[method-assign]
        read_page = await bridge.reports("c:0", 10)
        assert [report.exec_id for report in read_page.reports] == ["1", "2"]
        assert (read_page.cursor, read_page.restarted) == (cursor, restarted)
        [shown] = read_page.unreadable
        assert shown.text.isprintable() and shown.error.isprintable() and len(shown.text) <= 2_000


@pytest.mark.parametrize(
    "page",
    [
        Page(reports=[a_report()], cursor="c" * 1_025),
        Page(reports=[a_report()], cursor="c\0"),
        Page(reports=[], cursor="c"),  # nothing was asked
        Page(reports=["a report"], cursor="c"),  # type: ignore[list-item]
        None,
    ],
)
async def test_a_page_that_cannot_be_used_is_not_an_empty_page(over: Callable[..., Bridge], page: Any) -> None:
    bridge = over(Script())
    bridge.adapter.reports = lambda *_: given(page)  # type: ignore[method-assign]
    with pytest.raises(VenueUnavailable):
        await bridge.reports(None, 10)


@pytest.mark.parametrize("wrong", [{"qty": "many"}, {"exec_id": 5}, {"status": "?"}, {"at": "today"}])
async def test_a_report_with_other_types_is_set_aside_and_the_page_goes_on(
    over: Callable[..., Bridge], wrong: dict[str, Any]
) -> None:
    bridge = over(Script())
    page = Page(reports=[a_report(), a_report(**wrong), a_report(exec_id="2")], cursor="c")
    bridge.adapter.reports = lambda *_: given(page)  # type: ignore[method-assign]
    shown = await bridge.reports(None, 10)
    assert ([report.exec_id for report in shown.reports], len(shown.unreadable)) == (["1", "2"], 1)


async def given(value: Any) -> Any:
    return value


# Wires that outlive their call, or that are used by another one.


async def test_nothing_leaves_on_a_wire_once_its_call_is_over(over: Callable[..., Bridge]) -> None:
    kept: list[asyncio.Task[Answer]] = []

    async def keep(message: Message, wire: Wire) -> Answer:
        async def later() -> Answer:
            await asyncio.sleep(0.01)
            return await wire.send(REQUEST, read)

        kept.append(asyncio.create_task(later()))
        raise TimeoutError

    script = Script(TAKEN)
    assert sent_nothing(await over(script, keep).submit(ORDER), "TimeoutError")
    with pytest.raises(NoAnswer, match="over"):
        await kept[0]
    assert script.asked == []


async def test_a_send_that_goes_on_behind_its_call_is_destroyed_and_judged_by_what_had_left(
    over: Callable[..., Bridge],
) -> None:
    kept: list[asyncio.Task[Answer]] = []

    async def leave(message: Message, wire: Wire) -> Answer:
        kept.append(asyncio.create_task(wire.send(REQUEST, read)))
        await asyncio.sleep(0.01)
        return Refused(code="-10")

    script = Script(None)
    assert unlocated(await over(script, leave).submit(ORDER)) == Ambiguous(
        "NETWORK_TIMEOUT", "the adapter took too long"
    )
    assert kept[0].cancelled()


async def test_a_call_uses_its_own_wire_alone(over: Callable[..., Bridge]) -> None:
    wires: list[Wire] = []

    async def with_the_first(message: Message, wire: Wire) -> Answer:
        wires.append(wire)
        await asyncio.sleep(0)  # both calls are under way
        return await wires[0].send(REQUEST, read)

    script = Script(TAKEN, TAKEN)
    bridge = over(script, with_the_first)
    outcomes = await asyncio.gather(bridge.submit(ORDER), bridge.submit(ORDER))
    assert outcomes[0] == Accepted("o-1") and sent_nothing(outcomes[1], "the wire of another call")
    assert script.asked == ["/order"]


@pytest.mark.parametrize("how", ["send", "ask"])
async def test_a_question_changes_nothing(over: Callable[..., Bridge], how: str) -> None:
    script = Script(TAKEN)
    bridge = over(script)

    async def probe(wire: Wire) -> str:
        await (wire.send(REQUEST, read) if how == "send" else wire.ask(REQUEST, read))
        return "answered"

    bridge.adapter.probe = probe  # type: ignore[method-assign, assignment]
    with pytest.raises(VenueUnavailable):
        await bridge.probe()
    assert script.asked == []


@pytest.mark.parametrize("asks_by_post", [True, False])
async def test_a_question_is_a_post_only_where_that_is_declared_and_never_during_a_message(
    over: Callable[..., Bridge], asks_by_post: bool
) -> None:
    async def find(ref: object, wire: Wire) -> Found | None:
        return await wire.ask(Request(method="POST", path="/lookup", body=b"{}"), read_found)

    async def by_asking(message: Message, wire: Wire) -> Answer:
        return await wire.ask(REQUEST, read)

    script = Script(TAKEN, TAKEN)
    bridge = over(script, by_asking, replace(DESCRIPTOR, asks_by_post=asks_by_post))
    bridge.adapter.find = find  # type: ignore[method-assign]
    if asks_by_post:
        found = await bridge.find(by_id("one"))
        assert found is not None and found.venue_order_id == "o-1"
    else:
        with pytest.raises(VenueUnavailable, match="a POST changes something"):
            await bridge.find(by_id("one"))
    assert sent_nothing(await bridge.submit(ORDER), "a POST changes something")
    assert script.asked == ["/lookup"] * asks_by_post


def test_a_zero_is_not_shown_also_as_a_text() -> None:
    rules = AnswerRules(members=Members(ids=frozenset({"cid"}), filled=frozenset({"done"})))
    shown = {value: rules.shows_taken([("done", value)]) for value in (0, "0", "0.000", "", None, "0.01", "12", "all")}
    assert [value for value, is_shown in shown.items() if is_shown] == ["0.01", "12", "all"]


async def test_the_words_of_the_venue_are_shown_with_its_code(over: Callable[..., Bridge]) -> None:
    def denied(response: Response) -> Answer:
        return Refused(code="-10", text="insufficient balance")

    async def send(message: Message, wire: Wire) -> Answer:
        return await wire.send(REQUEST, denied)

    outcome = await over(Script(DENIED), send).submit(ORDER)
    assert outcome == VenueRejected("BROKER_REJECTED", "-10: insufficient balance")


async def test_an_adapter_that_swallows_errors_proves_no_absence(over: Callable[..., Bridge]) -> None:
    bridge = over(Script(TIMED_OUT, TIMED_OUT))

    async def find(ref: object, wire: Wire) -> None:
        with contextlib.suppress(Exception):
            await wire.ask(Request(method="GET", path="/order/one"), read_found)

    async def probe(wire: Wire) -> str:
        await find(None, wire)
        return "answered"

    bridge.adapter.find = find  # type: ignore[method-assign]
    bridge.adapter.probe = probe  # type: ignore[method-assign, assignment]
    with pytest.raises(VenueUnavailable):
        await bridge.find(by_id("one"))
    with pytest.raises(VenueUnavailable):
        await bridge.probe()


async def test_an_absence_that_the_adapter_concludes_itself_needs_a_sure_answer(over: Callable[..., Bridge]) -> None:
    bridge = over(Script(answered(code=-50)))

    async def find(ref: object, wire: Wire) -> None:
        body = await wire.ask(Request(method="GET", path="/order/one"), lambda response: response.body)
        assert body

    bridge.adapter.find = find  # type: ignore[method-assign]
    with pytest.raises(VenueUnavailable):
        await bridge.find(by_id("one"))


async def test_an_id_that_is_no_text_is_doubt(over: Callable[..., Bridge]) -> None:
    numeric = Took(venue_order_id=7, order=SHOWN)  # type: ignore[arg-type]
    outcome = await over(Script(TAKEN), claiming(numeric)).submit(ORDER)
    assert isinstance(outcome, Ambiguous) and outcome.code == "ADAPTER_FAILED"


async def test_an_adapter_that_ends_the_process_only_fails_its_message(over: Callable[..., Bridge]) -> None:
    async def exits(message: Message, wire: Wire) -> Answer:
        raise SystemExit(3)

    assert sent_nothing(await over(Script(), exits).submit(ORDER), "SystemExit(3)")


# Several orders in one call.


class Slow:
    """Departures and answers when the test says so; `log` has the steps of every order."""

    def __init__(self, *, departs: bool) -> None:
        self.log: list[str] = []
        self.answers = asyncio.Event()
        self._departs = departs

    async def send(self, message: Message, wire: Wire) -> Answer:
        name = message.client_order_id
        self.log.append(f"{name} starts")
        shown = msgspec.json.encode({"cid": name, "oid": name})
        request = Request(method="POST", path=f"/{name}", body=shown)
        answer = await wire.send(request, read)
        self.log.append(f"{name} answered")
        return answer

    async def ask(self, method: str, path: str, *, on_departure: OnDeparture, body: bytes, **_: object) -> Exchange:
        await asyncio.sleep(0)
        if not self._departs:
            return NotSent("BROKER_DOWN")
        self.log.append(f"{path[1:]} departs")
        on_departure()
        await self.answers.wait()
        return BrokerResponse(200, body)


NAMES = ("one", "two", "three")
ORDERS = [an_order(name, price="1") for name in NAMES]


async def test_an_order_leaves_when_the_one_before_has_departed(over: Callable[..., Bridge]) -> None:
    slow, departed = Slow(departs=True), asyncio.Event()
    call = asyncio.create_task(over(slow, slow.send).submit_many(ORDERS, departed.set))
    await departed.wait()
    assert slow.log == [f"{name} {step}" for name in NAMES for step in ("starts", "departs")]
    slow.answers.set()
    assert await call == [Accepted(name) for name in NAMES]


async def test_an_order_waits_for_the_outcome_of_one_that_does_not_depart(over: Callable[..., Bridge]) -> None:
    slow = Slow(departs=False)
    assert await over(slow, slow.send).submit_many(ORDERS) == [Unsent("BROKER_DOWN")] * 3
    assert slow.log == [f"{name} starts" for name in NAMES]


async def test_a_defect_in_one_order_leaves_the_others_their_outcomes(over: Callable[..., Bridge]) -> None:
    slow = Slow(departs=True)
    slow.answers.set()

    async def send(message: Message, wire: Wire) -> Answer:
        answer = await slow.send(message, wire)
        if message.client_order_id == "two":
            raise RuntimeError("a defect")
        return answer

    bridge = over(slow, send)
    in_doubt = Ambiguous("ADAPTER_FAILED", "the adapter failed after the response")
    assert [unlocated(sent) for sent in await bridge.submit_many(ORDERS)] == [
        Accepted("one"),
        in_doubt,
        Accepted("three"),
    ]
    assert unlocated((await bridge.submit_many(ORDERS[1:2]))[0]) == in_doubt


# Client order ids in the venue's own form.

UUID = IdForm(is_uuid=True)
ID, AMEND_ID, NEXT_ID = (narrowed(VenueClientOrderId(f"abcd{digit * 23}00001"), UUID) for digit in ("a", "b", "c"))
THERE, AMEND_THERE, NEXT_THERE = (to_venue(each, UUID) for each in (ID, AMEND_ID, NEXT_ID))
OWN_ORDER = replace(ORDER, venue_client_order_id=ID)


async def test_an_order_has_the_venues_form_of_its_id_in_messages_and_answers(over: Callable[..., Bridge]) -> None:
    sent: list[Message] = []

    async def send(message: Message, wire: Wire) -> Answer:
        sent.append(message)
        return await wire.send(REQUEST, read)

    script = Script(*(answered(cid=THERE, oid="o-1", state="open") for _ in range(3)))
    bridge = over(script, send, descriptor=replace(DESCRIPTOR, id_form=UUID))
    amend = replace(AMEND, client_order_id=AMEND_ID, orig_client_order_id=ID)
    assert await bridge.submit(OWN_ORDER) == Accepted("o-1")
    assert await bridge.cancel(OWN_ORDER) == Accepted("o-1")
    await bridge.amend(OWN_ORDER, amend)
    assert [message.client_order_id for message in sent] == [THERE, THERE, AMEND_THERE]
    assert isinstance(sent[2], AmendOrder) and sent[2].orig_client_order_id == THERE


async def test_an_answer_with_an_id_in_another_form_names_another_order(over: Callable[..., Bridge]) -> None:
    for name in (ID, NEXT_THERE, THERE.upper()):
        outcome = await over(
            Script(answered(cid=name, oid="o-1", state="open")), descriptor=replace(DESCRIPTOR, id_form=UUID)
        ).submit(OWN_ORDER)
        assert isinstance(outcome, Ambiguous), name


async def test_a_lookup_asks_and_answers_in_the_form_of_its_side(over: Callable[..., Bridge]) -> None:
    script = Script(
        answered(cid=THERE, oid="o-1", state="open"), answered(code=-50), answered(code=-50, cid=NEXT_THERE)
    )
    bridge = over(script, lookup="all", descriptor=replace(DESCRIPTOR, id_form=UUID))
    found = await bridge.find(to_find(OWN_ORDER))
    assert found is not None and found.venue_client_order_id == ID
    assert await bridge.find(to_find(OWN_ORDER)) is None
    with pytest.raises(VenueUnavailable, match="names another order"):
        await bridge.find(to_find(OWN_ORDER))
    assert script.asked == [f"/order/{THERE}"] * 3


async def test_amends_that_a_lookup_shows_have_our_ids(over: Callable[..., Bridge]) -> None:
    bridge = over(Script(), lookup="all", descriptor=replace(DESCRIPTOR, id_form=UUID))
    shown = Found(client_order_id=THERE, venue_order_id="o-1", status="WORKING", replaced_by=NEXT_THERE)
    next_shown = Found(client_order_id=NEXT_THERE, venue_order_id="o-2", status="WORKING", amended_by=AMEND_THERE)
    answers = {THERE: shown, NEXT_THERE: next_shown}

    async def found(ref: OrderRef, _wire: Wire) -> Found:
        return answers[ref.client_order_id]

    bridge.adapter.find = found  # type: ignore[method-assign, assignment]
    order = await bridge.find(to_find(OWN_ORDER))
    assert order is not None and order.venue_client_order_id == NEXT_ID
    assert [(amend.client_order_id, amend.replaces) for amend in order.amends] == [(NEXT_ID, True), (AMEND_ID, False)]


async def test_a_cancel_goes_on_to_the_order_in_the_place_of_another_in_the_venues_form(
    over: Callable[..., Bridge],
) -> None:
    sent: list[str] = []

    def replacing(_response: Response) -> Answer:
        shown = Found(client_order_id=THERE, venue_order_id="o-1", status="CANCELED", replaced_by=NEXT_THERE)
        return Refused(code="-51", order=shown)

    async def send(message: Message, wire: Wire) -> Answer:
        sent.append(message.client_order_id)
        return await wire.send(REQUEST, replacing if len(sent) == 1 else read)

    bridge = over(Script(answered(code=-51), answered(code=-50)), send, descriptor=replace(DESCRIPTOR, id_form=UUID))
    assert await bridge.cancel(OWN_ORDER) == Unsent("REPLACED", NEXT_ID, bytes_sent=True)
    assert sent == [THERE, NEXT_THERE]


async def test_open_orders_and_reports_come_with_our_ids_and_those_of_others_unchanged(
    over: Callable[..., Bridge],
) -> None:
    bridge = over(Script(*[TAKEN] * 2), lookup="all", descriptor=replace(DESCRIPTOR, id_form=UUID))
    names = [THERE, "manual-1", "0b0a7c0e-0f0e-1f0e-8f0e-0b0a7c0e0f0e"]
    shown = [Found(client_order_id=name, venue_order_id="o-1", status="WORKING") for name in names]

    async def open_orders(wire: Wire) -> AsyncIterator[list[Found]]:
        await wire.ask(Request(method="GET", path="/open"), lambda _: None)
        yield shown

    async def reports(_after: str | None, _limit: int, wire: Wire) -> Page:
        await wire.ask(Request(method="GET", path="/reports"), lambda _: None)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        read = [Report(exec_id=n, client_order_id=n, venue_order_id="o", status="WORKING", at=at) for n in names]
        return Page(reports=read, cursor="1")

    bridge.adapter.open_orders, bridge.adapter.reports = open_orders, reports  # type: ignore[method-assign, assignment]
    listed = [found.venue_client_order_id async for page in bridge.open_orders() for found in page]
    page = await bridge.reports(None, 10)
    assert listed == [report.venue_client_order_id for report in page.reports] == [ID, *names[1:]]


async def test_an_id_that_the_form_has_no_room_for_is_neither_sent_nor_looked_up(over: Callable[..., Bridge]) -> None:
    bridge = over(Script(), lookup="all", descriptor=replace(DESCRIPTOR, id_form=UUID))
    order = replace(ORDER, venue_client_order_id=VenueClientOrderId("abcd" + "1" * 28))
    for outcome in (await bridge.submit(order), await bridge.cancel(order), await bridge.amend(order, AMEND)):
        assert isinstance(outcome, VenueRejected) and "no room" in str(outcome.detail)
    with pytest.raises(VenueUnavailable, match="no room"):
        await bridge.find(to_find(order))


# Proofs that a message was never received.


def never(_response: Response) -> NeverReceived:
    return NeverReceived(evidence="numbers")


def proving(bridge: Bridge) -> Bridge:
    async def find(ref: OrderRef, wire: Wire) -> NeverReceived:
        return await wire.ask(Request(method="GET", path=f"/order/{ref.client_order_id}"), never)

    bridge.adapter.find = find  # type: ignore[method-assign]
    return bridge


async def test_a_proof_needs_the_capability_of_the_descriptor(over: Callable[..., Bridge]) -> None:
    bridge = proving(over(Script(answered(code=-50)), lookup="all", sequence_proof=True))
    bridge.descriptor = DESCRIPTOR
    with pytest.raises(VenueUnavailable, match="does not declare"):
        await bridge.find_or_proof(to_find(ORDER))


@pytest.mark.parametrize("lookup", ["all", "none"])
async def test_a_proof_comes_with_its_evidence_and_elsewhere_counts_as_absent(
    over: Callable[..., Bridge], lookup: str
) -> None:
    script = Script(*[answered(code=-50)] * 3)
    bridge = proving(over(script, descriptor=PROVING, lookup=lookup, sequence_proof=True))
    assert await bridge.find_or_proof(to_find(ORDER)) == NeverReceived(evidence="numbers")
    if lookup == "all":
        assert await bridge.find(to_find(ORDER)) is None
        return
    with pytest.raises(VenueUnavailable):
        await bridge.find(to_find(ORDER))


async def test_a_proof_that_a_setting_turns_off_counts_as_absent(over: Callable[..., Bridge]) -> None:
    bridge = proving(over(Script(answered(code=-50)), descriptor=PROVING, lookup="all", sequence_proof=False))
    assert await bridge.find_or_proof(to_find(ORDER)) is None


@pytest.mark.parametrize(
    "response",
    [
        answered(code=-50, cid="other"),
        answered(code=-50, cid="one", oid="o-1", state="open"),
        replace(answered(code=-50), body=b"{"),
    ],
)
async def test_a_proof_that_its_answer_contradicts_is_none(
    over: Callable[..., Bridge], response: BrokerResponse
) -> None:
    bridge = proving(over(Script(response), descriptor=PROVING, lookup="all", sequence_proof=True))
    with pytest.raises(VenueUnavailable):
        await bridge.find_or_proof(to_find(ORDER))


async def test_a_proof_counts_only_if_the_response_surely_belongs_to_the_question(over: Callable[..., Bridge]) -> None:
    bridge = proving(
        over(Script(answered(code=-50), ends=False), descriptor=PROVING, lookup="all", sequence_proof=True)
    )
    with pytest.raises(VenueUnavailable, match="may answer another request"):
        await bridge.find_or_proof(to_find(ORDER))
