"""What is said over the control socket: one line of JSON each way, and where the socket lies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from switchyard.domain.errors import OutcomeUnknown, RequestError, SwitchyardError, Unavailable
from switchyard.domain.events import Verdict
from switchyard.domain.orders import OrderSnapshot
from switchyard.settings import Settings

# The longest names and reasons that are allowed, in any script, with room to spare.
REQUEST_BYTES_MAX = 16 * 1024
# An order with all its tags is a tenth of this.
ANSWER_BYTES_MAX = 64 * 1024
# The kernels' limits are 108 (Linux) and 104 bytes (macOS), the closing NUL included.
ADDRESS_BYTES_MAX = 103


class ResolveDoubt(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="command", tag="resolve_doubt"
):
    """End the doubt about an outbox row by a person's word."""

    id: str
    verdict: Verdict
    by: str
    reason: str


class Decided(msgspec.Struct, frozen=True, tag_field="answer", tag="decided"):
    """It is in the journal; the order as the decision left it."""

    order: OrderSnapshot


class Declined(msgspec.Struct, frozen=True, tag_field="answer", tag="declined"):
    """It was not done, or nobody knows whether it was."""

    why: Literal["request", "state", "unavailable", "unknown"]
    message: str

    @classmethod
    def of(cls, error: SwitchyardError) -> "Declined":
        """The error as far as a command's exit code depends on it."""
        match error:
            case RequestError():
                return cls("request", str(error))
            case Unavailable():
                return cls("unavailable", str(error))
            case OutcomeUnknown():
                return cls("unknown", str(error))
            case _:
                return cls("state", str(error))

    def error(self) -> SwitchyardError:
        """The error that it was made of, or one of the same kind."""
        kinds: dict[str, type[SwitchyardError]] = {
            "request": RequestError,
            "unavailable": Unavailable,
            "unknown": OutcomeUnknown,
            "state": SwitchyardError,
        }
        return kinds[self.why](self.message)


ControlReply: TypeAlias = Decided | Declined


def socket_path(settings: Settings) -> Path:
    """Beside the database whose lock the listening process holds."""
    return settings.data_dir / "control.sock"


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A name of the socket that fits into an address, however deep the folder lies."""
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
