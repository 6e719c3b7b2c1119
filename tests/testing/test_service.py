from __future__ import annotations

import asyncio
import io
import json
import re
import tarfile

import pytest

from tests.testing.asking import SAMPLE, Asker
from tinkex.testing import FakeClock, FakeRequest, FakeService
from tinkex.testing.handlers import HANDLERS
from tinkex.testing.routing import find_route
from tinkex.types import ClientConfigResponse, SupportedModel
from tinkex.wire.routes import ROUTES


def test_every_route_of_the_contract_is_found_and_answered() -> None:
    assert HANDLERS.keys() == ROUTES.keys()
    for route in ROUTES.values():
        values = {
            name: "weights/a" if greedy else "a"
            for name, greedy in re.findall(r"\{(\w+)(:path)?\}", route.path)
        }
        found = find_route(route.method, "/some/base" + route.url_path(**values))
        assert found is not None
        assert found[0].name == route.name
        assert found[1] == values
    assert find_route("GET", "/api/v1/create_session") is None
    assert find_route("GET", "/elsewhere") is None


def test_keys_decide_who_may_ask_and_who_sees_what() -> None:
    async def main() -> None:
        service = FakeService(api_keys={"tml-a": "ann", "tml-b": "bob"})
        ann, bob, nobody = Asker(service, "tml-a"), Asker(service, "tml-b"), Asker(service, "tml-c")
        assert (await nobody("create_session", {"sdk_version": "1"})).status == 401
        assert (await Asker(service, "")("get_server_capabilities")).status == 401
        assert (await nobody("health")).status == 200
        session = await ann.session()
        model = await ann.model(session)
        assert (await bob("get_session", session_id=session)).status == 404
        assert (await bob("get_info", {"model_id": model})).status == 404
        assert (await bob.ok("list_sessions"))["sessions"] == []
        saved = await ann.result(
            await ann.ok("save_weights", {"model_id": model, "seq_id": 1, "path": "ck"})
        )
        info = {"tinker_path": saved["path"]}
        assert (await bob("weights_info", info)).status == 404
        where = {"training_run_id": model, "checkpoint_id": "weights/ck"}
        assert (await bob("publish_checkpoint", **where)).status == 404
        assert (await ann("publish_checkpoint", **where)).status == 200
        assert (await ann("publish_checkpoint", **where)).status == 409
        assert (await bob.ok("weights_info", info))["base_model"] == "Qwen/Qwen3-8B"
        assert (await bob("delete_checkpoint", **where)).status == 404
        await ann("unpublish_checkpoint", **where)
        copy = {"source_path": saved["path"], "destination_project_id": "p"}
        assert (await bob("copy_weights", copy)).status == 404
        lent = {"x-tinker-weights-access-token": "tml-a", "x-idempotency-key": "k"}
        copied = await bob.ok("copy_weights", copy, headers=lent)
        assert await bob.ok("copy_weights", copy, headers=lent) == copied
        assert (await ann.ok("get_api_key"))["details"]["user_details"]["email"] == "ann@example.com"
        await ann.ok("delete_api_key")
        assert (await ann("list_sessions")).status == 401

    asyncio.run(main())


def test_tokens_are_traded_for_keys_and_expire() -> None:
    async def main() -> None:
        clock = FakeClock()
        service = FakeService(
            config=ClientConfigResponse(pjwt_auth_enabled=True), clock=clock, token_seconds=600
        )
        raw = Asker(service)
        assert (await raw("client_config", {"sdk_version": "1"})).status == 200
        assert (await raw("create_session", {"sdk_version": "1"})).status == 401
        token = (await raw.ok("auth_token", {}))["jwt"]
        asker = Asker(service, token)
        session = await asker.session()
        await clock.advance(599)
        assert (await asker("session_heartbeat", {"session_id": session})).status == 200
        await clock.advance(2)
        assert (await asker("session_heartbeat", {"session_id": session})).status == 401
        fresh = Asker(service, (await raw.ok("auth_token", {}))["jwt"])
        assert (await fresh("session_heartbeat", {"session_id": session})).status == 200
        head, payload, signature = token.split(".")
        for forged in (f"{head}.{payload}.{signature[::-1]}", f"{head}.{payload}x.{signature}", "eyJx"):
            assert (await Asker(service, forged)("list_sessions")).status == 401

    asyncio.run(main())


def test_an_ended_session_takes_no_more_work() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        session = await ask.session()
        model, sampler = await ask.model(session), await ask.sampler(session)
        await ask.ok("session_heartbeat", {"session_id": session})
        finish = {"reason": {"type": "errored"}, "detail": None}
        await ask.ok("finish_session", finish, session_id=session)
        await ask.ok("finish_session", {"reason": {"type": "success"}}, session_id=session)
        assert service.world.sessions[session].ended == "errored"
        assert (await ask("session_heartbeat", {"session_id": session})).status == 410
        step = {"model_id": model, "seq_id": 1, "adam_params": {}}
        assert (await ask("optim_step", step)).status == 400
        another = {"session_id": session, "model_seq_id": 1, "base_model": "x"}
        assert (await ask("create_model", another)).status == 400
        assert (await ask("asample", {**SAMPLE, "sampling_session_id": sampler, "seq_id": 0})).status == 400
        other = await ask.session()
        service.end_session(other)
        assert (await ask("session_heartbeat", {"session_id": other})).status == 410

    asyncio.run(main())


