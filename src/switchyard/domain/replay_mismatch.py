"""The error of a replay."""

from switchyard.domain.errors import SwitchyardError


class ReplayMismatch(SwitchyardError):
    """The event at `seq` does not follow from those before it."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"event {seq}: {why}")
        self.seq = seq
        self.why = why
