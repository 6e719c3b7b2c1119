"""The official SDK and ours walk the same journeys; the requests a server sees are the same."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinkex import types as our_types
from tinkex.testing.calls import Call
from tinkex.testing.fake_service import FakeService
from tinkex.testing.http_server import FakeServer
from tinkex.wire.passes import PassRequest

WAIT = 20.0
# Asked for once per client by us, once per holder by the official SDK; heartbeats follow the clock.
BACKGROUND = ("client_config", "client_dynamic_config", "session_heartbeat", "telemetry", "auth_token")


def comparable(call: Call) -> Any:
    """A request without what may differ: ids made at random, the SDK's name, headers."""
    body = call.body
    if isinstance(body, PassRequest):
        shown: Any = (
            body.model_id, body.seq_id, body.loss_fn, body.forward_only,
            sorted((body.loss_fn_config or {}).items()),
            [(one.model_dump(), one.model_input_spans, one.loss_fn_input_spans) for one in body.data],
        )  # fmt: skip
    else:
        shown = call.json
    if call.route == "retrieve_future":
        shown = {"request_id": shown["request_id"]}
    return call.method, call.path, dict(call.query), shown


def stream(sdk: str, journey: Callable[[Any, Any], None], config: Any, **settings: Any) -> list[Any]:
    service = FakeService(config=config, **settings)
    with FakeServer(service) as server:
        module = importlib.import_module(sdk)
        journey(module, module.ServiceClient(base_url=server.base_url, api_key="tml-test"))
        return [call for call in service.calls if call.route not in BACKGROUND]


def split(calls: list[Call]) -> tuple[list[Any], list[Any]]:
    """Submissions in order, and the tickets that were polled for."""
    sent = [comparable(call) for call in calls if call.route not in ("retrieve_future", "retrieve_futures")]
    polled = {comparable(call)[3]["request_id"] for call in calls if call.route == "retrieve_future"}
    return sent, sorted(polled)


def text(sent: Any) -> str:
    return json.dumps(sent, sort_keys=True, default=repr)


def datum(sdk: Any, length: int = 3, start: int = 0, **inputs: Any) -> Any:
    tokens = list(range(start, start + length))
    values = {"target_tokens": tokens, "weights": [1.0] * length, **inputs}
    return sdk.types.Datum(model_input=sdk.types.ModelInput.from_ints(tokens), loss_fn_inputs=values)


def training(sdk: Any, client: Any) -> None:
    t = sdk.types
    trainer = client.create_lora_training_client(
        "Qwen/Qwen3-8B", rank=16, seed=7, train_mlp=False, user_metadata={"run": "a"}
    )
    rl = [datum(sdk, 4, 5, logprobs=[-1.0] * 4, advantages=np.ones(4, np.float32))]
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    futures = [
        trainer.forward_backward([datum(sdk), datum(sdk, 5, 9)], "cross_entropy"),
        trainer.forward(rl, "importance_sampling"),
        trainer.forward_backward(rl, "ppo", config),
        trainer.optim_step(t.AdamParams(learning_rate=3e-4, grad_clip_norm=1.0)),
        trainer.optim_step(t.DimuonParams(learning_rate=1e-3)),
    ]
    for future in futures:
        future.result(WAIT)
    trainer.get_info()


def many_pieces(sdk: Any, client: Any) -> None:
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    passed = trainer.forward_backward([datum(sdk, 3, i) for i in range(7)], "cross_entropy")
    stepped = trainer.optim_step(sdk.types.AdamParams())
    assert len(passed.result(WAIT).loss_fn_outputs) == 7
    stepped.result(WAIT)


def sampling(sdk: Any, client: Any) -> None:
    t = sdk.types
    sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    prompt = t.ModelInput.from_ints([5, 6, 7])
    params = t.SamplingParams(max_tokens=4, temperature=0.7, stop=["\n"], seed=3, top_p=0.9)
    sampler.sample(prompt, 2, params).result(WAIT)
    sampler.sample(
        prompt, 1, t.SamplingParams(max_tokens=1), include_prompt_logprobs=True, topk_prompt_logprobs=2,
        topk_sample_logprobs=1,
        target_prompt_logprobs=t.TensorData(data=[3, -1], dtype="int64", shape=[2, 1]),
        prompt_alt_tokens_k=1, prompt_logprobs_last_n=2,
    ).result(WAIT)  # fmt: skip
    sampler.compute_logprobs(prompt).result(WAIT)
    image = t.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=5)
    mixed = t.ModelInput(chunks=[t.EncodedTextChunk(tokens=[1]), image])
    sampler.sample(mixed, 1, t.SamplingParams(max_tokens=2, stop=[1, 2])).result(WAIT)
    sampler.get_base_model()


def checkpoints(sdk: Any, client: Any) -> None:
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    path = trainer.save_state("ck1", ttl_seconds=7200, user_metadata={"k": "v"}).result(WAIT).path
    trainer.save_state("ck1", overwrite=True).result(WAIT)
    named = trainer.save_weights_for_sampler("s1", ttl_seconds=3600).result(WAIT).path
    trainer.save_weights_external("e1").result(WAIT)
    trainer.save_weights_and_get_sampling_client()
    trainer.create_sampling_client(named)
    client.create_sampling_client(model_path=named)
    client.create_training_client_from_state(path, user_metadata={"from": "ck1"})
    client.create_training_client_from_state_with_optimizer(path)


