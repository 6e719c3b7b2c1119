"""Defects of the official SDK 0.36 (A1 to A22) that ours must not have.

Where one body can drive both, the official SDK runs it too and is expected to fail, strictly: so the
test is known to catch the defect.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tinkex import types as our_types
from tinkex.testing.fake_service import FakeService
from tinkex.testing.http_server import FakeServer

KEY = "tml-secret-test-key-4711"
HANG = 3.0  # seconds after which something that should be quick is taken to hang

BOTH = pytest.mark.parametrize(
    "sdk",
    ["tinkex", pytest.param("tinker", marks=pytest.mark.xfail(strict=True, raises=BaseException))],
    indirect=True,
)


@pytest.fixture
def sdk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in list(os.environ):
        if name.startswith(("TINKER_", "TINKEX_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    return importlib.import_module(request.param)


@pytest.fixture
def service() -> FakeService:
    return FakeService(config=our_types.ClientConfigResponse(fwdbwd_max_chunk_len=1))


@pytest.fixture
def server(service: FakeService) -> Iterator[FakeServer]:
    with FakeServer(service) as running:
        yield running


def connect(sdk: Any, server: FakeServer, **settings: Any) -> Any:
    return sdk.ServiceClient(base_url=server.base_url, api_key=KEY, **settings)


def train(sdk: Any, server: FakeServer) -> Any:
    return connect(sdk, server).create_lora_training_client("Qwen/Qwen3-8B", rank=8)


def examples(sdk: Any, count: int = 1) -> list[Any]:
    return [
        sdk.types.Datum(
            model_input=sdk.types.ModelInput.from_ints([1, 2, 3]),
            loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
        )
        for _ in range(count)
    ]


def step(sdk: Any, trainer: Any) -> Any:
    return trainer.optim_step(sdk.types.AdamParams(learning_rate=1e-4))


def sampler(sdk: Any, server: FakeServer) -> Any:
    return connect(sdk, server).create_sampling_client(base_model="Qwen/Qwen3-8B")


def sample(sdk: Any, client: Any) -> Any:
    prompt = sdk.types.ModelInput.from_ints([1, 2, 3])
    return client.sample(prompt, 1, sdk.types.SamplingParams(max_tokens=2))


@BOTH
def test_a1_a_rejected_piece_does_not_wedge_the_client(sdk: Any, service: FakeService, server: Any) -> None:
    trainer = train(sdk, server)
    service.skip_after = 0.2
    service.faults.add(
        "forward_backward", when=lambda call: call.seq_id == 2, status=400, body={"detail": "no"}
    )
    with pytest.raises(sdk.BadRequestError):
        trainer.forward_backward(examples(sdk, 3), "cross_entropy").result(HANG)
    step(sdk, trainer).result(HANG)


@BOTH
def test_a2_giving_up_on_a_queued_operation_does_not_wedge_the_client(
    sdk: Any, service: FakeService, server: Any
) -> None:
    trainer = train(sdk, server)
    service.faults.add("forward_backward", delay=0.5, times=1)
    first = trainer.forward_backward(examples(sdk), "cross_entropy")
    queued = step(sdk, trainer)

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await queued.result_async(timeout=0.05)

    asyncio.run(impatient())
    first.result(HANG)
    step(sdk, trainer).result(HANG)
    queued.result(HANG)  # the wait ended, the work did not


@BOTH
def test_a3_a_failing_server_is_not_asked_in_a_hot_loop(
    sdk: Any, service: FakeService, server: Any
) -> None:
    trainer = train(sdk, server)
    fault = service.faults.add("retrieve_future", status=503)
    future = step(sdk, trainer)
    with pytest.raises(TimeoutError):
        future.result(1.5)
    asked = fault.used
    service.faults.clear()
    assert asked <= 6


@BOTH
def test_a4_no_credential_in_telemetry(
    sdk: Any, service: FakeService, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    client = connect(sdk, server)
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    service.faults.add("retrieve_future", status=403, body={"detail": "forbidden"}, times=1)
    with pytest.raises(Exception):  # noqa: B017 - official raises ValueError, ours both
        step(sdk, trainer).result(HANG)
    client.close("errored").result(10)
    sent = b"".join(call.raw for call in service.calls.to("telemetry"))
    assert b"403" in sent or b"forbidden" in sent  # the failure was reported
    assert KEY.encode() not in sent


@BOTH
def test_a5_hanging_telemetry_does_not_delay_the_users_error(
    sdk: Any, service: FakeService, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    service.faults.add("telemetry", status=422, body={"detail": "no"})
    service.faults.add("create_model", status=400, body={"detail": "no such model"})
    client = connect(sdk, server)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            client.create_lora_training_client("Qwen/Qwen3-8B")
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(HANG)
    assert raised


@BOTH
def test_a6_async_calls_do_not_block_the_callers_loop(sdk: Any, service: FakeService, server: Any) -> None:
    service.faults.add(("create_session", "client_config"), delay=0.2)

    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await connect(sdk, server).create_sampling_client_async(base_model="Qwen/Qwen3-8B")
        ticking.cancel()
        return ticks

    assert asyncio.run(main()) >= 10


@BOTH
def test_a7_a_users_loss_does_not_run_on_the_sdks_loop(sdk: Any, server: Any) -> None:
    pytest.importorskip("torch")
    trainer = train(sdk, server)
    threads: list[int] = []

    def loss(data: list[Any], logprobs: list[Any]) -> Any:
        threads.append(threading.get_ident())
        return sum(each.sum() for each in logprobs), {}

    trainer.forward_backward_custom(examples(sdk), loss).result(HANG)
    assert threads == [threading.get_ident()]


@BOTH
def test_a8_a_forgotten_client_is_freed(sdk: Any, service: FakeService, server: Any) -> None:
    client = connect(sdk, server)
    client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    held = weakref.ref(client.holder)
    del client
    for _ in range(20):
        gc.collect()
        if held() is None:
            break
        threading.Event().wait(0.02)
    assert held() is None


def run_program(
    sdk: Any, code: str, server: Any, *, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "TINKER_API_KEY": KEY, "TINKER_BASE_URL": server.base_url, "TINKER_TELEMETRY": "0",
        **(env or {}),
    }  # fmt: skip
    program = f"import {sdk.__name__} as sdk\n" + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=40, env=environment
    )


@BOTH
def test_a9_calls_work_in_a_forked_child(sdk: Any, server: Any) -> None:
    done = run_program(
        sdk,
        """
        import os, signal
        client = sdk.ServiceClient().create_sampling_client(base_model="Qwen/Qwen3-8B")
        prompt, params = sdk.types.ModelInput.from_ints([1, 2]), sdk.types.SamplingParams(max_tokens=1)
        client.sample(prompt, 1, params).result(5)
        child = os.fork()
        if child == 0:
            signal.alarm(6)
            client.sample(prompt, 1, params).result(5)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        client.sample(prompt, 1, params).result(5)
        print("child", status)
        """,
        server,
    )
    assert "child 0" in done.stdout, done.stderr[-500:]


@BOTH
def test_a10_retry_after_is_honoured_by_sampling(sdk: Any, service: FakeService, server: Any) -> None:
    client = sampler(sdk, server)
    service.faults.add("asample", status=429, headers={"retry-after": "1.8"}, times=1)
    sample(sdk, client).result(10)
    first, second = service.calls.to("asample")
    assert second.time - first.time >= 1.8


@BOTH
def test_a11_one_operation_has_one_idempotency_key(sdk: Any, service: FakeService, server: Any) -> None:
    trainer = train(sdk, server)
    service.faults.add("save_weights", status=503, times=2)
    trainer.save_state("a").result(20)
    calls = service.calls.to("save_weights")
    assert len(calls) == 3
    assert len({call.idempotency_key for call in calls}) == 1


@BOTH
def test_a12_a_refused_wait_raises_a_typed_error(sdk: Any, service: FakeService, server: Any) -> None:
    trainer = train(sdk, server)
    service.faults.add("retrieve_future", status=403, body={"detail": "forbidden"}, times=1)
    error = step(sdk, trainer).future().exception(10)
    assert isinstance(error, sdk.TinkerError)
    assert isinstance(error, ValueError)
    assert error.status_code == 403  # type: ignore[attr-defined]


@BOTH
def test_a13_timeout_errors_can_be_unpickled(sdk: Any) -> None:
    import httpx

    error = sdk.APITimeoutError(request=httpx.Request("POST", "http://x", headers={"X-API-Key": KEY}))
    raw = pickle.dumps(error)
    assert KEY.encode() not in raw
    assert str(pickle.loads(raw)) == str(error)


@BOTH
def test_a14_a_misspelt_sampling_parameter_is_refused(sdk: Any) -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        sdk.types.SamplingParams(maxtokens=3)


@BOTH
def test_a15_arrays_may_be_reused_after_the_call(sdk: Any, service: FakeService, server: Any) -> None:
    trainer = train(sdk, server)
    service.faults.add("optim_step", delay=0.3, times=1)
    step(sdk, trainer)  # keeps the line busy, so that the pass is sent later
    weights = np.ones(3, np.float32)
    datum = sdk.types.Datum(
        model_input=sdk.types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": np.array([2, 3, 4]), "weights": weights},
    )
    future = trainer.forward_backward([datum], "cross_entropy")
    weights[:] = 99.0
    future.result(HANG)
    (call,) = service.calls.to("forward_backward")
    assert call.body.data[0].loss_fn_inputs["weights"].tolist() == [1.0, 1.0, 1.0]


@BOTH
def test_a16_odd_inputs_get_a_clear_answer_at_once(sdk: Any) -> None:
    text = sdk.types.ModelInput.from_ints([1, 2])
    with pytest.raises(ValueError, match="mask"):
        sdk.types.Datum(model_input=text, loss_fn_inputs={"mask": [1, 0]})
    made = sdk.types.Datum(model_input=text, loss_fn_inputs={"mask": np.array([True, False])})
    assert made.loss_fn_inputs["mask"].tolist() == [1, 0]


@BOTH
def test_a17_tokens_for_other_accounts_travel_alike_in_both_forms(
    sdk: Any, service: FakeService, server: Any
) -> None:
    assert service.config is not None
    service.config = service.config.model_copy(update={"pjwt_auth_enabled": True})
    client = connect(sdk, server)
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    path = trainer.save_state("a").result(HANG).path

    def stream(work: Any) -> list[tuple[str, Any]]:
        before = len(service.calls)
        work()
        quiet = ("retrieve_future", "session_heartbeat")
        made = [call for call in service.calls[before:] if call.route not in quiet]
        numbered = ("seq_id", "model_seq_id", "model_id")
        return [
            (call.path, {name: value for name, value in (call.json or {}).items() if name not in numbered})
            for call in made
        ]

    token = KEY
    blocking = stream(lambda: client.create_training_client_from_state(path, weights_access_token=token))

    async def main() -> None:
        await client.create_training_client_from_state_async(path, weights_access_token=token)

    assert stream(lambda: asyncio.run(main())) == blocking


@BOTH
def test_a18_a_failed_poll_does_not_end_sampling_for_good(
    sdk: Any, server: Any, service: FakeService
) -> None:
    assert service.config is not None
    service.config = service.config.model_copy(update={"sample_use_retrieve_futures": True})
    client = sampler(sdk, server)
    service.faults.add("retrieve_futures", status=403, body={"detail": "not now"}, times=1)
    for _ in range(2):
        sample(sdk, client).result(10)


@BOTH
def test_a19_a_ticket_may_be_unknown_for_a_moment(sdk: Any, service: FakeService, server: Any) -> None:
    trainer = train(sdk, server)
    service.faults.add("retrieve_future", status=404, body={"detail": "unknown"}, times=1)
    step(sdk, trainer).result(10)


@BOTH
def test_a20_an_error_does_not_report_the_sessions_end(
    sdk: Any, service: FakeService, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_TELEMETRY", "1")
    client = connect(sdk, server)
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    service.faults.add("optim_step", fail=("bad", "user"), times=1)
    with pytest.raises(sdk.RequestFailedError):
        step(sdk, trainer).result(HANG)
    step(sdk, trainer).result(HANG)  # the session goes on
    events = [e for call in service.calls.to("telemetry") for e in call.json["events"]]
    assert not [event for event in events if event["event"] == "SESSION_END"]
    client.close("success").result(HANG)


@BOTH
def test_a21_importing_changes_nothing_global(sdk: Any, server: Any) -> None:
    done = run_program(
        sdk,
        """
        import logging, sys
        sdk.ServiceClient
        changed = [logging.getLogger("httpx").level, len(logging.getLogger().handlers)]
        if "httpx" in sys.modules:
            import httpx
            changed.append(httpx.Timeout.__module__.partition(".")[0])
        print(changed)
        """,
        server,
        env={"TINKER_LOG": "debug"},
    )
    assert done.stdout.strip() in ("[0, 0]", "[0, 0, 'httpx']"), done.stdout + done.stderr[-300:]


@BOTH
def test_a22_listing_calls_share_a_few_connections(sdk: Any, service: FakeService, server: Any) -> None:
    service.faults.add("get_session", delay=0.05)
    connect(sdk, server).create_sampling_client(base_model="Qwen/Qwen3-8B")
    rest = sdk.RestClient(base_url=server.base_url, api_key=KEY)
    session_id = service.calls.to("asample", "create_sampling_session")[0].json["session_id"]
    rest.get_session(session_id).result(HANG)
    before = server.accepted
    for future in [rest.get_session(session_id) for _ in range(32)]:
        future.result(20)
    assert server.accepted - before <= 10
