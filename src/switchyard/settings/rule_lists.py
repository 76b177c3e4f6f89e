"""The forms of the risk rules: amounts and sets by account, by symbol, or by account and symbol.

In an environment variable a rule list is text, such as `acctA:100,acctB:500` or `acctA|BTC:5`. In the YAML file it is
the same text, or a mapping such as `{acctA: 100}` or `{acctA: {BTC: 5}}`. An error names the entry and an example.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import unquote

from switchyard.domain.ids import AccountId
from switchyard.domain.values import SYMBOL, is_account

KeyPart = Literal["account", "symbol"]
Entry = tuple[str, tuple[str, ...], Any]
"""Where it is, the parts of its key, and its value as given."""

_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SEPARATORS = re.compile(r"[|;]")


def decoded(text: str) -> str:
    """The text with its percent-encoded characters; `:`, `|`, `,`, `;` and `%` in a name must be written so."""
    if _ESCAPE.search(text):
        raise ValueError(f"{text!r} has a % that does not begin an escape such as %3A: write % itself as %25")
    return unquote(text, errors="strict")


def account(name: str) -> AccountId:
    """An account id as tokens have it."""
    if not is_account(name):
        raise ValueError(f"{name!r} is not an account id: 1 to 64 visible ASCII characters, no quotes and slashes")
    return AccountId(name)


def symbol(name: str) -> str:
    """A symbol; whether it is listed is checked against the catalogue."""
    if not SYMBOL.fullmatch(name):
        raise ValueError(f"{name!r} is not a symbol: it must match {SYMBOL.pattern}")
    return name


class NameSet:
    """A set of names, separated by `|` or `;`."""

    def __init__(self, check: Callable[[str], str], example: str) -> None:
        self._check = check
        self._example = example

    def __call__(self, text: str) -> frozenset[str]:
        """Parse the text of a variable."""
        return self.of_document(_SEPARATORS.split(text))

    def of_document(self, value: Any) -> frozenset[str]:
        """Parse a list of the YAML file; also the text of a variable."""
        if isinstance(value, str):
            return self(value)
        if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"must be names separated by |, as in {self._example}")
        try:
            return frozenset(self._check(decoded(item.strip())) for item in value)
        except ValueError as error:
            raise ValueError(f"{error}; example: {self._example}") from None


def one_of(*known: str) -> Callable[[str], str]:
    """A check of names that must be among these."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
        return name

    return check


class RuleList:
    """A value for each key; a key is an account, a symbol, or both."""

    def __init__(self, parts: Sequence[KeyPart], value: Callable[[str], Any], example: str) -> None:
        self._parts = tuple(parts)
        self._value = value
        self._example = example

    def __call__(self, text: str) -> Mapping[Any, Any]:
        """Parse the text of a variable."""
        return self._rules(self._entries_of_text(text))

    def of_document(self, value: Any) -> Mapping[Any, Any]:
        """Parse a mapping of the YAML file; also the text of a variable."""
        if isinstance(value, str):
            return self(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping, or text as in {self._example}")
        return self._rules(self._entries_of_mapping(value, ()))

    def _entries_of_text(self, text: str) -> Iterator[Entry]:
        if not text.strip():
            return
        form = f"{'|'.join(part.upper() for part in self._parts)}:VALUE"
        for number, entry in enumerate(text.split(","), 1):
            where = f"entry {number} ({entry.strip()!r})"
            key, *values = entry.split(":")
            names = key.split("|")
            if len(values) != 1 or len(names) != len(self._parts):
                raise ValueError(
                    f"{where} must be {form}, as in {self._example} "
                    "(write : | , ; and % in a name as %3A %7C %2C %3B %25)"
                )
            try:
                yield where, tuple(decoded(name.strip()) for name in names), values[0].strip()
            except ValueError as error:
                raise ValueError(f"{where}: {error}; example: {self._example}") from None

    def _entries_of_mapping(self, mapping: Mapping[Any, Any], outer: tuple[str, ...]) -> Iterator[Entry]:
        for name, value in mapping.items():
            key = (*outer, str(name))
            where = f"entry {'.'.join(key)}"
            if len(key) == len(self._parts):
                yield where, key, value
            elif isinstance(value, Mapping):
                yield from self._entries_of_mapping(value, key)
            else:
                raise ValueError(f"{where} must be a mapping of {self._parts[len(key)]}s, or text as {self._example}")

    def _rules(self, entries: Iterator[Entry]) -> Mapping[Any, Any]:
        rules: dict[Any, Any] = {}
        for where, names, given in entries:
            try:
                checked = tuple(
                    account(name) if part == "account" else symbol(name)
                    for part, name in zip(self._parts, names, strict=True)
                )
                key = checked if len(checked) > 1 else checked[0]
                if key in rules:
                    raise ValueError("is a second rule for the same name")
                rules[key] = self._one_value(given)
            except ValueError as error:
                raise ValueError(f"{where}: {error}; example: {self._example}") from None
        return rules

    def _one_value(self, given: Any) -> Any:
        if isinstance(self._value, NameSet):
            return self._value.of_document(given)
        if isinstance(given, bool) or not isinstance(given, str | int | float | Decimal):
            raise ValueError(f"its value must be a number, not {given!r}")
        return self._value(str(given))