def checkpoints_async(sdk: Any, client: Any) -> None:
    async def main() -> None:
        trainer = await client.create_lora_training_client_async("Qwen/Qwen3-8B")
        passed = await trainer.forward_backward_async([datum(sdk)], "cross_entropy")
        stepped = await trainer.optim_step_async(sdk.types.AdamParams())
        await passed
        await stepped
        path = (await (await trainer.save_state_async("ck1")).result_async()).path
        await trainer.save_weights_and_get_sampling_client_async()
        await client.create_training_client_from_state_async(path)
        sampler = await client.create_sampling_client_async(base_model="Qwen/Qwen3-8B")
        prompt = sdk.types.ModelInput.from_ints([1, 2])
        await sampler.sample_async(prompt, 1, sdk.types.SamplingParams(max_tokens=1))
        await sampler.compute_logprobs_async(prompt)

    asyncio.run(main())


def listings(sdk: Any, client: Any) -> None:
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    path = trainer.save_state("ck1").result(WAIT).path
    rest = client.create_rest_client()
    rest.get_training_run(trainer.model_id).result(WAIT)
    rest.get_training_run_by_tinker_path(path, access_scope="accessible").result(WAIT)
    rest.get_weights_info_by_tinker_path(path).result(WAIT)
    rest.list_training_runs(limit=5, offset=0).result(WAIT)
    rest.list_checkpoints(trainer.model_id).result(WAIT)
    rest.list_user_checkpoints(limit=10).result(WAIT)
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result(WAIT)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result(WAIT)
    rest.publish_checkpoint_from_tinker_path(path).result(WAIT)
    rest.unpublish_checkpoint_from_tinker_path(path).result(WAIT)
    rest.list_sessions().result(WAIT)
    rest.delete_checkpoint_from_tinker_path(path).result(WAIT)
    client.get_server_capabilities()


def custom_losses(sdk: Any, client: Any) -> None:
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")

    def squares(examples: list[Any], logprobs: list[Any]) -> Any:
        loss = sum((each**2).sum() for each in logprobs) / len(examples)
        return loss, {"squares": float(loss.detach())}

    first = trainer.forward_backward_custom([datum(sdk, 3, i) for i in range(5)], squares)
    stepped = trainer.optim_step(sdk.types.AdamParams())
    assert first.result(WAIT).metrics["squares"] > 0
    stepped.result(WAIT)

    async def main() -> None:
        await (await trainer.forward_backward_custom_async([datum(sdk, 4, 2)], squares))

    asyncio.run(main())


def errors(sdk: Any, client: Any) -> None:
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    sampler = trainer.save_weights_and_get_sampling_client()
    with pytest.raises(sdk.RequestFailedError):
        trainer.load_state("tinker://nobody:train:0/weights/none").result(WAIT)
    with pytest.raises(sdk.TinkerError):
        client.create_sampling_client(model_path="tinker://nobody:train:0/sampler_weights/none").sample(
            sdk.types.ModelInput.from_ints([1]), 1, sdk.types.SamplingParams(max_tokens=1)
        ).result(WAIT)
    with pytest.raises(ValueError, match="No data provided"):
        trainer.forward_backward([], "cross_entropy")
    sampler.sample(sdk.types.ModelInput.from_ints([1]), 1, sdk.types.SamplingParams(max_tokens=1)).result(
        WAIT
    )
    trainer.optim_step(sdk.types.AdamParams()).result(WAIT)


JOURNEYS = [training, sampling, checkpoints, checkpoints_async, listings, errors]
SERIAL = {"parallel_fwdbwd_chunks": False}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "0")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("journey", JOURNEYS, ids=lambda journey: journey.__name__)
@pytest.mark.parametrize(
    "flags",
    [
        SERIAL,
        {**SERIAL, "sample_use_retrieve_futures": True},
        {**SERIAL, "create_model_via_load_weights": True, "proto_compress_fwdbwd": True},
    ],
    ids=["plain", "batched-polls", "via-load"],
)
def test_the_same_requests_are_sent(journey: Any, flags: dict[str, Any]) -> None:
    config = our_types.ClientConfigResponse(**flags)
    official, official_polls = split(stream("tinker", journey, config))
    ours, our_polls = split(stream("tinkex", journey, config))
    for left, right in zip(official, ours, strict=False):
        assert right == left
    assert len(ours) == len(official)
    assert our_polls == official_polls


@pytest.mark.parametrize("length", [1024, 2])
def test_the_same_custom_losses_are_sent(length: int) -> None:
    pytest.importorskip("torch")
    config = our_types.ClientConfigResponse(parallel_fwdbwd_chunks=False, fwdbwd_max_chunk_len=length)
    official, official_polls = split(stream("tinker", custom_losses, config))
    ours, our_polls = split(stream("tinkex", custom_losses, config))
    assert [text(each) for each in ours] == [text(each) for each in official]
    assert our_polls == official_polls


@pytest.mark.parametrize("parallel", [False, True])
def test_the_same_pieces_are_sent(parallel: bool) -> None:
    config = our_types.ClientConfigResponse(parallel_fwdbwd_chunks=parallel, fwdbwd_max_chunk_len=2)
    official, _ = split(stream("tinker", many_pieces, config))
    ours, _ = split(stream("tinkex", many_pieces, config))
    assert sorted(map(text, ours)) == sorted(map(text, official))
    if not parallel:
        assert ours == official
