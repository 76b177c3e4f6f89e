"""What one process knows about the rows in doubt of a venue: since when it waits, and when it asks next. In memory."""

from switchyard.domain.orders.outbox import OutboxKey, OutboxRow
from switchyard.flow.sending.answering import Mark

# An entry takes about 300 bytes. Rows beyond this number are looked up, but their waiting time starts only when others
# have been settled.
TRACKED_MAX = 10_000
# Lookups of one row: the first at once, then twice as far apart each time, so that doubts which cannot be settled yet
# do not use up a venue's rate limit. A lookup that can prove absence does not wait for this.
ASK_SECONDS_MIN = 0.5
ASK_SECONDS_MAX = 30.0


class Doubt:
    """One attempt in doubt."""

    def __init__(self) -> None:
        self.gave_up: Mark | None = None
        """When this process first saw the row in doubt with its sender gone."""
        self.ask_at = float("-inf")
        self.round = 0
        self._pause = ASK_SECONDS_MIN

    def asked(self, now: float) -> None:
        """The venue was asked about it at this monotonic time."""
        self.ask_at = now + self._pause
        self._pause = min(2 * self._pause, ASK_SECONDS_MAX)


class Doubts:
    """The doubts of one venue, by row and attempt: a new attempt is a new doubt."""

    def __init__(self) -> None:
        self._doubts: dict[tuple[OutboxKey, int], Doubt] = {}
        self._round = 0

    def of(self, row: OutboxRow) -> Doubt:
        """What is known about the row's attempt."""
        key = (row.key, row.attempt)
        doubt = self._doubts.get(key)
        if doubt is None:
            doubt = Doubt()
            if len(self._doubts) < TRACKED_MAX:
                self._doubts[key] = doubt
        doubt.round = self._round
        return doubt

    def end_round(self) -> None:
        """All rows have been seen: remove those that were settled since the last round."""
        self._doubts = {key: doubt for key, doubt in self._doubts.items() if doubt.round == self._round}
        self._round += 1
