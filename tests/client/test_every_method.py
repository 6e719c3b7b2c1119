"""Every public method of every client: the one future it returns, and what it says after closing."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from typing import Any

import pytest

from tests.client.rig import WAIT, Rig, data
from tests.client.test_rest import CALLS, CKPT, EXPORT, rig_with_content
from tinkex import AdminClient, RestClient, SamplingClient, ServiceClient, TrainingClient, types
from tinkex.client.future import Future
from tinkex.errors import ClientClosedError, TinkerError
from tinkex.losses import numpy_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::tinkex.notices.TinkexWarning"),
]

ADAM = types.AdamParams(learning_rate=1e-4)
PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"
SAMPLER = "tinker://sess-1:train:0/sampler_weights/a"


@numpy_loss
def loss(examples: list[types.Datum], logprobs: list[Any]) -> Any:
    return 0.0, {}, logprobs


def per_datum(logprobs: Any) -> Any:
    return -logprobs.sum(), {}


# What each method is called with; its `_async` twin gets the same.
ARGUMENTS: dict[type, dict[str, dict[str, Any]]] = {
    ServiceClient: {
        "get_server_capabilities": {},
        "create_lora_training_client": {"base_model": MODEL},
        "create_training_client_from_state": {"path": CKPT},
        "create_training_client_from_state_with_optimizer": {"path": CKPT},
        "create_sampling_client": {"base_model": MODEL},
        "create_custom_loss": {"fn": per_datum, "input_ranks": {"logprobs": 1}},
        "create_rest_client": {},
        "copy_weights": {"path": CKPT},
    },
    TrainingClient: {
        "forward": {"data": data(1), "loss_fn": "cross_entropy"},
        "forward_backward": {"data": data(1), "loss_fn": "cross_entropy"},
        "forward_backward_custom": {"data": data(1), "loss_fn": loss},
        "optim_step": {"optim_params": ADAM},
        "save_state": {"name": "a"},
        "load_state": {"path": CKPT},
        "load_state_with_optimizer": {"path": CKPT},
        "save_weights_for_sampler": {"name": "a"},
        "save_weights_external": {"name": "a"},
        "save_weights_and_get_sampling_client": {},
        "create_sampling_client": {"model_path": SAMPLER},
        "get_info": {},
        "get_tokenizer": {},
        "encode": {"text": "x"},
        "decode": {"tokens": [1]},
        "apply_chat_template": {"messages": [{"role": "user", "content": "x"}]},
    },
    SamplingClient: {
        "sample": {"prompt": PROMPT, "num_samples": 1, "sampling_params": SHORT},
        "sample_stream": {"prompt": PROMPT, "sampling_params": SHORT},
        "sample_many": {"items": [PROMPT], "sampling_params": SHORT},
        "compute_logprobs": {"prompt": PROMPT},
        "get_base_model": {},
        "get_tokenizer": {},
        "encode": {"text": "x"},
        "decode": {"tokens": [1]},
        "apply_chat_template": {"messages": [{"role": "user", "content": "x"}]},
    },
    RestClient: {
        **{name: arguments for name, arguments, *_ in CALLS},
        "whoami": {},
        "export_session_trace": {"session_id": "sess-1"},
        "download_checkpoint": {"tinker_path": EXPORT, "folder": "nowhere"},
        "iter_sessions": {},
        "iter_training_runs": {},
        "iter_user_checkpoints": {},
        "iter_search_sessions": {},
    },
    AdminClient: {
        name: next(arguments for known, arguments, *_ in CALLS if known == name)
        for name in ("get_audit_log", "get_billing_usage", "get_current_checkpoint_storage_usage")
    },
}
# What these do needs no server, or ends the use of one.
WITHOUT_A_SERVER = {
    "close", "local", "local_async", "metrics", "prometheus", "on_event", "get_console_url",
    "get_telemetry", "create", "get_sampler_handle", "from_sampler_handle", "on_queue_state_change",
}  # fmt: skip


def methods(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind, callable) if not name.startswith("_")}


class Clients:
    """One client of each kind, all of one session."""

    def __init__(self) -> None:
        self.rig: Rig = rig_with_content()
        self.service = self.rig.client(project_id="proj")
        trainer = self.service.create_lora_training_client(MODEL)
        self.of: dict[type, Any] = {
            ServiceClient: self.service,
            TrainingClient: trainer,
            SamplingClient: trainer.save_weights_and_get_sampling_client(),
            RestClient: RestClient(self.service.holder),
            AdminClient: AdminClient(self.service.holder),
        }

    def call(self, kind: type, name: str) -> Any:
        return getattr(self.of[kind], name)(**ARGUMENTS[kind][name.removesuffix("_async")])


CASES = [(kind, name) for kind in ARGUMENTS for name in sorted(methods(kind) - WITHOUT_A_SERVER)]
EACH = pytest.mark.parametrize(
    ("kind", "name"), CASES, ids=[f"{kind.__name__}.{name}" for kind, name in CASES]
)


def test_the_table_is_whole() -> None:
    for kind, table in ARGUMENTS.items():
        known = {name.removesuffix("_async") for name in methods(kind)}
        assert known - WITHOUT_A_SERVER == set(table)


@pytest.fixture(scope="module")
def closed() -> Clients:
    clients = Clients()
    clients.service.close("success").result(WAIT)
    clients.rig.service.calls.clear()
    return clients


@EACH
def test_after_closing_every_method_says_so(kind: type, name: str, closed: Clients) -> None:
    def use() -> None:
        got = closed.call(kind, name)
        if inspect.isawaitable(got) and not isinstance(got, Future):
            got = asyncio.run(_awaited(got))
        if isinstance(got, Future):
            got.result(WAIT)
        elif hasattr(got, "__next__") or hasattr(got, "__iter__"):
            list(got)

    with pytest.raises(ClientClosedError) as caught:
        use()
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, TinkerError)
    assert closed.rig.service.calls == []


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


def returns_a_future(kind: type, name: str) -> bool:
    return str(inspect.signature(getattr(kind, name)).return_annotation).startswith("Future[")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, name in CASES if returns_a_future(kind, name)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_starts_work_returns_the_one_future(kind: type, name: str, tmp_path: Any) -> None:
    if name == "create_custom_loss":
        pytest.importorskip("torch")
    clients = Clients()
    arguments = dict(ARGUMENTS[kind][name.removesuffix("_async")])
    if "folder" in arguments:
        arguments["folder"] = tmp_path / "here"
    if name.startswith("unpublish"):
        clients.of[RestClient].publish_checkpoint_from_tinker_path(CKPT).result(WAIT)
    future = getattr(clients.of[kind], name)(**arguments)
    if name.endswith("_async"):
        future = asyncio.run(_awaited(future))
    assert isinstance(future, Future)
    assert isinstance(future, concurrent.futures.Future)
    assert inspect.isawaitable(future)
    called = threading.Event()
    future.add_done_callback(lambda done: called.set() if done is future else None)
    error = future.exception(WAIT)
    assert error is None or name == "whoami"  # whose plain key says nothing of its owner
    assert called.wait(WAIT)
    assert future.done()
    assert not future.cancel()
    assert not future.cancelled()
    if error is None:
        assert asyncio.run(future.result_async()) is future.result()
        assert asyncio.run(_awaited(future)) is future.result()


def test_no_method_returns_another_kind_of_future() -> None:
    kinds = {str(inspect.signature(getattr(kind, name)).return_annotation) for kind, name in CASES}
    assert not [each for each in kinds if "Future[" in each and not each.startswith("Future[")]
    assert sum(returns_a_future(kind, name) for kind, name in CASES) > 40
