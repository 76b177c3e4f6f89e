"""Structured logs: event names in snake_case with fields, secrets and credentials removed."""

import hashlib
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TextIO
from urllib.parse import quote

import structlog

from switchyard.telemetry.traces import current_traceparent, parse_traceparent

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
    """A function that masks these secrets in a text, as they are, percent-encoded or in JSON, and URL credentials.

    Of a secret with several lines, each line is masked.
    """
    parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
    forms = {form for part in parts for form in (part, quote(part, safe=""), json.dumps(part)[1:-1])}
    # The longest first: a secret may contain another.
    known = sorted((form for form in forms if len(form) >= SECRET_LENGTH_MIN), key=len, reverse=True)

    def redact(text: str) -> str:
        for form in known:
            text = text.replace(form, MASK)
        return without_credentials(text)

    return redact


class _Masks:
    """What the logs of this process mask."""

    def __init__(self) -> None:
        self._secrets: frozenset[str] = frozenset()
        self.redact = redactor(())

    def add(self, secrets: Iterable[str]) -> None:
        self._secrets |= frozenset(secrets)
        self.redact = redactor(self._secrets)


_masks = _Masks()


def mask_also(secrets: Iterable[str]) -> None:
    """Mask these secrets in the logs too, which were read after the start."""
    _masks.add(secrets)


log = structlog.get_logger()


def configure_logs(level: str, form: str, secrets: Iterable[str] = (), *, traced: bool = False) -> None:
    """Log as text or JSON; a call below the level costs only a comparison. `traced`: whether traces are on."""
    render: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=False)
    )
    mask_also(secrets)
    writer = LineLogger(sys.stderr)
    structlog.configure(
        processors=[
            _hash_account,
            *([_add_trace] if traced else []),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            render,
            # Last, on the whole line: a secret may be in any field and in any traceback.
            lambda _logger, _method, line: _masks.redact(str(line)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_names: writer,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Bridge()], level=logging.WARNING)


def account_hash(account: str) -> str:
    """The name of an account in the logs: the beginning of its SHA-256, which `sha256sum` computes as well."""
    return hashlib.sha256(account.encode()).hexdigest()[:12]


def _hash_account(_logger: object, _method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """An account may be the name of a person, which the specification keeps out of the logs."""
    account = fields.pop("account_id", None)
    if account is not None:
        fields["account_hash"] = account_hash(str(account))
    return fields


def _add_trace(_logger: object, _method: str, fields: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Name the trace that the line belongs to; `trace_id` is the correlation id that a caller chose."""
    traceparent = current_traceparent()
    parts = None if traceparent is None else parse_traceparent(traceparent)
    if parts is not None:
        fields["otel_trace_id"], fields["otel_span_id"] = parts.trace_id, parts.span_id
    return fields


class LineLogger:
    """Writes each line at once; a line that the stream does not take is dropped and counted, from any thread.

    A caller that reports an error must be able to go on with it: on a full disk the log fails just when a commit fails.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._dropped = 0

    def msg(self, line: str) -> None:
        """Write a line; the first one that succeeds again is followed by the number of those that were dropped."""
        with self._lock:
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._dropped += 1
                return
            dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("log_lines_dropped", count=dropped)

    debug = info = warning = error = critical = fatal = exception = log = msg


class _Bridge(logging.Handler):
    """Passes what libraries log to our logs, so that it has the same format and no secret."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record as the event `library_message`."""
        structlog.get_logger().log(
            record.levelno,
            "library_message",
            logger=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info,
        )
