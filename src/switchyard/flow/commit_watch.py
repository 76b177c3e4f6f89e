"""Watches whether commits succeed, for `/health/ready`: a database that can be read may still take no writes."""

from switchyard.ports.clock import Clock

# A commit takes milliseconds. After this time without an answer, requests should go to another process.
COMMIT_SECONDS_MAX = 2.0
# How long a failure counts without another commit: then requests come again, and the next one decides.
FAILURE_SECONDS = 10.0


class CommitWatch:
    """The commits under way, and the last failure if no commit has succeeded since."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}
        self._failure: tuple[float, str] | None = None

    def begin(self, group_id: str) -> None:
        """Note that a group is being written."""
        self._began[group_id] = self._clock.monotonic()

    def end(self, group_id: str, failure: str | None) -> None:
        """Note that the group was written, or why not."""
        del self._began[group_id]
        self._failure = None if failure is None else (self._clock.monotonic(), failure)

    def problem(self) -> str | None:
        """Why new orders are not stored at present; none where nothing is known against it."""
        now = self._clock.monotonic()
        seconds = now - min(self._began.values(), default=now)
        if seconds >= COMMIT_SECONDS_MAX:
            return f"a commit has had no answer for {seconds:.0f} s"
        if self._failure is not None and now - self._failure[0] < FAILURE_SECONDS:
            return f"the last commit failed: {self._failure[1]}"
        return None
