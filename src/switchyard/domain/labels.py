"""Texts that callers choose: labels, strategies, symbols and account ids.

They go into logs, files, dashboards and venues' systems, where two labels that look alike must be the same label.
"""

import re
import unicodedata

from switchyard.domain.errors import InvalidField

LABEL_LENGTH_MAX = 128
STRATEGY = re.compile(r"[a-z0-9._-]{1,64}")
SYMBOL_LENGTH_MAX = 32
SYMBOL = re.compile(r"[A-Z0-9][A-Z0-9._/:-]{0,31}")
# Visible ASCII without quotes, slashes and backslashes.
_ACCOUNT = re.compile(r"[!#-&(-.0-\[\]-~]{1,64}")
# The account id of events that belong to no account.
_SYSTEM_ACCOUNT = "-"
# Characters without a glyph that Python calls printable: fillers, joiners and variation selectors.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_account(text: str) -> bool:
    """Whether the text can be an account id."""
    return text != _SYSTEM_ACCOUNT and _ACCOUNT.fullmatch(text) is not None


def check_label(field: str, text: str, length_max: int = LABEL_LENGTH_MAX) -> None:
    """Raise InvalidField unless the label is short, visible, in NFC and without white space around it."""
    if not text:
        raise InvalidField(field, "must not be empty")
    if len(text) > length_max:
        raise InvalidField(field, f"at most {length_max} characters, got {len(text)}")
    if not text.isprintable():  # also false for control, format and bidirectional characters, and for lone surrogates
        raise InvalidField(field, "must consist of printable characters, without control or formatting characters")
    if text[0] == " " or text[-1] == " ":
        raise InvalidField(field, "must not begin or end with a space")
    if text.isascii():
        return
    if _INVISIBLE.search(text) or unicodedata.combining(text[0]):
        raise InvalidField(field, "must not contain invisible characters or begin with a combining mark")
    if not unicodedata.is_normalized("NFC", text):
        raise InvalidField(field, "must be in Unicode normalization form C (NFC)")


def check_strategy(text: str) -> None:
    """Raise InvalidField unless the text can be the name of a strategy."""
    if not STRATEGY.fullmatch(text):
        raise InvalidField("strategy", f"must match {STRATEGY.pattern}")
