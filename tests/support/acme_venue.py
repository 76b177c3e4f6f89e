"""An adapter as another distribution would bring it: a venue that does not exist, with errors as HTTP 200."""

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from types import MappingProxyType

import msgspec

from switchyard.domain.ids import IdForm
from switchyard.ports.venue import ProbeResult
from switchyard.venue import (
    Answer,
    Capabilities,
    Configuration,
    Descriptor,
    Found,
    Kind,
    Members,
    Message,
    Option,
    OrderKinds,
    OrderRef,
    Page,
    Refused,
    Request,
    Response,
    Took,
    Unclear,
    Wire,
)

DESCRIPTOR = Descriptor(
    kind="acme",
    title="A venue for tests",
    capabilities=Capabilities(
        dedupe="ttl",
        dedupe_ttl=timedelta(seconds=30),
        lookup="open",
        acceptance_window=timedelta(seconds=3),
        lookup_keeps=timedelta(hours=2),
        execution_ids="symbol",
        request_expiry=True,
        amend="in_place",
        kinds=OrderKinds(types=frozenset({"LIMIT"}), times_in_force=frozenset({"GTC", "IOC"})),
    ),
    members=Members(
        ids=frozenset({"cid"}),
        taken=frozenset({"oid"}),
        taken_statuses=frozenset({"open"}),
        status="state",
    ),
    codes=MappingProxyType(
        {
            "-10": "rejected",
            "-20": "throttled",
            "-21": "busy",
            "-30": "unauthorized",
            "-40": "duplicate",
            "-50": "unknown_order",
            "-51": "order_final",
            "-60": "expired",
            "418": "throttled",
            "400": "rejected",
            "400:-99": "busy",
        }
    ),
    options=(
        Option(name="region", text="Where it is.", default="eu", choices=("eu", "us")),
        Option(name="desk", text="The desk that trades.", is_required=True),
        Option(name="key", text="The key.", is_secret=True, is_required=True),
    ),
    default_url="https://acme.invalid",
)


class Reply(msgspec.Struct, omit_defaults=True):
    """The body of every answer."""

    code: int = 0
    cid: str | None = None
    oid: str | None = None
    state: str | None = None


def read(response: Response) -> Answer:
    """What the venue says about a message."""
    try:
        reply = msgspec.json.decode(response.body, type=Reply)
    except msgspec.DecodeError:
        return Unclear(text="no JSON")
    if reply.code:
        return Refused(code=str(reply.code))
    if reply.oid is None:
        return Unclear(text="no order id")
    return Took(venue_order_id=reply.oid, order=found(reply))


def found(reply: Reply) -> Found | None:
    """The order, if the reply names it."""
    if reply.cid is None or reply.oid is None:
        return None
    return Found(client_order_id=reply.cid, venue_order_id=reply.oid, status="WORKING")


def read_found(response: Response) -> Found | None:
    """The order in the answer to a lookup."""
    reply = msgspec.json.decode(response.body, type=Reply)
    if reply.code == -50:
        return None
    shown = found(reply)
    if shown is None:
        raise ValueError("no order")
    return shown


REQUEST = Request(method="POST", path="/order", body=b"{}")


class AcmeAdapter:
    """`sending`: what its `send` does in place of one request."""

    def __init__(self, sending: Callable[[Message, Wire], object] | None = None) -> None:
        self._sending = sending

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def send(self, message: Message, wire: Wire) -> Answer:
        if self._sending is not None:
            return await self._sending(message, wire)  # type: ignore[misc, no-any-return]
        return await wire.send(REQUEST, read)

    async def find(self, ref: OrderRef, wire: Wire) -> Found | None:
        return await wire.ask(Request(method="GET", path=f"/order/{ref.client_order_id}"), read_found)

    async def open_orders(self, wire: Wire) -> AsyncIterator[Sequence[Found]]:
        yield []

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        return Page(reports=[], cursor=after or "")

    async def probe(self, wire: Wire) -> ProbeResult:
        return "answered"


built: list[Configuration] = []


def build(configuration: Configuration) -> AcmeAdapter:
    """Make an adapter, and remember what it was made from."""
    built.append(configuration)
    return AcmeAdapter()


KIND = Kind(descriptor=DESCRIPTOR, build=build)
NOT_A_KIND = DESCRIPTOR
OTHER_NAME = Kind(descriptor=msgspec.structs.replace(DESCRIPTOR, kind="other"), build=build)
CONTRADICTS_ITSELF = Kind(
    descriptor=msgspec.structs.replace(
        DESCRIPTOR, capabilities=Capabilities(dedupe="ttl", lookup="none"), kind="contradicts-itself"
    ),
    build=build,
)
IN_PROCESS = Kind(descriptor=msgspec.structs.replace(DESCRIPTOR, kind="in-process", in_process=True), build=build)
SHORT_IDS = Kind(
    descriptor=msgspec.structs.replace(DESCRIPTOR, kind="short-ids", id_form=IdForm(length_max=16)), build=build
)
WRONG_CODE = Kind(
    descriptor=msgspec.structs.replace(DESCRIPTOR, kind="wrong-code", codes={"1": "denied"}),
    build=build,
)
NO_ADDRESS = Kind(descriptor=msgspec.structs.replace(DESCRIPTOR, kind="no-address", default_url=""), build=build)
