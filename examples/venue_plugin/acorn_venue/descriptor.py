"""What Acorn's documents say, as data: the core acts on it."""

from datetime import date, timedelta
from typing import Final

from switchyard.venue import Capabilities, Descriptor, Evidence, IdForm, Members, Option, OrderKinds, Source

# How long after its time stamp Acorn still takes a request; it allows up to 10 seconds.
WINDOW: Final = timedelta(seconds=3)


def _source(claim: str, section: str, evidence: Evidence = "tried on an example") -> Source:
    document = f"Acorn REST API 2 (fictional; examples/venue_plugin/README.md), {section}"
    return Source(claim=claim, source=document, read_on=date(2026, 11, 18), evidence=evidence)


CAPABILITIES: Final = Capabilities(
    dedupe="while_open",
    lookup="all",
    lookup_keeps=timedelta(days=7),
    acceptance_window=WINDOW,
    request_expiry=True,
    execution_ids="symbol",
    amend="in_place",
    kinds=OrderKinds(times_in_force=frozenset({"GTC", "IOC", "GTD"})),
    post_only=True,
    cancel_all=True,
    cancel_all_after=True,
)

DESCRIPTOR: Final = Descriptor(
    kind="acorn",
    title="Acorn, a fictional broker: spot orders over REST",
    capabilities=CAPABILITIES,
    id_form=IdForm(is_uuid=True),
    codes={
        "BAD_FIELD": "rejected",
        "NO_FUNDS": "rejected",
        "WOULD_TRADE": "rejected",
        "BAD_SIGN": "unauthorized",
        "TOO_LATE": "expired",
        "REF_IN_USE": "duplicate",
        "NO_ORDER": "unknown_order",
        "ORDER_OVER": "order_final",
        "OLD_CHANGE": "stale_amend",
        "429": "throttled",
        # ENGINE_LATE is left out: the order may still be carried out, so this code ends nothing.
    },
    members=Members(
        ids=frozenset({"ref"}),
        taken=frozenset({"oid"}),
        filled=frozenset({"fills"}),
        status="state",
        taken_statuses=frozenset({"live", "part", "done", "dead", "over"}),
        amended=frozenset({"change"}),
    ),
    options=(
        Option(name="key", text="The id of the API key.", is_secret=True, is_required=True),
        Option(name="secret", text="The secret of the API key.", is_secret=True, is_required=True),
        Option(name="desk", text="The desk that orders are booked to.", default="main"),
    ),
    time_header="Acorn-Now",
    sources=(
        _source("dedupe", "Orders: a ref is unique among open orders"),
        _source("lookup", "Lookup: open and closed orders, by pair and ref"),
        _source("lookup_keeps", "Lookup: orders that have ended are kept for seven days"),
        _source("acceptance_window", "Signing: Acorn-Window"),
        _source("request_expiry", "Signing: a request that arrives after its window is answered with TOO_LATE"),
        _source("execution_ids", "Events: fid counts the executions of a pair"),
        _source("amend", "Changes: an order keeps its ref; a change names the last one"),
        _source("id_form", "Orders: a ref is a random UUID"),
        _source("post_only", "Orders: maker"),
        _source("kinds", "Orders: tif"),
        _source("cancel_all", "Changes: cancel-all"),
        _source("cancel_all_after", "Guard"),
        _source("codes", "Errors"),
    ),
)
