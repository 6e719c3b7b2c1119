"""Who waits for whom: first come, first served, among everybody with the same address and key."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.client.rig import WAIT, Rig, eventually
from tests.net.test_config import SPELLINGS
from tinkex import ServiceClient, types
from tinkex.config import Config
from tinkex.testing import FakeServer, FakeService

PROMPT = types.ModelInput.from_ints([1, 2, 3])
SHORT = types.SamplingParams(max_tokens=2)
MODEL = "Qwen/Qwen3-8B"


def test_a_thousand_samples_at_once_are_each_sent_once_and_answered() -> None:
    service = FakeService(config=types.ClientConfigResponse(sample_use_retrieve_futures=True))
    with FakeServer(service) as server:
        client = ServiceClient(base_url=server.base_url, api_key="tml-x", telemetry=False)
        sampler = client.create_sampling_client(base_model=MODEL)

        async def main() -> list[types.SampleResponse]:
            prompts = [types.ModelInput.from_ints([number]) for number in range(1000)]
            return await asyncio.gather(*(sampler.sample_async(each, 1, SHORT) for each in prompts))

        answers = asyncio.run(main())
        assert len({answer.sequences[0].sequence_id for answer in answers}) == 1000
        came = [call.json["prompt"]["chunks"][0]["tokens"][0] for call in service.calls_to("asample")]
        assert sorted(came) == list(range(1000))
        # One question serves many: not a poll for each.
        assert len(service.calls_to("retrieve_futures")) < 1000
        client.close().result(WAIT)


def test_samples_are_sent_in_the_order_of_the_calls() -> None:
    rig = Rig()
    samplers = [rig.client().create_sampling_client(base_model=MODEL) for _ in range(3)]
    futures = [
        samplers[number % 3].sample(types.ModelInput.from_ints([number]), 1, SHORT) for number in range(600)
    ]
    for future in futures:
        future.result(WAIT)
    came = [call.json["prompt"]["chunks"][0]["tokens"][0] for call in rig.service.calls_to("asample")]
    assert max(abs(place - number) for place, number in enumerate(came)) <= 64


def test_a_refused_sample_is_not_overtaken_by_those_behind_it() -> None:
    rig = Rig()
    sampler = rig.client().create_sampling_client(base_model=MODEL)
    rig.service.rate_limit("asample", 20, burst=20)
    futures = [sampler.sample(types.ModelInput.from_ints([number]), 1, SHORT) for number in range(600)]
    for future in futures:
        future.result(60)
    accepted = [call for call in rig.service.calls_to("asample") if call.status == 200]
    order = [call.json["prompt"]["chunks"][0]["tokens"][0] for call in accepted]
    assert sorted(order) == list(range(600))
    late = [place - number for place, number in enumerate(order)]
    assert max(late) <= 128  # no more than were let in at once, twice over


# ---- whose limits


def shared_of(url: str, rig: Rig, **settings: Any) -> Any:
    config = Config.resolve(base_url=url, api_key="tml-x", telemetry=False, environ={}, **settings)
    return rig.client(config=config).holder.connection


def test_eight_spellings_of_an_address_share_limits_and_connections() -> None:
    rig = Rig()
    connections = [shared_of(url, rig) for url in SPELLINGS]
    assert len({id(connection.shared) for connection in connections}) == 1
    others = [shared_of(url, rig) for url in ("http://example.com:8080", "https://example.com")]
    assert len({id(connection.shared) for connection in [connections[0], *others]}) == 3


def test_a_group_of_its_own_has_limits_of_its_own() -> None:
    rig = Rig()
    url = "http://fake.test"
    mine, yours, ours = (shared_of(url, rig, limit_group=group) for group in ("mine", None, "mine"))
    assert mine.shared is ours.shared is not yours.shared
    rig.service.faults.add("asample", status=429, headers={"retry-after": "30"}, times=1)
    refused, free = (
        rig.client(config=each.config).create_sampling_client(base_model=MODEL) for each in (mine, yours)
    )
    with rig.clock.frozen():
        waiting = refused.sample(PROMPT, 1, SHORT)
        assert eventually(lambda: mine.shared.sampling.paused_until > 0)
        assert free.sample(PROMPT, 1, SHORT).result(WAIT).sequences  # though the clock stands still
    assert waiting.result(WAIT).sequences
