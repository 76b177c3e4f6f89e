"""The PDCA API (seed 003): rechecks, strategies for the GUI, artifacts and the signed URLs that download them.

Reads and writes the PDCA store.
"""

import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlencode

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from switchyard.bootstrap import Engine, PdcaOffice
from switchyard.domain.errors import InvalidField, InvalidKey, NotFound, RequestError, Unauthorized
from switchyard.domain.orders.keys import checked_key
from switchyard.domain.strategies.registry import (
    Strategy,
    StrategyKey,
    Tenant,
    Tenants,
    check_strategy_id,
    checked_strategy,
)
from switchyard.domain.strategies.requests import (
    BATCH_SIZE_MAX,
    Artifact,
    Operation,
    RecheckAllBody,
    RecheckBody,
    RecheckRequest,
    checked_recheck,
    checked_recheck_all,
    request_digest,
    window_at,
)
from switchyard.domain.values import STRATEGY
from switchyard.entrypoints.http.errors import REPLAYED, WireResponse, json_response
from switchyard.entrypoints.http.pdca.calls import ANSWER_BYTES_MAX, Call, Counter, Endpoint, PdcaRates, answering
from switchyard.entrypoints.http.pdca.queries import LIST_PARAMETERS, PAGE_PARAMETERS, narrowed, page_of, strategy_query
from switchyard.entrypoints.http.pdca.views import (
    AcceptedView,
    DeletedView,
    DownloadView,
    StrategyListView,
    recheck_view,
    strategy_view,
)
from switchyard.entrypoints.http.queries import only
from switchyard.entrypoints.http.transport.auth import BadTokens, revoked_tokens
from switchyard.entrypoints.http.transport.bodies import parse_object, read_body
from switchyard.entrypoints.http.transport.guard import guarded
from switchyard.entrypoints.http.transport.key_ring import Fetch, KeyRing, file_source, local_source, url_source
from switchyard.entrypoints.http.transport.rs256 import PdcaTokens
from switchyard.ports.clock import Clock, Randomness, fresh_ulid
from switchyard.ports.strategies import StoredArtifact, StoredRequest
from switchyard.settings import Settings, jwt_secret
from switchyard.telemetry.traces import annotate, current_traceparent

_EXPIRES = re.compile(r"[0-9]{1,12}")


