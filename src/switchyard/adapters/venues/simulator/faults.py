"""What the simulator does wrong on purpose, and when."""

import random
from typing import Annotated, Any

import msgspec

Probability = Annotated[float, msgspec.Meta(ge=0, le=1)]
# An hour is longer than any run waits for.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often, or for how long; zero is never.

    They hit orders and cancels; questions are hit only by those that say so, so that doubt can be settled while
    sends go wrong.
    """

    drop_answer: Probability = 0.0
    """Do what was asked, then close without an answer."""
    accepted_5xx: Probability = 0.0
    """Do what was asked, then answer 500."""
    refused_5xx: Probability = 0.0
    """Answer 503 and do nothing."""
    accept_late: Seconds = 0.0
    """Answer 503 or close, and take the order so many seconds later."""
    rate_limit: Probability = 0.0
    """Answer 429 with `Retry-After`, and do nothing."""
    reject: Probability = 0.0
    """Answer 400, the documented rejection, and do nothing."""
    conflict: Probability = 0.0
    """Answer a recognised client order id with 409 instead of the order."""
    garbage: Probability = 0.0
    """Do what was asked, then answer 200 with a body that is no JSON."""
    close_mid_body: Probability = 0.0
    """Do what was asked, then close in the middle of the answer."""
    slow_bytes: Seconds = 0.0
    """Do what was asked, then answer byte by byte with so long a pause after each."""
    lookup_5xx: Probability = 0.0
    """Answer a question about an order, or for all open ones, with 503."""
    lagging_lookup: Seconds = 0.0
    """Say 404 about an order for so long after it was taken."""
    not_found_after_fill: Probability = 0.0
    """Say 404 about an order that was filled."""
    duplicate_reports: Probability = 0.0
    """Report an execution twice, the second time at once or a little later."""
    reordered_reports: Probability = 0.0
    """Report an execution behind the one that follows it."""
    late_reports: Seconds = 0.0
    """Report an execution so much later than it happened."""
    drop_reports: Probability = 0.0
    """Never report an execution that happened."""
    partial_fills: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """Fill an order in so many parts."""
    refuse_connections: Seconds = 0.0
    """Drop every connection and do not listen for so long; happens once, when it is set."""
    timed_share: Probability = 1.0
    """How much of what a fault in seconds could hit it does hit: accept_late, slow_bytes, late_reports."""


def changed(faults: Faults, values: dict[str, Any], *, strict: bool = True) -> Faults:
    """The faults with these set anew, or a ValidationError that names the one that is wrong."""
    return msgspec.convert({**msgspec.structs.asdict(faults), **values}, Faults, strict=strict)


class FaultPlan:
    """Decides for each request, by a seed, so that the same run meets the same faults."""

    def __init__(self, faults: Faults, seed: int) -> None:
        self.faults = faults
        self._seed = seed
        # One generator for each, so that switching one on does not change when the others hit.
        self._generators: dict[str, random.Random] = {}

    def hits(self, name: str) -> bool:
        """Whether this fault hits now."""
        return self._drawn(name, getattr(self.faults, name))

    def seconds(self, name: str) -> float:
        """How long this fault lasts if it hits now, else zero."""
        seconds: float = getattr(self.faults, name)
        return seconds if seconds and self._drawn(name, self.faults.timed_share) else 0.0

    def coin(self, name: str) -> bool:
        """One of the two ways a fault can go."""
        return self._drawn(f"{name} coin", 0.5)

    def _drawn(self, name: str, probability: float) -> bool:
        if not probability:
            return False
        generator = self._generators.get(name)
        if generator is None:
            generator = self._generators[name] = random.Random(f"{self._seed} {name}")
        return generator.random() < probability
