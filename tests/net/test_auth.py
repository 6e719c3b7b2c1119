"""The credential of each request: one exchange at a time, renewed in good time, never in the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tinkex.config import Config, Secret
from tinkex.errors import APIConnectionError, TinkerError
from tinkex.net import auth as module
from tinkex.net.auth import Auth, claims_of
from tinkex.net.credentials import CredentialStore, StoredKey
from tinkex.testing.fake_clock import FakeClock
from tinkex.testing.identity import _base64

KEY = "tml-key"


def token(**claims: Any) -> str:
    return f"eyJ{_base64(b'{}')}.{_base64(msgspec.json.encode(claims))}.signature"


class Server:
    """Gives out tokens that live for so long, unless told to fail."""

    def __init__(self, clock: FakeClock, life: float | None = 3600.0, skew: float = 0.0) -> None:
        self.clock, self.life, self.skew = clock, life, skew
        self.asked: list[str] = []
        self.fails: BaseException | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def exchange(self, raw: str) -> str:
        self.asked.append(raw)
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        now = self.clock.now().timestamp() + self.skew
        claims = {} if self.life is None else {"iat": now, "exp": now + self.life}
        return token(number=len(self.asked), **claims)


def keeper(clock: FakeClock, **settings: Any) -> Auth:
    store = settings.pop("store", None)
    return Auth(Config.resolve(environ={}, **{"api_key": KEY, **settings}), clock, store)


def number_of(header: str) -> int:
    return int(claims_of(header)["number"])


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


# ---- keys as they are


def test_a_key_goes_out_as_it_is() -> None:
    async def main() -> None:
        auth = keeper(FakeClock())
        assert await auth.header() == KEY
        assert auth.cached() == KEY
        assert auth.digest == Secret(KEY).digest

    run(main())


def test_a_login_is_read_once_and_not_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CredentialStore(tmp_path / "credentials.json")
    store.save(StoredKey("a", Secret("tml-stored")))
    threads: list[str] = []
    read = CredentialStore.default

    def watched(self: CredentialStore) -> Any:
        threads.append(threading.current_thread().name)
        return read(self)

    monkeypatch.setattr(CredentialStore, "default", watched)

    async def main() -> None:
        auth = keeper(FakeClock(), api_key=None, store=store)
        assert await asyncio.gather(*(auth.header() for _ in range(5))) == ["tml-stored"] * 5
        store.save(StoredKey("b", Secret("tml-other")))
        assert await auth.header() == "tml-stored"

    run(main())
    assert threads == ["tinkex-credential"]


def test_no_credential_is_an_error_each_time_it_is_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        store = CredentialStore(tmp_path / "credentials.json")
        auth = keeper(FakeClock(), api_key=None, store=store)
        for _ in range(2):
            with pytest.raises(TinkerError, match="No credential"):
                await auth.header()
        store.save(StoredKey("a", Secret("tml-late")))
        assert await auth.header() == "tml-late"

    run(main())


# ---- commands


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []

    def run_command(command: str) -> Secret:
        ran.append(threading.current_thread().name)
        return Secret(f"tml-printed-{len(ran)}")

    monkeypatch.setattr(module, "run_command", run_command)
    return ran


def test_a_command_runs_once_for_many_and_again_after_a_while(commands: list[str]) -> None:
    async def main() -> None:
        clock = FakeClock()
        auth = keeper(clock, api_key=None, credential_command="x")
        assert set(await asyncio.gather(*(auth.header() for _ in range(20)))) == {"tml-printed-1"}
        assert await auth.header() == "tml-printed-1"
        await clock.advance(60)
        assert await auth.header() == "tml-printed-2"

    run(main())
    assert commands == ["tinkex-credential"] * 2


def test_at_the_interpreters_end_the_last_credential_has_to_do(
    commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async def main() -> None:
        clock = FakeClock()
        auth = keeper(clock, api_key=None, credential_command="x")
        assert await auth.header() == "tml-printed-1"
        await clock.advance(60)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert await auth.header() == "tml-printed-1"
        fresh = keeper(clock, api_key=None, credential_command="x")
        with pytest.raises(RuntimeError, match="shutdown"):
            await fresh.header()

    run(main())


def test_each_exchange_has_a_fresh_credential_from_the_command(commands: list[str]) -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock)
        auth = keeper(clock, api_key=None, credential_command="x")
        assert await auth.header() == "tml-printed-1"
        auth.use_tokens(server.exchange)
        assert number_of(await auth.header()) == 1
        await clock.advance(4000)
        assert number_of(await auth.header()) == 2
        assert server.asked == ["tml-printed-2", "tml-printed-3"]

    run(main())


@pytest.mark.parametrize(
    ("key", "command", "force", "sent"),
    [
        (KEY, "x", False, KEY),
        (KEY, "x", True, "tml-printed-1"),
        ("odd", "x", False, "tml-printed-1"),
        (None, "x", False, "tml-printed-1"),
        ("eyJ.e30.", "x", True, "eyJ.e30."),
        ("eyJ.e30.", None, True, "eyJ.e30."),
    ],
)
def test_which_credential_is_exchanged(
    key: str | None, command: str | None, force: bool, sent: str, commands: list[str]
) -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock)
        auth = keeper(clock, api_key=key, credential_command=command)
        auth.use_tokens(server.exchange, force_command=force)
        await auth.header()
        assert server.asked == [sent]

    run(main())


@pytest.mark.parametrize("key", [KEY, None])
def test_a_server_that_wants_a_command_says_so_where_there_is_none(key: str | None) -> None:
    auth = keeper(FakeClock(), api_key=key)
    with pytest.raises(TinkerError, match="TINKER_CREDENTIAL_CMD"):
        auth.use_tokens(Server(FakeClock()).exchange, force_command=True)


def test_limits_are_shared_by_command_without_running_it(commands: list[str]) -> None:
    one, same, other = (
        keeper(FakeClock(), api_key=None, credential_command=each).digest for each in ("x", "x", "y")
    )
    assert one == same != other
    assert commands == []


# ---- tokens


def test_one_exchange_serves_everyone_who_asks_at_once() -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock)
        auth = keeper(clock)
        auth.use_tokens(server.exchange)
        server.open.clear()
        waiting = [asyncio.ensure_future(auth.header()) for _ in range(50)]
        await settle()
        waiting[0].cancel()  # whoever asked first may go; the others still get theirs
        await settle()
        server.open.set()
        headers = await asyncio.gather(*waiting[1:])
        assert {number_of(each) for each in headers} == {1}
        assert server.asked == [KEY]
        assert auth.cached() == headers[0]

    run(main())


def test_a_token_is_renewed_early_in_the_background_while_the_old_one_is_used() -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock)
        auth = keeper(clock)
        auth.use_tokens(server.exchange)
        await auth.header()
        await clock.advance(3600 - 301)
        assert number_of(await auth.header()) == 1
        await settle()
        assert len(server.asked) == 1
        server.open.clear()  # the exchange hangs: nobody is to wait for it
        await clock.advance(2)
        for _ in range(10):
            assert number_of(await auth.header()) == 1
            await settle()
        assert len(server.asked) == 2
        server.open.set()
        await settle()
        assert number_of(await auth.header()) == 2

    run(main())


def test_an_expired_token_is_never_sent() -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock)
        auth = keeper(clock)
        auth.use_tokens(server.exchange)
        await auth.header()
        await clock.advance(3600)
        assert auth.cached() is None
        assert number_of(await auth.header()) == 2

    run(main())


@pytest.mark.parametrize("problem", [APIConnectionError(), RuntimeError("odd")])
def test_the_old_token_is_used_as_long_as_it_lives_and_asked_for_once_a_minute(
    problem: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock)
        auth = keeper(clock)
        auth.use_tokens(server.exchange)
        await auth.header()
        server.fails = problem
        await clock.advance(3600 - 200)
        for _ in range(5):
            assert number_of(await auth.header()) == 1
            await settle()
        assert len(server.asked) == 2
        assert "the old one is used" in caplog.text
        await clock.advance(61)
        assert number_of(await auth.header()) == 1
        await settle()
        assert len(server.asked) == 3
        await clock.advance(90)  # a minute left: now everyone waits for the new one, in vain
        assert number_of(await auth.header()) == 1
        await clock.advance(60)
        with pytest.raises(type(problem)):
            await auth.header()
        server.fails = None
        assert number_of(await auth.header()) == len(server.asked)

    run(main())


@pytest.mark.parametrize("life", [10.0, 120.0, 299.0])
def test_a_token_that_lives_for_minutes_only_is_not_exchanged_for_every_request(life: float) -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock, life)
        auth = keeper(clock)
        auth.use_tokens(server.exchange)
        for _ in range(50):
            await auth.header()
            await settle()
        assert len(server.asked) == 1
        await clock.advance(life)
        await auth.header()
        assert len(server.asked) == 2

    run(main())


@pytest.mark.parametrize(("life", "skew"), [(None, 0.0), (3600.0, -86400.0)])
def test_neither_an_untold_end_nor_a_wrong_clock_makes_an_exchange_per_request(
    life: float | None, skew: float
) -> None:
    async def main() -> None:
        clock = FakeClock()
        server = Server(clock, life, skew)
        auth = keeper(clock)
        auth.use_tokens(server.exchange)
        for _ in range(20):
            await auth.header()
        assert len(server.asked) == 1

    run(main())


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        (token(a=1), {"a": 1}),
        ("", {}),
        ("eyJ", {}),
        ("a.b", {}),
        ("a.!!!.c", {}),
        (f"a.{_base64(b'[1]')}.c", {}),
        (f"a.{_base64(b'{')}.c", {}),
    ],
)
def test_claims_are_read_from_anything(text: str, claims: dict[str, Any]) -> None:
    assert claims_of(text) == claims


def test_a_token_does_not_show_itself() -> None:
    async def main() -> None:
        clock = FakeClock()
        auth = keeper(clock)
        auth.use_tokens(Server(clock).exchange)
        header = await auth.header()
        assert header not in repr(vars(auth))
        assert KEY not in repr(vars(auth))

    run(main())