def test_old_and_partial_servers() -> None:
    async def main() -> None:
        service = FakeService(
            config=None, dynamic=None, sample_sequence_ids=False, without=["retrieve_futures"]
        )
        ask = Asker(service)
        for name in ("client_config", "client_dynamic_config"):
            assert (await ask(name, {"sdk_version": "1"})).status == 404
        ticket = await ask.sample(await ask.sampler(await ask.session()))
        assert "sample_sequence_ids" not in ticket
        assert (await ask("retrieve_futures", {})).status == 404

    asyncio.run(main())


def test_models_on_offer_and_their_context() -> None:
    async def main() -> None:
        service = FakeService(models=[SupportedModel(model_name="tiny", max_context_length=8), "big"])
        ask = Asker(service)
        listed = (await ask.ok("get_server_capabilities"))["supported_models"]
        assert [model["model_name"] for model in listed] == ["tiny", "big"]
        session = await ask.session()
        body = {"session_id": session, "model_seq_id": 0, "base_model": "huge"}
        assert (await ask("create_model", body)).status == 400
        opened = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}
        sampler = (await ask.ok("create_sampling_session", opened))["sampling_session_id"]
        await ask.sample(sampler, 0, sampling_params={"max_tokens": 5})
        long = {**SAMPLE, "sampling_session_id": sampler, "seq_id": 1, "sampling_params": {"max_tokens": 6}}
        answer = await ask("asample", long)
        assert answer.status == 400
        assert b"prompt 3 + max_tokens 6 > context 8" in answer.body

    asyncio.run(main())


def test_lists_come_in_pages() -> None:
    async def main() -> None:
        ask = Asker(FakeService())
        sessions = [await ask.session() for _ in range(5)]
        models = [await ask.model(sessions[0], number) for number in range(5)]
        page = await ask.ok("list_training_runs", query={"limit": "2", "offset": "1"})
        assert [run["training_run_id"] for run in page["training_runs"]] == models[::-1][1:3]
        assert page["cursor"] == {"offset": 1, "limit": 2, "total_count": 5}
        assert (await ask.ok("list_sessions", query={"limit": "2"}))["sessions"] == sessions[::-1][:2]
        found, cursor = [], None
        for _ in range(5):
            body = {"limit": 2, **({"cursor": cursor} if cursor else {})}
            answer = await ask.ok("search_sessions", body)
            found += [each["session_id"] for each in answer["sessions"]]
            cursor = answer.get("next_cursor")
            if cursor is None:
                break
        assert found == sessions[::-1]
        await ask.ok("finish_session", {"reason": {"type": "success"}}, session_id=sessions[2])
        query = {"statuses": [{"type": "client_finished", "reasons": ["success"]}]}
        (one,) = (await ask.ok("search_sessions", query))["sessions"]
        assert (one["session_id"], one["status"]["reason"]["type"]) == (sessions[2], "success")
        assert (await ask("list_sessions", query={"limit": "-1"})).status == 422

    asyncio.run(main())


def test_checkpoints_expire() -> None:
    async def main() -> None:
        clock = FakeClock()
        ask = Asker(FakeService(clock=clock))
        model = await ask.model(await ask.session())
        body = {"model_id": model, "seq_id": 1, "path": "ck", "ttl_seconds": 3600}
        saved = await ask.result(await ask.ok("save_weights", body))
        where = {"training_run_id": model, "checkpoint_id": "weights/ck"}
        assert (await ask("set_checkpoint_ttl", {"ttl_seconds": 10}, **where)).status == 400
        await ask.ok("set_checkpoint_ttl", {"ttl_seconds": 7200}, **where)
        await clock.advance(7199)
        assert (await ask("weights_info", {"tinker_path": saved["path"]})).status == 200
        await clock.advance(1)
        assert (await ask("weights_info", {"tinker_path": saved["path"]})).status == 404
        assert (await ask.ok("list_user_checkpoints"))["checkpoints"] == []

    asyncio.run(main())


