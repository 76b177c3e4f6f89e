"""The baseline: the same HTTP stack with a handler that does nothing."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

# As long as a real response to an order, so that both transfer the same number of bytes.
RESPONSE = b'{"orderId":"ord_01HZZZZZZZZZZZZZZZZZZZZZZZ","status":"ACCEPTED"}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(RESPONSE)).encode())]


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Read the whole body and respond 202; a GET (the health check) gets 200."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body", False):
        pass
    status = 202 if scope["method"] == "POST" else 200
    await send({"type": "http.response.start", "status": status, "headers": HEADERS})
    await send({"type": "http.response.body", "body": RESPONSE})
