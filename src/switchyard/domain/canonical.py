"""Canonical JSON and its digest: equal requests have equal bytes (seed 003, section 5.2)."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain.money import canonical, plain

# Members that identify the caller, not the request: requests that differ only here are the same request.
IDENTITY_FREE_MEMBERS = frozenset({"trace_id"})

_string = json.encoder.encode_basestring  # keeps non-ASCII characters, as ensure_ascii=False does


def canonical_json(value: Any) -> str:
    """JSON with sorted members, no white space, canonical decimals and strings in NFC."""
    match value:
        case str():
            return _string(value if value.isascii() else unicodedata.normalize("NFC", value))
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case Decimal():
            return plain(value)
        case Mapping():
            members = [
                f"{canonical_json(name)}:{canonical_json(value[name])}"
                for name in sorted(value)
                if name not in IDENTITY_FREE_MEMBERS
            ]
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join([canonical_json(item) for item in value]) + "]"
        case _:
            raise TypeError(f"not a JSON value: {type(value).__name__}")


def digest(value: Any) -> str:
    """`sha256:` and the hex digest of the canonical JSON."""
    return _digest(_plain_object(value) or canonical_json(value).encode())


def struct_digest(value: msgspec.Struct) -> str:
    """The same for a struct whose decimals are in canonical form already."""
    data = _sorted.encode(value)
    if not _is_canonical(data):
        data = canonical_json(msgspec.to_builtins(value, builtin_types=(Decimal,))).encode()
    return _digest(data)


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


_sorted = msgspec.json.Encoder(order="sorted", decimal_format="number")
_PLAIN = (str, int, Decimal, type(None))


def _plain_object(value: Any) -> bytes | None:
    """A fast path for small flat requests, ten times faster than `canonical_json`; none where it does not apply."""
    if type(value) is not dict:
        return None
    members = {}
    for name, member in value.items():
        kind = type(member)
        if kind not in _PLAIN:
            return None
        members[name] = canonical(member) if kind is Decimal else member
    data = _sorted.encode(members)
    return data if _is_canonical(data) and IDENTITY_FREE_MEMBERS.isdisjoint(members) else None


def _is_canonical(data: bytes) -> bool:
    """Whether the encoder wrote the same as `canonical_json`: no escapes, non-ASCII text, exponents below zero."""
    return data.isascii() and b"\\" not in data and b"E-" not in data
