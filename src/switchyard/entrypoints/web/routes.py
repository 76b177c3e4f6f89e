"""`/dashboard`: the page, its files, and the books' reports that it shows. The files are read once.

The page and its files are open to everyone and contain no data; the scripts read the API with the user's tokens. A
browser may not read the back office's own port, so its reports are requested from here.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files

import aiohttp
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.bootstrap import Office
from switchyard.domain.errors import NotFound
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.ports.books import LedgerUnavailable
from switchyard.settings import Settings

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


PAGE_FILE = "page.html"
# Scripts, styles and answers of this server only. Nothing is inline, the browser submits no form itself, and no script
# can turn a text into markup (trusted-types).
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


class DashboardRoutes:
    """The routes."""

    def __init__(self, reports: Mapping[str, Endpoint]) -> None:
        """`reports`: those of the books, by name; empty where there are none."""
        self._files = page_files()
        self._reports = reports
        self.routes = [
            Route("/dashboard", self.show_page),
            Route("/dashboard/{file}", self._show_file),
            Route("/dashboard/books/{report}", self._show_report),
        ]

    async def show_page(self, _request: Request) -> Response:
        """Answer with the page."""
        return self._response(PAGE_FILE)

    async def _show_file(self, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in self._files or name == PAGE_FILE:
            raise NotFound
        return self._response(name)

    async def _show_report(self, request: Request) -> Response:
        endpoint = self._reports.get(request.path_params["report"])
        if endpoint is None:
            raise NotFound
        return await endpoint(request)

    def _response(self, name: str) -> Response:
        headers = {
            "Content-Type": media_type(name),
            "Content-Security-Policy": PAGE_POLICY,
            "Referrer-Policy": "no-referrer",
        }
        return Response(self._files[name], headers=headers)


def page_files() -> dict[str, bytes]:
    """The page and what it loads, by name."""
    folder = files("switchyard.entrypoints.web") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if media_type(file.name)}


def media_type(name: str) -> str:
    """The type of a file of the page; empty where it is none."""
    return next((kind for ending, kind in _MEDIA_TYPES.items() if name.endswith(ending)), "")


def build_dashboard(settings: Settings, office: Office | None, tokens: TokenVerifier) -> DashboardRoutes | None:
    """Build the routes, with the books of our child process or those at the configured URL; none if turned off."""
    if not settings.dashboard:
        return None
    if office is not None:
        return DashboardRoutes(remote_reports(lambda: office.url, "the back office of this process", tokens))
    url = settings.dashboard_books_url
    return DashboardRoutes({} if url is None else remote_reports(lambda: url, "SWITCHYARD_DASHBOARD_BOOKS_URL", tokens))
