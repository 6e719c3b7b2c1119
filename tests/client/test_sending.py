"""Once an operation has its number it is sent to the end; before that it leaves no trace."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tests.client.test_faults import tasks
from tinkex import ServiceClient, types
from tinkex.client.portal import portal
from tinkex.client.rest import RestClient
from tinkex.client.sampling import SamplingClient
from tinkex.errors import AuthenticationError, ClientClosedError, InvalidArgumentError
from tinkex.losses import numpy_loss
from tinkex.net.transport import Request, Response
from tinkex.testing.fake_service import FakeService
from tinkex.testing.http_server import FakeServer
from tinkex.testing.transports import HandlerTransport

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"
PIECES = types.ClientConfigResponse(fwdbwd_max_chunk_len=1, parallel_fwdbwd_chunks=True)
SERIAL = types.ClientConfigResponse(fwdbwd_max_chunk_len=1, parallel_fwdbwd_chunks=False)


@numpy_loss
def halves(examples: list[types.Datum], logprobs: list[Any]) -> Any:
    return 0.0, {}, [each * 0 + 0.5 for each in logprobs]


# ---- cancelling


@pytest.mark.parametrize("config", [PIECES, SERIAL], ids=["parallel", "serial"])
@pytest.mark.parametrize("kind", ["step", "pass"])
def test_cancelling_while_it_is_sent_leaves_no_number_out(
    kind: str, config: types.ClientConfigResponse
) -> None:
    rig = Rig(config=config, skip_after=1e9)
    trainer = rig.trainer()
    rig.service.faults.add(("optim_step", "forward_backward"), delay=5.0, times=3)
    with rig.clock.frozen():
        sent = (
            trainer.optim_step(ADAM)
            if kind == "step"
            else trainer.forward_backward(data(3), "cross_entropy")
        )
        following = trainer.save_state("after")
        assert eventually(lambda: sent.progress.stage == "sending")
        assert sent.cancel()
        assert sent.cancelled()
    following.result(WAIT)
    trainer.optim_step(ADAM).result(WAIT)
    count = 3 if kind == "step" else 5
    arrived = rig.service.seq_ids(trainer.model_id)
    assert sorted(set(arrived)) == list(range(1, count + 1))
    assert rig.service.executed(trainer.model_id) == list(range(1, count + 1))
    assert arrived.index(count - 1) > max(arrived.index(number) for number in range(1, count - 1))


def test_cancelling_while_the_server_is_away_sends_it_when_it_is_back() -> None:
    rig = Rig(skip_after=1e9)
    trainer = rig.trainer()
    rig.offline()
    with rig.clock.frozen():
        step = trainer.optim_step(ADAM)
        assert eventually(lambda: step.progress.stage == "sending")
        step.cancel()
        rig.offline(False)
    assert trainer.save_state("a").result(WAIT)
    assert rig.service.executed(trainer.model_id) == [1, 2]


def test_a_result_nobody_wants_any_more_is_not_waited_for() -> None:
    rig = Rig(config=PIECES, latency={"forward_backward": 1e6})
    trainer = rig.trainer()
    rig.service.faults.add("forward_backward", delay=5.0, times=3)
    with rig.clock.frozen():
        sent = trainer.forward_backward(data(3), "cross_entropy")
        assert eventually(lambda: sent.progress.stage == "sending")
        sent.cancel()
    assert eventually(lambda: len(rig.service.seq_ids(trainer.model_id)) == 3)
    trainer.get_info()  # a round trip later
    assert eventually(lambda: not any("wait_for_result" in repr(task) for task in tasks()))


# ---- arguments


def test_arguments_are_checked_in_the_call_and_cost_no_number() -> None:
    rig = Rig(skip_after=1e9)
    trainer = rig.trainer()
    for call in (
        lambda: trainer.save_state("a", ttl_seconds="soon"),
        lambda: trainer.save_state("a", user_metadata={"a": 1}),
        lambda: trainer.save_weights_for_sampler("a", ttl_seconds=1.5),
        lambda: trainer.save_weights_external("a", age_encryption_recipients="age1"),
        lambda: trainer.save_state("../a"),
        lambda: trainer.forward_backward(data(1), "no_such_loss"),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    trainer.save_state("fine").result(WAIT)
    assert rig.service.seq_ids(trainer.model_id) == [1]


def test_numbers_of_a_sample_may_be_numpys() -> None:
    rig = Rig()
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")
    prompt, params = types.ModelInput.from_ints([1, 2, 3]), types.SamplingParams(max_tokens=np.int64(1))
    response = sampler.sample(
        prompt, np.int64(2), params, np.bool_(True), np.int32(1), np.int64(1),  # type: ignore[arg-type]
        prompt_alt_tokens_k=np.uint8(1), prompt_logprobs_last_n=np.int64(2),  # type: ignore[arg-type]
    ).result(WAIT)  # fmt: skip
    assert len(response.sequences) == 2
    sent = rig.service.calls_to("asample")[-1].json
    names = ("num_samples", "prompt_logprobs", "topk_prompt_logprobs", "topk_sample_logprobs",
             "prompt_alt_tokens_k", "prompt_logprobs_last_n")  # fmt: skip
    assert [sent[name] for name in names] == [2, True, 1, 1, 1, 2]
    for bad in ({"num_samples": 0}, {"num_samples": "many"}, {"num_samples": 1.5}, {"num_samples": 1,
                "topk_prompt_logprobs": "all"}, {"num_samples": 1, "prompt_alt_tokens_k": -1}):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=list(bad)[-1]):
            sampler.sample(prompt, sampling_params=params, **bad)  # type: ignore[arg-type]


def test_headers_of_ones_own_replace_ours_in_whatever_spelling() -> None:
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 401 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = ServiceClient(
            base_url=f"http://127.0.0.1:{port}", api_key="tml-x", telemetry=False,
            default_headers_overrides={
                "user-agent": "me", "x-api-key": "tml-other", "HOST": "gate.test", "X-Team": "a",
            },
        )  # fmt: skip
        with pytest.raises(AuthenticationError):
            await client.get_server_capabilities_async()
        server.close()

    asyncio.run(main())
    lines = [line.partition(": ") for line in seen[0].splitlines()[1:] if line]
    names = [name.lower() for name, _, _ in lines]
    assert len(names) == len(set(names))
    values = {name.lower(): value for name, _, value in lines}
    assert [values[name] for name in ("user-agent", "x-api-key", "host", "x-team")] == [
        "me", "tml-x", "gate.test", "a",
    ]  # fmt: skip


def test_large_batches_have_more_time_to_be_sent() -> None:
    rig = Rig(config=types.ClientConfigResponse(fwdbwd_max_chunk_bytes_count=2**20))
    trainer = rig.trainer()
    size = 2**18
    large = types.Datum(types.ModelInput.from_ints([1]), {"weights": np.zeros(size, np.float32)})
    trainer.forward_backward([large] * 4, "cross_entropy").exception(WAIT)
    trainer.optim_step(types.AdamParams(learning_rate=1e-4)).result(WAIT)
    limits = [float(call.headers["x-stainless-read-timeout"]) for call in rig.service.calls]
    routes = [call.route for call in rig.service.calls]
    large_ones = [limit for limit, name in zip(limits, routes, strict=True) if name == "forward_backward"]
    assert len(large_ones) == 4
    assert min(large_ones) >= 61.0
    assert max(large_ones) >= 63.0, "three are sent together"
    assert limits[routes.index("optim_step")] == 60.0


def test_what_is_sent_is_what_was_given_at_the_call() -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add("optim_step", delay=5.0, times=1)
    metadata, recipients = {"run": "one"}, ["age1first"]
    with rig.clock.frozen():
        trainer.optim_step(ADAM)
        saved = trainer.save_state("a", user_metadata=metadata)
        exported = trainer.save_weights_external("b", age_encryption_recipients=recipients)
        metadata["run"] = "changed"
        recipients.append("age1second")
    saved.result(WAIT)
    exported.result(WAIT)
    assert rig.service.calls.to("save_weights")[0].json["user_metadata"] == {"run": "one"}
    sent = rig.service.calls.to("save_weights_external")[0].json
    assert sent["age_encryption_recipients"] == ["age1first"]


# ---- pieces


def test_a_piece_that_fails_oddly_keeps_no_other_from_being_sent() -> None:
    gc.collect()
    rig = Rig(config=PIECES, skip_after=5.0)

    class Fragile(HandlerTransport):
        struck = False

        async def send(self, request: Request) -> Response:
            if "forward_backward" in request.url and not Fragile.struck:
                Fragile.struck = True
                raise ZeroDivisionError("odd")
            return await super().send(request)

    client = ServiceClient(
        base_url="http://fake.test", api_key="tml-x", clock=rig.clock, telemetry=False,
        transport=lambda _: Fragile(rig.service.handle, clock=rig.clock),
    )  # fmt: skip
    trainer = client.create_lora_training_client(MODEL)
    before = len(tasks())
    with pytest.raises(ZeroDivisionError):
        trainer.forward_backward(data(4), "cross_entropy").result(WAIT)
    assert len(rig.service.seq_ids(trainer.model_id)) == 3
    trainer.optim_step(ADAM).result(WAIT)
    assert eventually(lambda: len(tasks()) <= before)


# ---- custom losses


def test_giving_up_a_custom_loss_in_line_leaves_nothing_behind() -> None:
    gc.collect()
    rig = Rig(skip_after=1e9)
    trainer = rig.trainer()
    before = portal().task_count
    rig.service.faults.add("optim_step", delay=5.0, times=1)

    async def main() -> None:
        with rig.clock.frozen():
            trainer.optim_step(ADAM)
            queued = asyncio.ensure_future(trainer.forward_backward_custom_async(data(1), halves))
            await asyncio.sleep(0.05)
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queued

    asyncio.run(main())
    trainer.save_state("a").result(WAIT)
    assert rig.service.seq_ids(trainer.model_id) == [1, 2]
    assert not rig.service.calls.to("forward_backward")
    assert eventually(lambda: portal().task_count <= before)


def test_interrupting_a_custom_loss_lets_the_next_operation_go(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinkex.client.future import Future

    rig = Rig(skip_after=1e9)
    trainer = rig.trainer()
    result = Future.result

    def interrupted(self: Any, timeout: float | None = None) -> Any:
        monkeypatch.setattr(Future, "result", result)
        raise KeyboardInterrupt

    rig.service.faults.add("forward_backward", delay=5.0, times=1)
    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.forward_backward_custom(data(1), halves)
    trainer.optim_step(ADAM).result(WAIT)
    arrived = rig.service.seq_ids(trainer.model_id)
    assert arrived == list(range(1, len(arrived) + 1))


# ---- the end


def test_a_session_that_is_closed_while_it_is_opened_is_finished_too() -> None:
    rig = Rig()
    client = rig.client()
    rig.service.faults.add("create_session", delay=2.0, times=1)
    with rig.clock.frozen():
        opening = SamplingClient.create(client.holder, base_model=MODEL)
        assert eventually(lambda: bool(rig.service.calls.to("create_session")))
        closing = client.close("interrupted")
    closing.result(WAIT)
    with pytest.raises(ClientClosedError):
        opening.result(WAIT)
    (finish,) = rig.service.calls.to("finish_session")
    assert finish.json["reason"] == {"type": "interrupted"}


# ---- lanes


def test_hanging_samples_delay_neither_heartbeats_nor_training_nor_listings() -> None:
    service = FakeService(latency={"asample": 1e6})
    with FakeServer(service) as server:
        client = ServiceClient(base_url=server.base_url, api_key="tml-x", telemetry=False)
        trainer = client.create_lora_training_client(MODEL)
        sampler = client.create_sampling_client(base_model=MODEL)
        polled = [sampler.sample(PROMPT, 1, SHORT) for _ in range(400)]
        assert eventually(lambda: all(future.progress.stage == "waiting" for future in polled))
        service.faults.add("asample", hang=True)
        hanging = [sampler.sample(PROMPT, 1, SHORT) for _ in range(100)]
        assert eventually(lambda: len(service.calls.to("asample")) >= 464)
        trainer.forward_backward(data(2), "cross_entropy").result(WAIT)
        trainer.optim_step(ADAM).result(WAIT)
        rest = RestClient(client.holder)
        assert rest.list_sessions().result(WAIT).sessions
        assert portal().run(client.holder.beat())
        assert client.get_server_capabilities().supported_models
        assert not any(future.done() for future in polled + hanging)
        for future in polled + hanging:
            future.cancel()
        client.close("success").result(WAIT)


def test_polls_leave_files_to_open_for_everything_else() -> None:
    code = """
    import resource, sys, tinkex
    from tinkex import types

    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    client = tinkex.ServiceClient(base_url=sys.argv[1], api_key="tml-x", telemetry=False)
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    prompt, params = types.ModelInput.from_ints([1]), types.SamplingParams(max_tokens=1)
    samples = [sampler.sample(prompt, 1, params) for _ in range(400)]
    trainer.optim_step(types.AdamParams(learning_rate=1e-4)).result(30)
    print(sum(len(each.result(30).sequences) for each in samples))
    print({name for name in client.metrics()["counters"] if name.startswith("unreachable")} or "")
    """
    pytest.importorskip("resource")
    with FakeServer(FakeService(latency={"asample": 0.3})) as server:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), server.base_url],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.stdout.split() == ["400"], done.stdout + done.stderr[-500:]


def test_calls_of_many_threads_on_one_model_lose_nothing() -> None:
    rig = Rig()
    trainer = rig.trainer()
    futures: list[Any] = []

    def work() -> None:
        for _ in range(5):
            futures.append(trainer.forward_backward(data(1), "cross_entropy"))
            cancelled = trainer.optim_step(ADAM)
            cancelled.cancel()
            futures.append(trainer.optim_step(ADAM))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for future in futures:
        future.result(WAIT)
    arrived = rig.service.seq_ids(trainer.model_id)
    assert sorted(set(arrived)) == list(range(1, max(arrived) + 1))
    assert len(arrived) >= 60


def test_what_reads_results_is_imported_before_the_first_of_them_comes() -> None:
    code = """
    import sys, threading, tinkex
    from tinkex import types

    client = tinkex.ServiceClient(base_url=sys.argv[1], api_key="tml-x", telemetry=False)
    client.get_server_capabilities()
    print("numpy" in sys.modules)  # nothing that needs it was asked for
    client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    print("numpy" in sys.modules, "tinkex.wire.tinker_public_pb2" in sys.modules)
    """
    with FakeServer(FakeService()) as server:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), server.base_url],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.stdout.split() == ["False", "True", "True"], done.stderr[-500:]
