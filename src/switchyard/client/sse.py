"""Server-sent events: bytes in, messages out, as the WHATWG standard reads them."""

import codecs

import msgspec

# A snapshot is about a kilobyte; a message a thousand times as long is no message of ours.
MESSAGE_LENGTH_MAX = 1_048_576


class MessageTooLong(Exception):
    """The peer sends what cannot be a message."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a stream."""

    event: str = "message"
    data: str
    id: str | None = None
    """The newest id that the stream has named so far: what a resume must send as `Last-Event-ID`."""


class Parser:
    """Reads one connection's bytes, cut anywhere; what is unfinished when it ends is dropped, as it must be."""

    def __init__(self, last_event_id: str | None = None) -> None:
        self.retry_seconds: float | None = None
        """How long the server asks to wait before a reconnect."""
        # Bad bytes become replacement characters: one broken label must not end the stream.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True
        self._after_carriage_return = False
        self._line: list[str] = []
        self._length = 0
        self._event = ""
        self._data: list[str] = []
        self._id = last_event_id

    def feed(self, chunk: bytes) -> list[Message]:
        """The messages that these bytes complete."""
        text = self._decoder.decode(chunk)
        if not text:
            return []
        if self._at_start:
            text = text.removeprefix("\ufeff")
            self._at_start = False
        if self._after_carriage_return:
            # The pair of a line end may arrive in two chunks.
            text = text.removeprefix("\n")
        self._after_carriage_return = text.endswith("\r")
        *ended, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        messages = []
        for part in ended:
            self._keep(part)
            line = "".join(self._line)
            self._line.clear()
            if line:
                self._read(line)
            elif (message := self._dispatch()) is not None:
                messages.append(message)
        self._keep(rest)
        return messages

    def _keep(self, part: str) -> None:
        self._length += len(part)
        if self._length > MESSAGE_LENGTH_MAX:
            raise MessageTooLong(f"over {MESSAGE_LENGTH_MAX} characters")
        self._line.append(part)

    def _read(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "":
                self._length -= len(line)  # a comment: an idle stream is nothing but these, for days
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value or None
            case "retry" if value.isascii() and value.isdigit():
                self.retry_seconds = int(value[:9]) / 1000  # nine digits are eleven days: for ever
            case _:
                pass  # the standard says to ignore what one does not know

    def _dispatch(self) -> Message | None:
        event, data = self._event, self._data
        self._event, self._data, self._length = "", [], 0
        if not data:
            return None
        return Message(event=event or "message", data="\n".join(data), id=self._id)
