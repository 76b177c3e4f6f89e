"""The hash chain of the journal: each event's hash covers the previous one, so that a changed line is detected."""

import hashlib
from datetime import UTC, datetime

GENESIS = "0" * 64


def stamp(at: datetime) -> str:
    """A time as in a line: UTC with six decimals, so that text order is time order."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def head_text(epoch: int, shard: int, seq: int, at_text: str) -> str:
    """The beginning of a line, with the number and time that the journal assigns."""
    return f'{{"epoch":{epoch},"shard":{shard},"seq":{seq},"at":"{at_text}",'


def link(previous_hash: str, text: str) -> str:
    """SHA-256 over the previous hash (as hex) followed by the line up to its own hash."""
    return hashlib.sha256((previous_hash + text).encode()).hexdigest()
