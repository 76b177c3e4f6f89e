"""Incremental parser for server-sent events, as specified by the WHATWG HTML standard."""

import codecs

import msgspec

# A snapshot is about 1 KB; a message of 1 MB does not come from a gateway.
MESSAGE_LENGTH_MAX = 1_048_576


class MessageTooLong(Exception):
    """A message exceeds MESSAGE_LENGTH_MAX."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a stream: its event name, its data (JSON text) and its id."""

    event: str = "message"
    data: str
    id: str | None = None
    """The latest id that the stream has sent so far; a resume sends it as `Last-Event-ID`."""


class Parser:
    """Parses the bytes of one connection in chunks of any size; an incomplete last message is dropped."""

    def __init__(self, last_event_id: str | None = None) -> None:
        self.retry_seconds: float | None = None
        """The reconnect delay that the server requested."""
        # Invalid UTF-8 becomes replacement characters: one bad byte must not end the stream.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = True
        self._after_carriage_return = False
        self._line: list[str] = []
        self._length = 0
        self._event = ""
        self._data: list[str] = []
        self._id = last_event_id

    def feed(self, chunk: bytes) -> list[Message]:
        """Return the messages that this chunk completes."""
        text = self._decoder.decode(chunk)
        if not text:
            return []
        if self._at_start:
            text = text.removeprefix("\ufeff")
            self._at_start = False
        if self._after_carriage_return:
            # A CRLF may be split between two chunks.
            text = text.removeprefix("\n")
        self._after_carriage_return = text.endswith("\r")
        *complete, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        messages = []
        for part in complete:
            self._append(part)
            line = "".join(self._line)
            self._line.clear()
            if line:
                self._read_field(line)
            elif (message := self._dispatch()) is not None:
                messages.append(message)
        self._append(rest)
        return messages

    def _append(self, part: str) -> None:
        self._length += len(part)
        if self._length > MESSAGE_LENGTH_MAX:
            raise MessageTooLong(f"a message exceeds {MESSAGE_LENGTH_MAX} characters")
        self._line.append(part)

    def _read_field(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "":
                self._length -= len(line)  # comments do not count: an idle stream may consist of them for days
            case "event":
                self._event = value
            case "data":
                self._data.append(value)
            case "id" if "\0" not in value:
                self._id = value or None
            case "retry" if value.isascii() and value.isdigit():
                self.retry_seconds = int(value[:9]) / 1000  # nine digits are eleven days, more than enough
            case _:
                pass  # the standard requires unknown fields to be ignored

    def _dispatch(self) -> Message | None:
        event, data = self._event, self._data
        self._event, self._data, self._length = "", [], 0
        if not data:
            return None
        return Message(event=event or "message", data="\n".join(data), id=self._id)
