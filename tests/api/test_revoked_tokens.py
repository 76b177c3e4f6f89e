"""The list of revoked tokens: read within a second of a change, by every role, and kept while the newest one is bad."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import aiohttp
import jwt
import pytest
from structlog.testing import capture_logs

from switchyard.domain.errors import SettingError, Unauthorized
from switchyard.entrypoints.http.transport.auth import TokenVerifier, issue_token
from switchyard.entrypoints.http.transport.revoked import (
    FILE_BYTES_MAX,
    TOKENS_MAX,
    ListUnusable,
    RevokedTokens,
    parse_list,
)
from tests.support.books import KEEPS_BOOKS, running_backoffice_api
from tests.support.gateway import running_gateway
from tests.support.memory.clock import ManualClock
from tests.support.pdca import pdca_token
from tests.support.polling import until
from tests.support.process import SECRET

TTL = timedelta(hours=1)


class Site:
    """A verifier and its list."""

    def __init__(self, folder: Path, content: bytes | None = None) -> None:
        self.clock = ManualClock()
        self.path = folder / "revoked"
        if content is not None:
            self.path.write_bytes(content)
        self.states: list[bool] = []
        revoked = RevokedTokens(self.path, clock=self.clock, on_state=self.states.append)
        self.tokens = TokenVerifier(SECRET, clock=self.clock, revoked=revoked)

    def write(self, content: bytes) -> None:
        self.path.write_bytes(content)
        self.clock.advance(timedelta(seconds=1))

    def token(self) -> tuple[bytes, str]:
        token = issue_token(SECRET, "demo", clock=self.clock, ttl=TTL)
        return b"Bearer " + token.encode(), jwt.decode(token, options={"verify_signature": False})["jti"]

    def accepts(self, header: bytes) -> bool:
        try:
            self.tokens.verify(header)
        except Unauthorized as error:
            assert error.reason == "TOKEN_REVOKED"
            return False
        return True


def test_a_revoked_token_is_rejected_within_a_second_and_others_are_not(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (first, jti), (second, _) = site.token(), site.token()
    assert site.accepts(first) and site.accepts(second)
    site.write(f"# lost with a laptop\n{jti}  # desk 3\n\n".encode())
    assert not site.accepts(first) and site.accepts(second)
    site.write(b"")
    assert site.accepts(first)


def test_a_token_without_an_id_stays_valid(tmp_path: Path) -> None:
    site = Site(tmp_path, b"None\nnull\n")
    claims = {"sub": "demo", "exp": int(site.clock.now().timestamp()) + 60}
    assert site.accepts(b"Bearer " + jwt.encode(claims, SECRET, "HS256").encode())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"two words\n"),
        lambda path: path.write_bytes("ü\n".encode()),
        lambda path: path.write_bytes(b"x" * (FILE_BYTES_MAX + 1)),
        lambda path: path.write_bytes(b"".join(b"%d\n" % number for number in range(TOKENS_MAX + 1))),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_bad_list_keeps_the_one_before_it_and_alarms_once(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    site = Site(tmp_path)
    header, jti = site.token()
    site.write(jti.encode())
    assert not site.accepts(header)
    with capture_logs() as lines:
        for _ in range(3):
            spoil(site.path) if site.states[-1] else None
            site.clock.advance(timedelta(seconds=1))
            assert not site.accepts(header)
    assert [(line["event"], line["log_level"]) for line in lines] == [("revoked_tokens_unreadable", "error")]
    assert site.states[-1] is False
    if site.path.is_dir():
        site.path.rmdir()
    site.write(b"another\n")
    assert site.accepts(header) and site.states[-1] is True


def test_a_bad_list_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="line 1"):
        Site(tmp_path, b"two words")
    with pytest.raises(SettingError, match="SWITCHYARD_REVOKED_TOKENS"):
        RevokedTokens(tmp_path / "absent", clock=ManualClock(), must_exist=True)


def test_an_unchanged_list_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, b"a\n")
    header, _ = site.token()
    monkeypatch.setattr(Path, "open", None)
    for _ in range(5):
        site.clock.advance(timedelta(seconds=1))
        assert site.accepts(header)


def test_the_ids_of_other_issuers_are_allowed() -> None:
    ids = ["01JCQ8Z4M0W6T1V9K3X5R7N2BD", "2f1e-4a", "urn:example:1", "a" * 256, '"quoted"']
    assert parse_list("\n".join(ids).encode()) == frozenset(ids)
    with pytest.raises(ListUnusable):
        parse_list(b"a" * 257)


def jti_of(token: str) -> str:
    jti: str = jwt.decode(token, options={"verify_signature": False})["jti"]
    return jti


async def test_a_running_gateway_honours_the_list_on_every_door(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, SWITCHYARD_BACKOFFICE_PORT="0", **KEEPS_BOOKS) as gateway,
        running_backoffice_api(gateway) as office,
        aiohttp.ClientSession() as session,
    ):
        token, other, pdca = gateway.token(), gateway.token(), pdca_token(gateway.engine)

        async def answers(token: str, url: str) -> tuple[int, str]:
            async with session.get(url, headers={"Authorization": f"Bearer {token}"}) as response:
                body = await response.json()
                return response.status, body.get("reason", body.get("message", ""))

        urls = {f"{gateway.url}/orders": token, f"{office.url}/positions": token, f"{gateway.url}/gui/strategies": pdca}
        for url, used in urls.items():
            assert (await answers(used, url))[0] == 200
        stream = await session.get(f"{gateway.url}/stream", headers={"Authorization": f"Bearer {token}"})
        kept = await session.get(f"{gateway.url}/stream", headers={"Authorization": f"Bearer {other}"})
        (tmp_path / "var" / "revoked_tokens").write_text(f"{jti_of(token)}\n{jti_of(pdca)}\n")
        # The stream ends by itself; nobody else asks for anything.
        last = (await stream.text()).strip().split("\n\n")[-1]
        assert last.startswith("event: token_expired") and '"reason":"TOKEN_REVOKED"' in last

        async def all_are_rejected() -> bool:
            return {(await answers(used, url))[0] for url, used in urls.items()} == {401}

        await until(all_are_rejected)
        assert await answers(token, f"{gateway.url}/orders") == (401, "TOKEN_REVOKED")
        assert (await answers(other, f"{gateway.url}/orders"))[0] == 200
        assert not kept.content.at_eof()
        kept.close()
        metrics = (await gateway.get("/metrics", account=None)).body.decode()
        assert "revoked_tokens_up 1.0" in metrics
