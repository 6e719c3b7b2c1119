"""The checks on a server that trains: every one passes, and so does the command that runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tinkex import RestClient, types
from tinkex.wire.headers import API_KEY

from ..cli.running import spawn
from ..matrix.serving import HOLE, REAL, Served, start_server
from .running import ALL, FAST, check_server, ended

pytestmark = pytest.mark.skipif(not REAL, reason="a server needs torch and what else it is made of")


@pytest.fixture(scope="module", params=[False, True], ids=["in order", "at once"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with start_server(tmp_path_factory.mktemp("server"), parallel=request.param) as served:
        yield served


def test_our_server_passes_every_check(server: Served):
    outcomes = check_server(server.url, key=server.key)
    assert ended(outcomes, "fail") == {}
    assert ended(outcomes, "skip") == {}
    assert set(outcomes) == FAST


def test_our_server_passes_what_waits_for_its_own_times(server: Served):
    outcomes = check_server(server.url, sorted(ALL - FAST), key=server.key, slow=True)
    assert ended(outcomes, "fail") == {}
    assert ended(outcomes, "skip") == {}
    assert f"given up after {HOLE:.0f} s" in outcomes["wire/6.3/gap"].seen


def test_nothing_is_left_behind(server: Served):
    check_server(server.url, ["save", "journey/2.9", "numerics/8"], key=server.key)
    rest = RestClient(base_url=server.url, api_key=server.key)
    assert rest.list_user_checkpoints().result().checkpoints == []
    active = types.SessionSearchRequest(statuses=[types.ActiveSessionStatusQuery()])
    assert rest.search_sessions(active).result().sessions == []


def test_the_command_says_so_and_exits_with_0(server: Served):
    done = spawn("--json", "conformance", "--base-url", server.url, "--api-key", server.key)
    assert (done.code, done.err) == (0, "")
    report = done.data
    assert (report["failed"], report["skipped"], report["passed"]) == (0, 0, len(FAST))
    assert report["model"] == server.model
    assert {each["check"] for each in report["checks"]} == FAST
    assert server.key not in done.out
    assert API_KEY.lower() not in done.out.lower()
