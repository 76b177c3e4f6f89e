"""`/dashboard`: the page, its files, and the books' reports that it shows. The files are read once.

The page and its files are open to everyone and contain no data; the scripts read the API with the user's tokens.
"""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.bootstrap import BackOffice
from switchyard.domain.errors import NotFound
from switchyard.entrypoints.http.backoffice import BackOfficeRoutes
from switchyard.entrypoints.http.reconcile import ReconcileRoutes
from switchyard.entrypoints.http.transport.auth import TokenVerifier

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
# The back office has its own port, which is another origin for a browser. These of its routes read and never write.
REPORTS = {
    "balances": "/balances",
    "breaks": "/admin/breaks",
    "pnl": "/pnl",
    "positions": "/positions",
    "reconcile": "/reconcile",
    "stats": "/stats",
}

Endpoint = Callable[[Request], Awaitable[Response]]


class DashboardRoutes:
    """The routes."""

    def __init__(self, office: BackOffice | None, tokens: TokenVerifier) -> None:
        """`office`: the books of this process; none where another process keeps them."""
        self._files = page_files()
        self._reports = {} if office is None else _report_endpoints(office, tokens)
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


def _report_endpoints(office: BackOffice, tokens: TokenVerifier) -> dict[str, Endpoint]:
    """The back office's own handlers, so that its port and the page give the same answers to the same tokens."""
    routes = [*BackOfficeRoutes(office, tokens, None).routes, *ReconcileRoutes(office.reconcile, tokens).routes]
    endpoints = {route.path: route.endpoint for route in routes}
    return {report: endpoints[path] for report, path in REPORTS.items()}
