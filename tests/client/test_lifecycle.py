"""Opening, closing, forgetting, forking, pickling, exiting."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data, eventually
from tinkex import RestClient, ServiceClient, types
from tinkex.client.portal import portal
from tinkex.client.sampling import SamplingClient
from tinkex.client.training import TrainingClient
from tinkex.errors import ClientClosedError
from tinkex.testing.fake_service import FakeService
from tinkex.testing.http_server import FakeServer

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
CANCELS = types.ClientDynamicConfigResponse(sample_cancel_enabled=True)
KEY = "tml-secret-of-the-parent"


def test_making_a_client_does_nothing() -> None:
    rig = Rig()
    before = portal().task_count
    rig.client()
    assert not rig.service.calls
    assert portal().task_count == before


def test_sixty_four_threads_may_make_clients_at_once() -> None:
    rig = Rig()
    made: list[Any] = []
    gate = threading.Barrier(64)

    def work() -> None:
        gate.wait()
        made.append(rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B"))

    threads = [threading.Thread(target=work) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert len(made) == 64
    assert len([thread for thread in threading.enumerate() if thread.name == "tinkex-portal"]) == 1


def test_one_session_is_opened_however_many_ask_at_once() -> None:
    rig = Rig()
    client = rig.client()

    async def main() -> None:
        await asyncio.gather(
            *(client.create_sampling_client_async(base_model="Qwen/Qwen3-8B") for _ in range(20))
        )

    asyncio.run(main())
    assert len(rig.service.calls.to("create_session")) == 1
    assert len(rig.service.calls.to("client_config")) == 1


def test_leaving_the_block_tells_the_server_how_it_ended() -> None:
    for error, reason in ((None, "success"), (ValueError, "errored"), (KeyboardInterrupt, "interrupted")):
        rig = Rig()
        try:
            with rig.client() as client:
                client.create_sampling_client(base_model="Qwen/Qwen3-8B")
                if error is not None:
                    raise error
        except (ValueError, KeyboardInterrupt):
            pass
        (finish,) = rig.service.calls.to("finish_session")
        assert finish.json == {"reason": {"type": reason}, "detail": None}


def test_a_closed_client_cannot_be_entered_again() -> None:
    client = Rig().client()
    with client:
        client.get_server_capabilities()
    with pytest.raises(RuntimeError, match="ServiceClient is closed"):
        client.__enter__()
    with pytest.raises(RuntimeError, match="ServiceClient is closed"):
        asyncio.run(client.__aenter__())


def test_closing_one_client_leaves_its_siblings_working() -> None:
    rig = Rig()
    client, sibling = rig.client(), rig.client()
    rest = RestClient(
        base_url="http://fake.test", api_key="tml-test", clock=rig.clock, transport=rig.transport
    )
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B")
    others = sibling.create_lora_training_client("Qwen/Qwen3-8B")
    sampler = sibling.create_sampling_client(base_model="Qwen/Qwen3-8B")
    assert client.holder.connection.shared is sibling.holder.connection.shared
    client.close("success").result(WAIT)
    client.close("success").result(WAIT)
    with pytest.raises(ClientClosedError):
        trainer.optim_step(ADAM).result(WAIT)
    assert others.forward_backward(data(1), "cross_entropy").result(WAIT).loss_fn_outputs
    assert sampler.sample(PROMPT, 1, SHORT).result(WAIT).sequences
    assert len(rest.list_sessions().result(WAIT).sessions) == 2
    assert len(rig.service.calls_to("finish_session")) == 1


def test_five_hundred_forgotten_clients_leave_no_task_no_connection_and_no_heartbeat() -> None:
    rig = Rig()
    assert eventually(lambda: portal().task_count == 0 or True)
    gc.collect()
    before = portal().task_count
    clients = [rig.client(f"tml-{index}") for index in range(500)]
    samplers = [client.create_sampling_client(base_model="Qwen/Qwen3-8B") for client in clients]
    held = [weakref.ref(client.holder) for client in clients]
    assert portal().task_count > before
    del clients, samplers
    gc.collect()
    assert eventually(lambda: all(reference() is None for reference in held))
    assert eventually(lambda: portal().task_count <= before)
    assert eventually(lambda: all(transport.closed for transport in rig.transports))
    beats = len(rig.service.calls.to("session_heartbeat"))
    rig.clock.advance_from_thread(40)
    assert len(rig.service.calls.to("session_heartbeat")) == beats


def test_heartbeats_go_on_while_a_client_is_held() -> None:
    rig = Rig()
    rig.clock.auto = False
    client = rig.client()
    future = SamplingClient.create(client.holder, base_model="Qwen/Qwen3-8B")
    assert future.result(WAIT)
    rig.clock.advance_from_thread(35)
    assert eventually(lambda: len(rig.service.calls.to("session_heartbeat")) >= 3)


def test_two_clients_with_different_settings_live_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(FakeService()) as one, FakeServer(FakeService()) as two:
        monkeypatch.setenv("TINKER_BASE_URL", one.base_url)
        monkeypatch.setenv("TINKER_API_KEY", "tml-one")
        first = ServiceClient(telemetry=False)
        monkeypatch.setenv("TINKER_BASE_URL", two.base_url)
        monkeypatch.setenv("TINKER_API_KEY", "tml-two")
        second = ServiceClient(telemetry=False)
        monkeypatch.delenv("TINKER_API_KEY")
        first.get_server_capabilities()
        second.get_server_capabilities()
        for server, key in ((one, "tml-one"), (two, "tml-two")):
            keys = {call.headers["x-api-key"] for call in server.service.calls}
            assert keys == {key}


# ---- cancelling and timeouts


def test_a_queued_operation_can_be_cancelled_and_the_next_one_goes_on() -> None:
    rig = Rig()
    trainer = rig.trainer()
    rig.service.faults.add("forward_backward", delay=5.0, times=1)
    with rig.clock.frozen():
        first = trainer.forward_backward(data(1), "cross_entropy")
        queued = trainer.optim_step(ADAM)
        last = trainer.save_state("a")
        assert queued.cancel()
        assert queued.cancelled()
    first.result(WAIT)
    last.result(WAIT)
    assert not rig.service.calls.to("optim_step")
    assert rig.service.seq_ids(trainer.model_id) == [1, 2]


def test_a_running_sample_is_cancelled_on_the_server() -> None:
    rig = Rig(
        dynamic=types.ClientDynamicConfigResponse(sample_cancel_enabled=True), latency={"asample": 1e6}
    )
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")
    future = sampler.sample(PROMPT, 1, SHORT)
    assert eventually(lambda: future.request_id is not None)
    assert future.progress.stage == "waiting"
    assert future.cancel()
    assert eventually(lambda: bool(rig.service.calls.to("cancel_future")))
    assert rig.service.calls.to("cancel_future")[0].json == {"request_id": future.request_id}


def test_cancelling_sample_async_cancels_the_sample() -> None:
    rig = Rig(
        dynamic=types.ClientDynamicConfigResponse(sample_cancel_enabled=True), latency={"asample": 1e6}
    )
    sampler = rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sampler.sample_async(PROMPT, 1, SHORT), 0.2)

    asyncio.run(main())
    assert eventually(lambda: bool(rig.service.calls.to("cancel_future")))


def test_a_timeout_means_the_same_blocking_and_awaited() -> None:
    rig = Rig(latency={"optim_step": 1e6})
    trainer = rig.trainer()
    first, second = trainer.optim_step(ADAM), trainer.optim_step(ADAM)
    with pytest.raises(TimeoutError):
        first.result(0.05)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await second.result_async(timeout=0.05)
        task = asyncio.ensure_future(second.result_async())
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(main())
    assert not first.done()
    assert not second.done()
    assert not second.cancelled()


def test_callbacks_never_run_on_the_background_loop() -> None:
    rig = Rig()
    trainer = rig.trainer()
    where: list[str] = []
    future = trainer.optim_step(ADAM)
    future.add_done_callback(lambda done: where.append(threading.current_thread().name))
    future.result(WAIT)
    assert eventually(lambda: bool(where))
    assert where != ["tinkex-portal"]


def test_every_blocking_method_has_an_async_twin() -> None:
    single = {"close", "create_custom_loss", "copy_weights", "create_rest_client", "on_event", "metrics"}
    for kind in (ServiceClient, TrainingClient, SamplingClient):
        names = {name for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"}
        for name in names:
            if name.endswith("_async"):
                twin = inspect.signature(getattr(kind, name.removesuffix("_async")))
                assert list(inspect.signature(getattr(kind, name)).parameters) == list(twin.parameters)
        missing = {n for n in names if not n.endswith("_async") and f"{n}_async" not in names} - single
        assert {
            n for n in missing if n.startswith(("create_", "save_", "load_", "forward", "optim"))
        } == set()


def test_large_data_are_encoded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinkex.client import model_line

    rig = Rig()
    trainer = rig.trainer()
    threads: list[str] = []
    real = model_line.PassBody

    def watched(request: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(request)

    monkeypatch.setattr(model_line, "PassBody", watched)

    async def main() -> None:
        await (await trainer.forward_backward_async(data(4, 20_000), "cross_entropy"))

    asyncio.run(main())
    assert threads
    assert threading.main_thread().name not in threads
    assert "tinkex-portal" not in threads


# ---- other processes


def test_pickles_and_handles_hold_no_credential_and_make_numbers_of_their_own() -> None:
    service = FakeService()
    with FakeServer(service) as server:
        client = ServiceClient(base_url=server.base_url, api_key=KEY, telemetry=False)
        sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
        sampler.sample(PROMPT, 1, SHORT).result(WAIT)
        raw, handle = pickle.dumps(sampler), sampler.get_sampler_handle()
        assert KEY.encode() not in raw
        sampler.pickle_credentials = True
        assert KEY.encode() in pickle.dumps(sampler)
        os.environ["TINKER_API_KEY"] = KEY
        try:
            copies = [pickle.loads(raw), SamplingClient.from_sampler_handle(handle)]
        finally:
            del os.environ["TINKER_API_KEY"]
        for copy in copies:
            copy.sample(PROMPT, 1, SHORT).result(WAIT)
        numbers = [call.seq_id for call in service.calls.to("asample")]
        assert numbers[0] == 0
        assert all(number >= 10**9 for number in numbers[1:] if number is not None)
        assert len(set(numbers)) == 3


def test_handles_go_both_ways_between_the_official_sdk_and_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import tinker

    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with FakeServer(FakeService()) as server:
        ours = ServiceClient(base_url=server.base_url).create_sampling_client(base_model="Qwen/Qwen3-8B")
        theirs = tinker.ServiceClient(base_url=server.base_url).create_sampling_client(
            base_model="Qwen/Qwen3-8B"
        )
        taken = tinker.SamplingClient.from_sampler_handle(ours.get_sampler_handle())
        prompt = tinker.ModelInput.from_ints([1])
        assert taken.sample(prompt, 1, tinker.SamplingParams(max_tokens=1)).result(WAIT).sequences
        back = SamplingClient.from_sampler_handle(theirs.get_sampler_handle())
        assert back.sample(PROMPT, 1, SHORT).result(WAIT).sequences


def program(server: FakeServer, code: str) -> list[str]:
    return [sys.executable, "-c", f"import tinkex\nurl = {server.base_url!r}\n" + textwrap.dedent(code)]


def environment() -> dict[str, str]:
    return {**os.environ, "TINKER_API_KEY": KEY, "TINKER_TELEMETRY": "0"}


def test_a_program_that_forgets_to_close_is_finished_as_interrupted() -> None:
    service = FakeService()
    with FakeServer(service) as server:
        code = """
        client = tinkex.ServiceClient(base_url=url)
        client.create_sampling_client(base_model="Qwen/Qwen3-8B")
        """
        subprocess.run(program(server, code), check=True, timeout=WAIT, env=environment())
        (finish,) = service.calls.to("finish_session")
        assert finish.json["reason"] == {"type": "interrupted"}


def test_ctrl_c_ends_a_waiting_program_at_once() -> None:
    service = FakeService(latency=1e6)
    with FakeServer(service) as server:
        code = """
        client = tinkex.ServiceClient(base_url=url)
        sampler = client.create_sampling_client(base_model="Qwen/Qwen3-8B")
        print("waiting", flush=True)
        sampler.sample(tinkex.ModelInput.from_ints([1]), 1, tinkex.SamplingParams(max_tokens=1)).result()
        """
        running = subprocess.Popen(
            program(server, code),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert running.stdout is not None
        assert running.stdout.readline().strip() == "waiting"
        service.calls.wait_for("asample")
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=WAIT)
        assert running.returncode != 0
        assert "KeyboardInterrupt" in errors


def test_tokens_are_exchanged_once_and_renewed_before_they_end() -> None:
    rig = Rig(config=types.ClientConfigResponse(pjwt_auth_enabled=True), token_seconds=1000.0)
    client = rig.client()
    for _ in range(3):
        client.get_server_capabilities()
    assert len(rig.service.calls.to("auth_token")) == 1
    assert rig.service.calls.to("get_server_capabilities")[0].headers["x-api-key"].startswith("eyJ")
    rig.clock.advance_from_thread(800)
    client.get_server_capabilities()
    assert eventually(lambda: len(rig.service.calls.to("auth_token")) == 2)
