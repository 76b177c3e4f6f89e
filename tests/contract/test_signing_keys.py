"""Where keys come from: the data folder's own pair, and a URL that may misbehave."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from switchyard.adapters.files.signing_keys import KEY_FILE, KEY_SET_FILE, KEYS_MAX, local_key, new_key
from switchyard.domain.errors import Unavailable
from switchyard.entrypoints.http.transport.key_ring import (
    ASK_SECONDS_MIN,
    KEY_SET_BYTES_MAX,
    KeyRing,
    local_source,
    parse_key_set,
    url_source,
)
from tests.support.keys import KID, private_key, public_jwk
from tests.support.memory.clock import ManualClock

AGE_MAX = timedelta(hours=1)
KEY_SET = json.dumps({"keys": [public_jwk(private_key())]})


async def test_local_keys_are_made_once_and_a_new_one_leaves_the_old_valid(tmp_path: Path) -> None:
    first, again = await asyncio.gather(*[asyncio.to_thread(local_key, tmp_path) for _ in range(2)])
    assert first.kid == again.kid == local_key(tmp_path).kid
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    clock = ManualClock()
    ring = KeyRing(local_source(tmp_path), clock=clock, age_max=AGE_MAX)
    assert await ring.key(first.kid) is not None
    second = new_key(tmp_path)
    clock.advance(timedelta(seconds=ASK_SECONDS_MIN))
    assert await ring.key(second.kid) is not None
    assert await ring.key(first.kid) is not None
    assert local_key(tmp_path) == second
    (tmp_path / KEY_SET_FILE).unlink()  # as if the process had ended between the two files
    assert local_key(tmp_path).kid in parse_key_set((tmp_path / KEY_SET_FILE).read_bytes())
    for _ in range(KEYS_MAX):
        new_key(tmp_path)
    assert len(parse_key_set((tmp_path / KEY_SET_FILE).read_bytes())) == KEYS_MAX
    assert await asyncio.to_thread(names_in, tmp_path) == [KEY_SET_FILE, KEY_FILE]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def good(_request: web.Request) -> web.StreamResponse:
    return web.Response(text=KEY_SET)


async def moved(_request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/good")


async def failing(_request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text=KEY_SET)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(10):
        await response.write(b" " * KEY_SET_BYTES_MAX)
    return response


async def closing(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.mark.parametrize("handler", [good, moved, failing, endless, closing])
async def test_only_a_plain_answer_of_the_url_is_used(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    app = web.Application()
    app.router.add_get("/jwks.json", handler)
    app.router.add_get("/good", good)
    async with TestServer(app) as server:
        ring = KeyRing(url_source(str(server.make_url("/jwks.json"))), clock=ManualClock(), age_max=AGE_MAX)
        if handler is good:
            assert await ring.key(KID) is not None
        else:
            with pytest.raises(Unavailable):
                await ring.key(KID)
