"""The credential of a venue: its present secrets, and whether the venue rejects it.

The bridge tells a credential what the venue answered. From the first message that is answered with `unauthorized`, the
credential is *paused*: nothing is sent with it. The pause ends once the venue answers a question that it rejected
before, or one that was signed with changed secrets. If it has answered all questions meanwhile, as with a key that has
lost the permission to trade, only an order can tell: after a wait, which doubles each time, one is tried. It does no
I/O.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
import structlog

from switchyard.domain.ids import VenueName
from switchyard.domain.orders.reasons import bounded_detail
from switchyard.ports.clock import Clock

log = structlog.get_logger()

# Venues lock a key, or an address, that asks too often with wrong credentials.
ASK_SECONDS: Final = 60.0
# Until an order is tried, if no question shows whether the credential works; each one that is rejected ends.
TRIAL_MIN: Final = timedelta(minutes=1)
TRIAL_MAX: Final = timedelta(minutes=10)

# A shorter secret would be found in words that are none.
MASKED_LENGTH_MIN: Final = 4

Question = Literal["probe", "reports"]
"""What is asked all the time, so that its answers tell soon whether the credential works."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """That a venue rejects a credential, as it is stored; it outlives the process that met it."""

    reason: str
    """For operators."""
    at: datetime
    """When it began, or ended."""
    trial_wait: timedelta
    """From its begin until an order is tried, if all questions are answered meanwhile."""
    is_over: bool = False


class Credential:
    """One credential at one venue."""

    def __init__(self, venue: VenueName, secrets: Mapping[str, str], clock: Clock) -> None:
        self.venue = venue
        self._secrets = dict(secrets)
        self._clock = clock
        self.version = 0
        """Counts the changes of the secrets: an answer to a request with earlier ones says nothing about these."""
        self.pause: Pause | None = None
        """The present or the last one."""
        self.is_trial = False
        """Whether only one order at a time may be sent: the venue has answered none since the pause."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after a pause has begun or ended."""
        self._failed: set[Question] = set()
        """The questions that were not answered since the pause began, and not since."""
        self._has_failed = False
        self._paused_version = 0
        self._asked_version = 0
        self._ask_at = float("-inf")

    def secret(self, name: str) -> str:
        """The present value of a secret."""
        return self._secrets[name]

    @property
    def secrets(self) -> Mapping[str, str]:
        """The present secrets."""
        return self._secrets

    def masked(self, text: str | None) -> str | None:
        """The text without the present secrets, which a venue may repeat in an error: it is shown and stored."""
        for value in self._secrets.values():
            if text and len(value) >= MASKED_LENGTH_MIN:
                text = text.replace(value, "***")
        return text

    def replace(self, secrets: Mapping[str, str]) -> None:
        """Use other secrets from the next request on."""
        self._secrets = dict(secrets)
        self.version += 1
        log.warning("venue_secrets_changed", venue=self.venue)

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be sent with it."""
        return self.pause is not None and not self.pause.is_over

    @property
    def reason(self) -> str | None:
        """Why nothing is sent with it; None if it may be used."""
        return self.pause.reason if self.pause is not None and not self.pause.is_over else None

    @property
    def resumed_at(self) -> datetime | None:
        """When the last pause ended; None during a pause, and if there was none."""
        return self.pause.at if self.pause is not None and self.pause.is_over else None

    def may_ask(self) -> bool:
        """Whether a question may be asked: of a paused credential that it rejects, the venue is asked rarely."""
        if not self.is_paused or self.version != self._asked_version:
            return True
        return self._clock.monotonic() >= self._ask_at

    def note_unauthorized(self, code: str, version: int) -> bool:
        """The venue rejects a message because of the credential, which had this version when it was sent.

        Return whether that begins a pause: it was not known before, and the secrets are still the same.
        """
        if version != self.version or self.is_paused:
            return False
        wait = TRIAL_MIN
        if self.is_trial and self.pause is not None:
            wait = min(2 * self.pause.trial_wait, TRIAL_MAX)
        reason = bounded_detail(f"the venue rejects its credential ({code})") or ""
        self._begin(Pause(reason=reason, at=self._clock.now(), trial_wait=wait))
        log.critical("venue_credential_paused", venue=self.venue, code=bounded_detail(code))
        return True

    def note_message(self, version: int) -> None:
        """The venue has answered a message that had this version, and not rejected its credential."""
        if self.is_trial and not self.is_paused and version == self.version and self.pause is not None:
            self.is_trial = False
            self.pause = msgspec.structs.replace(self.pause, trial_wait=timedelta())

    def note_question(self, question: Question | None, *, is_answered: bool, version: int) -> None:
        """The venue has answered a question, or has not; None: one that is asked now and then."""
        if not self.is_paused or version != self.version:
            return
        self._asked_version = version
        if not is_answered:
            self._ask_at = self._clock.monotonic() + ASK_SECONDS
            if question is not None:
                self._failed.add(question)
                self._has_failed = True
            return
        self._ask_at = float("-inf")
        if question is None:
            return
        self._failed.discard(question)
        assert self.pause is not None, "it is paused"
        is_shown = self._has_failed or version != self._paused_version
        if not self._failed and (is_shown or self._clock.now() >= self.pause.at + self.pause.trial_wait):
            self._end()

    def adopt(self, pause: Pause) -> None:
        """Take over what another process, or this one before its restart, has learnt; it must learn itself that it is
        over.
        """
        if self.is_paused:
            return
        if pause.is_over:
            self.pause, self.is_trial = pause, bool(pause.trial_wait)
        else:
            self._begin(pause)
            log.warning("venue_credential_paused", venue=self.venue, reason=pause.reason)

    def _begin(self, pause: Pause) -> None:
        self.pause, self.is_trial = pause, False
        self._failed, self._has_failed = set(), False
        self._paused_version = self._asked_version = self.version
        self._ask_at = float("-inf")
        self.on_change()

    def _end(self) -> None:
        assert self.pause is not None, "it is paused"
        self.pause = msgspec.structs.replace(self.pause, at=self._clock.now(), is_over=True)
        self.is_trial = True
        log.warning("venue_credential_resumed", venue=self.venue)
        self.on_change()
