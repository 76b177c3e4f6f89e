"""The hash chain: each event's hash covers the one before, so that no past can be edited unseen."""

import hashlib
from datetime import UTC, datetime

GENESIS = "0" * 64


def stamp(at: datetime) -> str:
    """A time as it stands in a line: UTC with six decimals, so that text order is time order."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def head_text(epoch: int, shard: int, seq: int, at_text: str) -> str:
    """The line's beginning, which only the journal can write: the event's number and time."""
    return f'{{"epoch":{epoch},"shard":{shard},"seq":{seq},"at":"{at_text}",'


def link(previous_hash: str, text: str) -> str:
    """SHA-256 over the previous hash (as hex) followed by the line up to its own hash."""
    return hashlib.sha256((previous_hash + text).encode()).hexdigest()
