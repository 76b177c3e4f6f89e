"""`/dashboard`: the page, its files, and the books' reports that it shows. The files are read once.

The page and its files are open to everyone and contain no data; the scripts read the API with the user's tokens.
"""

from collections.abc import Mapping
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from switchyard.bootstrap import Office
from switchyard.domain.errors import NotFound
from switchyard.entrypoints.http.transport.auth import TokenVerifier
from switchyard.entrypoints.web.books import Endpoint, remote_reports
from switchyard.settings import Settings

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
