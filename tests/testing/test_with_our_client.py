"""The two ways the package's docstring shows."""

from __future__ import annotations

from typing import Any

import tinkex
from tinkex import types
from tinkex.testing import FakeClock, FakeServer, FakeService, HandlerTransport

WAIT = 30.0  # real seconds, after which a test is taken to hang
DATA = [
    types.Datum(
        types.ModelInput.from_ints([1, 2, 3]), {"target_tokens": [2, 3, 4], "weights": [0.0, 1.0, 1.0]}
    )
]


def journey(client: Any) -> list[int]:
    trainer = client.create_lora_training_client("Qwen/Qwen3-8B", rank=8)
    first = trainer.forward_backward(DATA, "cross_entropy")
    trainer.optim_step(types.AdamParams(learning_rate=1e-4))
    second = trainer.forward(DATA, "cross_entropy").result(WAIT)
    assert second.metrics["loss:sum"] < first.result(WAIT).metrics["loss:sum"]
    sampler = trainer.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints([1, 2, 3])
    made = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=4, seed=1)).result(WAIT)
    return list(made.sequences[0].tokens)


def test_both_ways_give_the_same() -> None:
    with FakeServer() as server:
        over_http = tinkex.ServiceClient(base_url=server.base_url, api_key="tml-test")
        one = journey(over_http)
        over_http.close("success").result(WAIT)

    clock = FakeClock(auto=True)
    service = FakeService(clock=clock)
    service.faults.add("asample", status=503, times=3)
    in_process = tinkex.ServiceClient(
        base_url="http://fake",
        api_key="tml-test",
        clock=clock,
        transport=lambda config: HandlerTransport(service.handle, clock=clock),
    )
    other = journey(in_process)
    in_process.close("success").result(WAIT)
    assert one == other
    assert len(service.calls_to("asample")) == 4
    assert clock.elapsed > 0
    assert service.world.sessions["sess-1"].ended == "success"
