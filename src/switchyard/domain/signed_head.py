"""The journal's head, signed with HMAC-SHA256, as the content of a head file.

An attacker or a restored backup can replace the database and the files, but cannot make an older head without the key.
Pure: `ports.installation` reads and writes the content.
"""

import hashlib
import hmac

import msgspec

from switchyard.domain.errors import HistoryMismatch


class SignedHead(msgspec.Struct, frozen=True, kw_only=True):
    """The journal's last event at a point in time; `mac` authenticates the other fields."""

    epoch: int
    shard: int
    seq: int
    hash: str
    at: str
    installation: str = ""
    """The id of the database's installation; empty where it is not known."""
    database: str = ""
    """The place of the database, without credentials: its folder or URL; empty where it is not known."""
    mac: str = ""

    def signed(self, key: bytes) -> "SignedHead":
        """The same head with its mac."""
        text = f"{self.epoch}\n{self.shard}\n{self.seq}\n{self.hash}\n{self.at}\n{self.installation}\n{self.database}"
        return msgspec.structs.replace(self, mac=hmac.new(key, text.encode(), hashlib.sha256).hexdigest())

    def content(self) -> bytes:
        """The head as a head file holds it."""
        return msgspec.json.encode(self) + b"\n"


def parse_head(name: str, content: bytes | None, key: bytes | None) -> SignedHead | None:
    """The head in a file's content, or none if there is no file; HistoryMismatch unless the key signed it.

    Without a key the signature is not checked.
    """
    if content is None:
        return None
    try:
        head = msgspec.json.decode(content, type=SignedHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HistoryMismatch(f"{name} is not a head file ({error})") from None
    if key is not None and not hmac.compare_digest(head.signed(key).mac.encode(), head.mac.encode()):
        raise HistoryMismatch(f"{name} was not signed with this key: the file was edited, or the key was changed")
    return head