def test_files_can_be_downloaded_whole_and_in_part() -> None:
    async def main() -> None:
        service = FakeService()
        ask = Asker(service)
        model = await ask.model(await ask.session())
        await ask.ok("save_weights_external", {"model_id": model, "seq_id": 1, "path": "e"})
        where = {"training_run_id": model, "checkpoint_id": "external_weights/e"}
        urls = (await ask.ok("external_weights_urls", **where))["urls"]

        async def get(url: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
            path = url.removeprefix("http://fake")
            answer = await service.handle(FakeRequest("GET", path, {}, headers))
            return answer.status, answer.body, dict(answer.headers)

        status, whole, headers = await get(urls["adapter_model.safetensors"])
        assert status == 200
        header = int.from_bytes(whole[:8], "little")
        tensor = json.loads(whole[8 : 8 + header])["weights"]
        assert len(whole) == 8 + header + tensor["data_offsets"][1]
        etag = headers["etag"]
        part = await get(urls["adapter_model.safetensors"], **{"range": "bytes=100-", "if-range": etag})
        assert (part[0], part[1]) == (206, whole[100:])
        assert part[2]["content-range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
        stale = await get(urls["adapter_model.safetensors"], **{"range": "bytes=100-", "if-range": '"old"'})
        assert (stale[0], stale[1]) == (200, whole)
        assert (await get(urls["adapter_model.safetensors"], range="bytes=999999-"))[0] == 416
        assert (await get("/files/nothing"))[0] == 404
        config = json.loads((await get(urls["adapter_config.json"]))[1])
        assert config["base_model_name_or_path"] == "Qwen/Qwen3-8B"

        redirect = await ask("checkpoint_archive", **where)
        assert redirect.status == 302
        archive = (await get(redirect.headers["location"]))[1]
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            assert "checkpoint_complete" in opened.getnames()

    asyncio.run(main())


def test_a_trace_is_ready_after_a_while() -> None:
    async def main() -> None:
        ask = Asker(FakeService())
        session = await ask.session()
        states = [(await ask.ok("session_trace_export", session_id=session))["status"] for _ in range(2)]
        assert states == ["pending", "ready"]

    asyncio.run(main())


def test_usage_is_asked_for_in_whole_hours() -> None:
    async def main() -> None:
        ask = Asker(FakeService(clock=FakeClock()))
        sampler = await ask.sampler(await ask.session())
        await ask.sample(sampler, num_samples=2)
        window = {"starting_on": "2026-01-01T00:00:00Z", "ending_before": "2026-01-01T01:00:00Z"}
        events = (await ask.ok("billing_usage", query=window))["data"]
        assert [event["event_info"]["token_count"] for event in events] == [3, 8]
        for wrong in ("2026-01-01T00:30:00Z", "2026-02-01T00:00:00Z", "2025-01-01T00:00:00Z"):
            assert (await ask("billing_usage", query={**window, "ending_before": wrong})).status == 400

    asyncio.run(main())


def test_join_gives_each_client_a_number() -> None:
    async def main() -> None:
        ask = Asker(FakeService())
        sampler = await ask.sampler(await ask.session())
        joined = [
            (await ask.ok("join_sampling_session", {"sampling_session_id": sampler}))["client_counter"]
            for _ in range(2)
        ]
        assert joined == [1, 2]
        assert (await ask.ok("get_sampler", sampler_id=sampler))["base_model"] == "Qwen/Qwen3-8B"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("create_session", {"tags": [], "user_metadata": {"k": "v"}, "sdk_version": "0.3.0"}),
        (
            "optim_step",
            {"adam_params": {"learning_rate": 0.0001}, "model_id": "sess-1:train:0", "seq_id": 1},
        ),
        ("save_weights", {"model_id": "sess-1:train:0", "path": "ck1", "seq_id": 1}),
        (
            "asample",
            {
                "num_samples": 1,
                "prompt": {"chunks": [{"tokens": [5, 6, 7]}]},
                "sampling_params": {"max_tokens": 1},
                "sampling_session_id": "sess-1:sample:0",
                "seq_id": 1,
                "prompt_logprobs": True,
                "topk_prompt_logprobs": 0,
            },
        ),
        (
            "telemetry",
            {"events": [], "platform": "Linux", "sdk_version": "0.3.0", "session_id": "sess-1"},
        ),
    ],
)
def test_bodies_of_the_first_sdk_are_understood(name: str, body: object) -> None:
    async def main() -> None:
        ask = Asker(FakeService())
        session = await ask.session()
        await ask.model(session)
        await ask.sampler(session)
        answer = await ask.ok(name, body)
        if "request_id" in answer:
            assert "error" not in await ask.result(answer)

    asyncio.run(main())


def test_the_first_sdk_creates_and_lists_with_nulls() -> None:
    async def main() -> None:
        ask = Asker(FakeService())
        session = await ask.session()
        lora = {"rank": 32, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True}
        body = {
            "session_id": session,
            "model_seq_id": 0,
            "base_model": "Q",
            "user_metadata": None,
            "lora_config": lora,
        }
        model = (await ask.result(await ask.ok("create_model", {**body, "lora_config": lora})))["model_id"]
        await ask.ok("save_weights", {"model_id": model, "path": "ck", "seq_id": 1})
        listed = await ask.ok("list_model_checkpoints", training_run_id=model)
        assert [each["checkpoint_id"] for each in listed["checkpoints"]] == ["weights/ck"]
        gone = await ask.result(await ask.ok("unload_model", {"model_id": model}))
        assert gone["model_id"] == model
        failed = await ask.result(await ask.step(model, 2))
        assert "not loaded" in failed["error"]

    asyncio.run(main())