class Downloads:
    """Signs and checks URLs."""

    def __init__(self, secret: str, *, clock: Clock, ttl: timedelta) -> None:
        """`clock`: wall time. A key of its own, so that a signature can stand for nothing else."""
        self._key = hmac.digest(secret.encode(), b"pdca artifact downloads", hashlib.sha256)
        self._clock = clock
        self._ttl = ttl

    def url(self, tenant: Tenant, request_id: str, strategy_id: str, name: str) -> tuple[str, datetime]:
        """Return the path and query of an artifact, and when they expire."""
        expires_at = (self._clock.now() + self._ttl).replace(microsecond=0)
        expires = str(int(expires_at.timestamp()))
        signature = self._signature(tenant, request_id, strategy_id, name, expires)
        query = urlencode({"tenant": tenant, "expires": expires, "signature": signature})
        return f"/pdca/artifacts/{request_id}/{strategy_id}/{name}?{query}", expires_at.astimezone(UTC)

    def check(self, tenant: str, request_id: str, strategy_id: str, name: str, *, expires: str, signature: str) -> None:
        """Raise Unauthorized unless the URL was signed here and has not expired."""
        expected = self._signature(tenant, request_id, strategy_id, name, expires)
        is_own = hmac.compare_digest(expected.encode(), signature.encode())
        if not is_own or _EXPIRES.fullmatch(expires) is None:
            raise Unauthorized("SIGNATURE_INVALID", "the URL's signature does not match: ask for a new one")
        if self._clock.now().timestamp() >= int(expires):
            raise Unauthorized("SIGNATURE_EXPIRED", "the URL has expired: ask for a new one")

    def _signature(self, *parts: str) -> str:
        # No part of a URL that was signed here contains a line break.
        return hmac.new(self._key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()


PREFIXES = ("/pdca/", "/gui/")
WRITING, READING = "pdca", "pdca.gui"
_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
# Also bounds what the log shows of a path.
_ARTIFACT = re.compile(r"[a-z0-9._-]{1,64}")


class PdcaApi:
    """An ASGI application; every answer has an `X-Request-Id`."""

    def __init__(
        self,
        office: PdcaOffice,
        *,
        counter: Counter,
        downloads: Downloads,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        """`clock`: for durations and request ids."""
        self._office = office
        self._store = office.store
        self._counter = counter
        self._downloads = downloads
        self._clock = clock
        self._randomness = randomness
        writers, readers = frozenset({WRITING}), frozenset({READING})
        both = writers | readers
        artifact = "{request_id}/{strategy_id}/{name}"
        endpoints = [
            Endpoint("POST", "/pdca/recheck", self._recheck, "recheck", writers, "pdca:recheck"),
            Endpoint("POST", "/pdca/recheck_all", self._recheck_all, "recheck_all", writers, "pdca:recheck_all"),
            Endpoint("GET", "/pdca/recheck/{request_id}", self._show_recheck, "read", both, "pdca:read"),
            Endpoint("PUT", "/pdca/strategies/{strategy_id}", self._put, "recheck", writers, "pdca:strategies"),
            Endpoint("DELETE", "/pdca/strategies/{strategy_id}", self._delete, "recheck", writers, "pdca:strategies"),
            Endpoint("GET", "/gui/strategies", self._list, "read", readers, "pdca:read"),
            Endpoint("GET", "/gui/strategies/{strategy_id}", self._show, "read", readers, "pdca:read"),
            Endpoint("GET", f"/pdca/downloads/{artifact}", self._sign, "read", both, "pdca:download"),
            Endpoint("GET", f"/pdca/artifacts/{artifact}", self._download, "read", frozenset(), None),
        ]
        self.routes = [
            Route(endpoint.path, partial(counter.serve, endpoint), methods=[endpoint.method]) for endpoint in endpoints
        ]
        self._app = Starlette(routes=self.routes, exception_handlers={HTTPException: self._on_http_error})
        # A redirect would name the host that the request claims.
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        call = scope["pdca"] = self._new_call()
        status = 0

        def on_start(answered: int) -> None:
            nonlocal status
            status = answered

        try:
            await self._app(scope, receive, answering(call, send, on_start))
        finally:
            self._counter.note(call, status)

    async def reject(self, error: RequestError, scope: Scope, send: Send) -> None:
        """Answer a request that is not routed."""
        call = self._new_call()
        wire = self._counter.rejected(error, call, scope)
        send = answering(call, guarded(send), lambda status: self._counter.note(call, status))
        await send({"type": "http.response.start", "status": wire.status, "headers": wire.headers})
        await send({"type": "http.response.body", "body": wire.body})

    def _new_call(self) -> Call:
        return Call(fresh_ulid(self._clock, self._randomness), self._clock.monotonic())

    async def _on_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._counter.http_error(error, request)

    async def _recheck(self, request: Request, call: Call) -> WireResponse:
        key = _key_of(request)
        stated = checked_recheck(parse_object(await read_body(request.receive)))
        new = self._new_request(call, stated, "pdca.recheck", BATCH_SIZE_MAX)
        return await self._accept(call, new, key, request_digest(stated), stated.strategies)

    async def _recheck_all(self, request: Request, call: Call) -> WireResponse:
        key = _key_of(request)
        stated = checked_recheck_all(parse_object(await read_body(request.receive)))
        new = replace(self._new_request(call, stated, "pdca.recheck_all", stated.batch_size), filter=stated.filter)
        return await self._accept(call, new, key, request_digest(stated), None)

    def _new_request(
        self, call: Call, stated: RecheckBody | RecheckAllBody, operation: Operation, batch_size: int
    ) -> RecheckRequest:
        now = self._office.clock.now()
        return RecheckRequest(
            request_id=fresh_ulid(self._office.clock, self._randomness),
            operation=operation,
            client_id=_client(call),
            window=window_at(stated.window, now),
            reason=stated.reason,
            dry_run=stated.dry_run,
            metrics=stated.params.recalc_metrics,
            batch_size=batch_size,
            runner=self._office.runner,
            created_at=now,
            trace_id=stated.trace_id,
        )

    async def _accept(
        self, call: Call, new: RecheckRequest, key: str, digest: str, strategies: tuple[str, ...] | None
    ) -> WireResponse:
        annotate(trace_id=new.trace_id, idempotency_key=key)
        new = replace(new, traceparent=current_traceparent())
        created = await self._store.create(new, key, digest, strategies, call.tenants)
        accepted = created.request
        call.request_id = accepted.request_id
        # It is stored from here on, so an error names it too.
        call.headers = [*call.headers, (b"location", f"/pdca/recheck/{accepted.request_id}".encode())]
        if created.replayed:
            call.outcome = "replayed"
            call.headers.append(REPLAYED)
        # Also for a repeat: the first one may have ended before the runner was told.
        await self._office.submit(accepted)
        return json_response(202, AcceptedView(request_id=accepted.request_id, accepted_at=accepted.created_at))

    async def _show_recheck(self, request: Request, call: Call) -> WireResponse:
        request_id = request.path_params["request_id"]
        only(request.query_params, PAGE_PARAMETERS)
        page = page_of(request.query_params)
        if not _ULID.fullmatch(request_id):
            raise NotFound("request not found")
        call.request_id = request_id
        found = await self._store.items(request_id, page.offset, page.size, call.tenants)
        if found is None or not _may_see(call, found.stored):
            raise NotFound("request not found")
        return _bounded(json_response(200, recheck_view(found, page.number, page.size)))

    async def _put(self, request: Request, call: Call) -> WireResponse:
        only(request.query_params, ("account",))
        strategy_id = request.path_params["strategy_id"]
        check_strategy_id("id", strategy_id)
        tenants = narrowed(call.tenants, request.query_params)
        stated = checked_strategy(parse_object(await read_body(request.receive)))
        key = StrategyKey(await self._tenant_of(strategy_id, tenants), strategy_id)
        strategy, is_new = await self._store.put_strategy(key, stated, self._office.clock.now())
        return json_response(201 if is_new else 200, strategy_view(strategy))

    async def _tenant_of(self, strategy_id: str, tenants: Tenants) -> Tenant:
        """The tenant whose strategy a client registers: its only one, or the only one that has the strategy."""
        if tenants is not None and not tenants:
            raise InvalidField("account", "must be an account of the token")
        if tenants is not None and len(tenants) == 1:
            [tenant] = tenants
            return tenant
        found = await self._store.named(strategy_id, tenants, 2)
        if len(found) != 1:
            raise InvalidField("account", "must be given: the token is for several accounts")
        return found[0].tenant

    async def _delete(self, request: Request, call: Call) -> WireResponse:
        only(request.query_params, ("account",))
        strategy_id = request.path_params["strategy_id"]
        check_strategy_id("id", strategy_id)
        found = await self._find(strategy_id, narrowed(call.tenants, request.query_params))
        deleted = found is not None and await self._store.delete_strategy(found.key)
        return json_response(200, DeletedView(id=strategy_id, deleted=deleted))

    async def _find(self, strategy_id: str, tenants: Tenants) -> Strategy | None:
        """The strategy of this name; raises InvalidField if several of the caller's accounts have one."""
        found = await self._store.named(strategy_id, tenants, 2)
        if len(found) > 1:
            raise InvalidField("account", "must be given: several accounts have this strategy")
        return found[0] if found else None

    async def _list(self, request: Request, call: Call) -> WireResponse:
        query = request.query_params
        only(query, LIST_PARAMETERS)
        page = page_of(query)
        found = await self._store.strategies(strategy_query(query, page, call.tenants))
        body = StrategyListView(
            items=tuple([strategy_view(strategy) for strategy in found.strategies]),
            page=page.number,
            page_size=page.size,
            total=found.total,
        )
        return _bounded(json_response(200, body))

    async def _show(self, request: Request, call: Call) -> WireResponse:
        only(request.query_params, ("account",))
        strategy = await self._find(_strategy_id(request), narrowed(call.tenants, request.query_params))
        if strategy is None:
            raise NotFound("strategy not found")
        return json_response(200, strategy_view(strategy))

    async def _sign(self, request: Request, call: Call) -> WireResponse:
        only(request.query_params, ("account",))
        found = await self._artifact(request, call, narrowed(call.tenants, request.query_params))
        artifact = found.artifact
        url, expires_at = self._downloads.url(found.tenant, *_artifact_names(request))
        body = DownloadView(
            **{name: getattr(artifact, name) for name in Artifact.__struct_fields__}, url=url, expires_at=expires_at
        )
        return json_response(200, body)

    async def _download(self, request: Request, call: Call) -> WireResponse:
        names = ("tenant", "expires", "signature")
        only(request.query_params, names)
        tenant, expires, signature = (request.query_params.get(name) for name in names)
        if tenant is None or expires is None or signature is None:
            raise Unauthorized("TOKEN_MISSING", "the URL must have tenant, expires and signature: ask for one")
        self._downloads.check(tenant, *_artifact_names(request), expires=expires, signature=signature)
        found = await self._artifact(request, call, frozenset({Tenant(tenant)}))
        headers = [
            (b"content-type", found.artifact.media_type.encode("latin-1", "replace")),
            (b"content-length", b"%d" % len(found.content)),
            (b"content-disposition", f'attachment; filename="{found.artifact.name}"'.encode()),
            # A chart is a document that could carry a script: it is saved, never run here.
            (b"content-security-policy", b"default-src 'none'; sandbox; frame-ancestors 'none'"),
        ]
        return WireResponse(200, headers, found.content)

    async def _artifact(self, request: Request, call: Call, tenants: Tenants) -> StoredArtifact:
        request_id, strategy_id, name = _artifact_names(request)
        call.request_id = request_id
        found = await self._store.artifacts(request_id, strategy_id, name, tenants, 2)
        if not found:
            raise NotFound("artifact not found")
        if len(found) > 1:
            raise InvalidField("account", "must be given: several accounts have this strategy")
        return found[0]


def _client(call: Call) -> str:
    assert call.client_id is not None, "the endpoint needs a token"
    return call.client_id


def _may_see(call: Call, stored: StoredRequest) -> bool:
    """Whether the request exists for the caller: its own strategies are in it, or it made it and nothing is in it."""
    return bool(stored.progress.total) or call.tenants is None or stored.request.client_id == call.client_id


def _key_of(request: Request) -> str:
    keys = request.headers.getlist("idempotency-key")
    if len(keys) != 1:
        raise InvalidKey("must be given once" if keys else "is required")
    return checked_key(keys[0])


def _strategy_id(request: Request) -> str:
    strategy_id: str = request.path_params["strategy_id"]
    if not STRATEGY.fullmatch(strategy_id):
        raise NotFound("strategy not found")
    return strategy_id


def _artifact_names(request: Request) -> tuple[str, str, str]:
    request_id, strategy_id, name = (request.path_params[part] for part in ("request_id", "strategy_id", "name"))
    if not (_ULID.fullmatch(request_id) and STRATEGY.fullmatch(strategy_id) and _ARTIFACT.fullmatch(name)):
        raise NotFound("artifact not found")
    return request_id, strategy_id, name


def _bounded(response: WireResponse) -> WireResponse:
    assert len(response.body) <= ANSWER_BYTES_MAX, "the bounds of a page's parts keep an answer below 1 MB"
    return response


def build_pdca(settings: Settings, engine: Engine, bad_tokens: BadTokens) -> PdcaApi:
    """Build the API; its keys are read with the first token."""
    api = settings.pdca_api
    ring = KeyRing(_source(settings), clock=engine.clock, age_max=api.jwks_age_max)
    return PdcaApi(
        engine.pdca,
        counter=Counter(
            tokens=PdcaTokens(
                ring,
                clock=engine.wall_clock,
                issuer=api.issuer,
                revoked=revoked_tokens(settings, engine.wall_clock, engine.metrics),
            ),
            rates=PdcaRates(engine.caches.pdca_rates),
            bad_tokens=bad_tokens,
            clock=engine.clock,
            metrics=engine.metrics.pdca,
        ),
        downloads=Downloads(jwt_secret(settings), clock=engine.wall_clock, ttl=api.download_ttl),
        clock=engine.clock,
        randomness=engine.randomness,
    )


def _source(settings: Settings) -> Fetch:
    if settings.pdca_api.jwks_url is not None:
        return url_source(settings.pdca_api.jwks_url)
    if settings.pdca_api.jwks_file is not None:
        return file_source(settings.pdca_api.jwks_file)
    return local_source(settings.data_dir)
