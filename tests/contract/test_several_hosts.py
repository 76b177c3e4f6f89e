"""A database URL with several hosts: one that is silent does not keep the others from being tried."""

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from switchyard.adapters.postgres.connection import _url_of_each_host, connect
from switchyard.adapters.postgres.reader import Reader


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """A host that accepts connections and never answers, as behind a network that drops packets."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1")
    host, port = server.sockets[0].getsockname()
    yield f"{host}:{port}"
    for writer in writers:
        writer.close()
    server.close()


def with_hosts(url: str, *hosts: str) -> str:
    """The same URL with other hosts; an empty one stands for its own."""
    user, at, own = urlsplit(url).netloc.rpartition("@")
    return url.replace(user + at + own, user + at + ",".join(host or own for host in hosts), 1)


async def test_the_second_host_is_tried_in_time_if_the_first_is_silent(postgres_url: str, silent: str) -> None:
    url = with_hosts(postgres_url, silent, "")
    connection = await connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()

    reader = await Reader.open(url)
    assert await reader.rows("SELECT 1") == [(1,)]
    await reader.close()


@pytest.mark.parametrize(
    "rest", ["/name?target_session_attrs=read-write", "?target_session_attrs=read-write", "/name", ""]
)
def test_each_host_keeps_the_rest_of_the_url(rest: str) -> None:
    urls = _url_of_each_host("postgresql://ann:a,b@one,[::1]:5433" + rest)
    assert urls == ["postgresql://ann:a,b@one" + rest, "postgresql://ann:a,b@[::1]:5433" + rest]
    for url in ("postgresql://one" + rest, "postgresql://" + rest, "postgresql://ann@one:1" + rest):
        assert _url_of_each_host(url) == [url]


async def test_the_last_host_is_the_one_whose_error_is_told(postgres_url: str, silent: str) -> None:
    missing = postgres_url.rpartition("/")[0] + "/missing"
    for hosts in (("", silent), (silent, "")):
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await connect(with_hosts(missing, *hosts))
    with pytest.raises(TimeoutError):
        await connect(with_hosts(postgres_url, silent))
    with pytest.raises(asyncpg.TargetServerAttributeNotMatched):
        await connect(with_hosts(postgres_url, silent, "") + "?target_session_attrs=standby")
