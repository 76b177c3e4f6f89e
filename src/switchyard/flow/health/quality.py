"""How a venue has answered lately: its latency and the share of orders that it rejects. In memory."""

from switchyard.ports.venue import Accepted, SendOutcome, VenueRejected

# The weight of the newest answer: about the last twenty count.
WEIGHT = 0.1
# With fewer answers than this, a share says little.
ANSWERS_MIN = 5


class VenueQuality:
    """Moving averages over the answers to orders; none until there are some."""

    def __init__(self) -> None:
        self._answers = 0
        self._latency: float | None = None
        self._rejected = 0.0

    @property
    def latency_seconds(self) -> float | None:
        """How long the venue takes to answer an order."""
        return self._latency

    @property
    def reject_rate(self) -> float | None:
        """The share of orders that the venue rejects, from 0 to 1."""
        return self._rejected if self._answers >= ANSWERS_MIN else None

    def note(self, outcome: SendOutcome, seconds: float) -> None:
        """The venue has answered an order after this time, or has not."""
        if not isinstance(outcome, Accepted | VenueRejected):
            return
        weight = max(WEIGHT, 1 / (self._answers + 1))
        self._latency = seconds if self._latency is None else self._latency + weight * (seconds - self._latency)
        self._rejected += weight * (isinstance(outcome, VenueRejected) - self._rejected)
        self._answers += 1
