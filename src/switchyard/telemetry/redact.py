"""Removes secrets from text that leaves the process: log lines and error lines. Knows nothing but the text."""

import json
import re
from collections.abc import Callable, Iterable
from urllib.parse import quote

MASK = "***"
# Shorter values, such as an empty password or a user called `db`, would mask ordinary words.
SECRET_LENGTH_MIN = 6
# `scheme://user:password@host`; the user is masked too, because some services put a token there. Up to the last @
# before a blank or a quote, so that a password with / or @ that was not percent-encoded is masked as well.
_CREDENTIALS = re.compile(r"\b([a-z][a-z0-9+.-]{1,20}://)[^\s'\"]*@", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """The text with the credentials of all URLs masked."""
    return _CREDENTIALS.sub(rf"\1{MASK}@", text) if "://" in text else text


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that masks these secrets in a text, as they are, percent-encoded or in JSON, and URL credentials."""
    forms = {form for secret in secrets for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1])}
    # The longest first: a secret may contain another.
    known = sorted((form for form in forms if len(form) >= SECRET_LENGTH_MIN), key=len, reverse=True)

    def redact(text: str) -> str:
        for form in known:
            text = text.replace(form, MASK)
        return without_credentials(text)

    return redact
