"""The faults that the simulator injects, and the seeded plan that decides when."""

import random
from typing import Annotated, Any

import msgspec

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
# One hour: longer than any test waits.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The probability or duration of each fault; zero switches it off.

    Faults apply to orders, cancels and amends. Lookups are affected only by the faults that say so, so that orders in
    doubt can be resolved while sends fail.
    """

    drop_answer: Probability = 0.0
    """Carry out the request, then close the connection without a response."""
    accepted_5xx: Probability = 0.0
    """Carry out the request, then respond 500."""
    refused_5xx: Probability = 0.0
    """Respond 503 without carrying out the request."""
    accept_late: Seconds = 0.0
    """Respond 503 or close the connection, and accept the order this many seconds later."""
    accept_late_400: Probability = 0.0
    """With `accept_late`: respond 400, although the outcome is unknown."""
    rate_limit: Probability = 0.0
    """Respond 429 with `Retry-After` without carrying out the request."""
    reject: Probability = 0.0
    """Respond 400, the documented rejection, without accepting the order."""
    reject_after_part_fill: Probability = 0.0
    """Fill half of a marketable order, then respond 403; the remainder stays open for an hour."""
    cancel_lost: Probability = 0.0
    """Acknowledge a cancel without carrying it out."""
    conflict: Probability = 0.0
    """Respond 409 instead of the order to a repeated client order id."""
    garbage: Probability = 0.0
    """Carry out the request, then respond 200 with a body that is not JSON."""
    close_mid_body: Probability = 0.0
    """Carry out the request, then close the connection in the middle of the response."""
    slow_bytes: Seconds = 0.0
    """Carry out the request, then send the response byte by byte with a pause of this many seconds after each."""
    lookup_5xx: Probability = 0.0
    """Respond 503 to a lookup of an order or of the open orders."""
    open_orders_5xx: Probability = 0.0
    """Respond 503 to a request for the open orders."""
    open_orders_page: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """The number of orders in a page of open orders; zero means 500."""
    lagging_lookup: Seconds = 0.0
    """Respond 404 to lookups of an order for this many seconds after it was accepted."""
    not_found_after_fill: Probability = 0.0
    """Respond 404 to a lookup of a filled order."""
    quotes_5xx: Probability = 0.0
    """Respond 503 to a request for quotes."""
    quotes_garbage: Probability = 0.0
    """Respond 200 to a request for quotes with a body that is not JSON."""
    slow_quotes: Seconds = 0.0
    """Hold a request for quotes for this many seconds."""
    lagging_quotes: Seconds = 0.0
    """Date quotes this many seconds back, like a feed that has stopped."""
    crossed_quotes: Probability = 0.0
    """Swap bid and ask of a quote."""
    duplicate_reports: Probability = 0.0
    """Report an execution twice, the second time immediately or 0.2 s later."""
    reordered_reports: Probability = 0.0
    """Report an execution after the one that follows it."""
    late_reports: Seconds = 0.0
    """Report an execution this many seconds after it happened."""
    reports_5xx: Probability = 0.0
    """Respond 503 to a request for reports."""
    nul_in_report: Probability = 0.0
    """Report an execution under an id that contains a NUL."""
    unreadable_report: Probability = 0.0
    """Report an execution with an unknown status and without most of its fields."""
    reuse_exec_ids: Probability = 0.0
    """Give a fill the execution id of another order's fill, in the report and in lookups."""
    restart_report_numbers: Probability = 0.0
    """Drop the published reports, and number the next ones from 1 again; takes effect once, when it is set."""
    drop_reports: Probability = 0.0
    """Do not report an execution."""
    correct_fills: Probability = 0.0
    """Report a correction of a fill's price by one tick right after the fill; lookups keep showing the first price."""
    bust_fills: Probability = 0.0
    """Report right after a fill that it is void; lookups keep showing it, the statement has both."""
    fee_basis_points: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0
    """Charge this share of a fill's notional, in the quote currency; a negative share is a rebate."""
    partial_fills: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Fill an order in this many parts."""
    displayed_qty: Annotated[int, msgspec.Meta(ge=0, le=10**14)] = 0
    """Display this quantity on each side of a symbol and market step, shared by all orders; zero: enough for all."""
    refuse_connections: Seconds = 0.0
    """Close every connection and stop listening for this many seconds; takes effect once, when it is set."""
    timed_share: Probability = 1.0
    """The probability with which faults with a duration apply when they are set."""


def changed(faults: Faults, values: dict[str, Any], *, strict: bool = True) -> Faults:
    """The faults with these values replaced; raises a ValidationError that names an invalid fault."""
    return msgspec.convert({**msgspec.structs.asdict(faults), **values}, Faults, strict=strict)


class FaultPlan:
    """Decides per request whether a fault applies, from a seed, so that a run can be repeated."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self._seed = seed
        # One generator per fault, so that enabling one fault does not change when the others apply.
        self._generators: dict[str, random.Random] = {}

    def hits(self, name: str) -> bool:
        """Whether this fault applies now."""
        return self._draw(name, getattr(self.faults, name))

    def seconds(self, name: str) -> float:
        """The duration of this fault if it applies now, else zero."""
        seconds: float = getattr(self.faults, name)
        return seconds if seconds and self._draw(name, self.faults.timed_share) else 0.0

    def coin(self, name: str) -> bool:
        """Choose one of the two variants of a fault."""
        return self._draw(f"{name} coin", 0.5)

    def _draw(self, name: str, probability: float) -> bool:
        if not probability:
            return False
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = random.Random(f"{self._seed} {name}")
        return generator.random() < probability
