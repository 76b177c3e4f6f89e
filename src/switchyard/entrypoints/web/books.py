"""The back office's reports for the dashboard, whose browser may not read the back office's own port.

Requests the report from the back office, our child process or one elsewhere. Writes nothing.
"""

from collections.abc import Awaitable, Callable

import aiohttp
from starlette.requests import Request
from starlette.responses import Response

from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.ports.books import LedgerUnavailable

# Name in the dashboard's route, path at the back office. All of them read and never write.
REPORTS = {
    "balances": "/balances",
    "breaks": "/admin/breaks",
    "pnl": "/pnl",
    "positions": "/positions",
    "reconcile": "/reconcile",
    "stats": "/stats",
}
# The page itself waits for 10 s.
ANSWER_SECONDS_MAX = 5.0
# Several times the largest page of a report.
ANSWER_BYTES_MAX = 4 * 1024 * 1024
# What the back office's routes answer; anything else comes from another server.
_STATUSES = frozenset({200, 403, 404, 422, 429, 503})

Endpoint = Callable[[Request], Awaitable[Response]]


def remote_reports(url: Callable[[], str | None], source: str, tokens: TokenVerifier) -> dict[str, Endpoint]:
    """Handlers that pass a request's token and parameters, and nothing else, to the back office at the URL.

    `source`: where the URL comes from; None is a back office that does not listen yet.
    """
    return {report: _remote(url, path, source, tokens) for report, path in REPORTS.items()}


def _remote(url: Callable[[], str | None], path: str, source: str, tokens: TokenVerifier) -> Endpoint:
    async def show(request: Request) -> Response:
        header = authorization_header(request.scope)
        tokens.verify(header)  # here, where a wrong token is counted by the address of its client
        assert header is not None
        address = url()
        if address is None:
            raise LedgerUnavailable(f"the back office does not answer ({source})")
        try:
            return await _fetch(f"{address}{path}", source, request, header.decode("latin-1"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # Not the error's text: it names hosts of the inner network.
            raise LedgerUnavailable(f"the back office does not answer ({source})") from error

    return show


async def _fetch(url: str, source: str, request: Request, authorization: str) -> Response:
    parameters = request.query_params.multi_items()
    headers = {"Authorization": authorization, "Accept-Encoding": "identity"}
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        # A redirect could lead the token anywhere.
        session.get(url, params=parameters, headers=headers, allow_redirects=False) as response,
    ):
        if response.status not in _STATUSES or response.content_type != "application/json":
            raise LedgerUnavailable(f"{source} answered {response.status}: it must be a back office with our secret")
        content = bytearray()
        async for chunk in response.content.iter_chunked(64 * 1024):
            content += chunk
            if len(content) > ANSWER_BYTES_MAX:
                raise LedgerUnavailable("the back office's answer is too long: ask it itself")
        kept = {name: response.headers[name] for name in ("Retry-After",) if name in response.headers}
        return Response(bytes(content), response.status, kept, media_type="application/json")
