"""Many samples: bounded, as they complete or in order, with endless inputs, cancelled on the way out."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.client.rig import WAIT, Rig
from tinkex import ModelInput, SamplingClient, SamplingParams, types
from tinkex.client.many import Sampled
from tinkex.errors import BadRequestError, ClientClosedError, InvalidArgumentError, RequestFailedError
from tinkex.testing.calls import Call

PARAMS = SamplingParams(max_tokens=4, seed=3)


def prompt(number: int) -> ModelInput:
    return ModelInput.from_ints([number, number + 1])


def number_of(sampled: Sampled) -> int:
    item = sampled.item.prompt if isinstance(sampled.item, types.SampleRequest) else sampled.item
    return item.to_ints()[0]


def sampler(rig: Rig) -> SamplingClient:
    return rig.client().create_sampling_client(base_model="Qwen/Qwen3-8B")


def until(condition: Callable[[], bool]) -> None:
    reached = threading.Event()
    for _ in range(int(WAIT * 200)):
        if condition():
            return
        reached.wait(0.005)
    raise AssertionError("it never happened")


class Counted:
    """Prompts without end, and how many were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[ModelInput]:
        for number in itertools.count():
            self.taken += 1
            yield prompt(number)

    async def __aiter__(self) -> AsyncIterator[ModelInput]:
        for number in itertools.count():
            self.taken += 1
            await asyncio.sleep(0)
            yield prompt(number)


class AsyncOnly:
    def __init__(self, items: Counted) -> None:
        self._items = items

    def __aiter__(self) -> AsyncIterator[ModelInput]:
        return self._items.__aiter__()


# ---- results


def test_every_prompt_is_sampled_once():
    client = sampler(Rig())
    found = list(client.sample_many(map(prompt, range(50)), PARAMS, concurrency=8))
    assert sorted(sampled.index for sampled in found) == list(range(50))
    for sampled in found:
        assert number_of(sampled) == sampled.index
        assert len(sampled.result().sequences[0].tokens) == 4


def test_results_come_as_they_complete():
    rig = Rig()
    client = sampler(rig)
    held = rig.service.faults.add("asample", when=lambda call: first_token(call) == 0, hang=True)
    many = client.sample_many(map(prompt, range(5)), PARAMS, concurrency=5)
    assert {next(many).index for _ in range(4)} == {1, 2, 3, 4}
    held.remove()
    many.close()


def first_token(call: Call) -> int:
    return int(call.json["prompt"]["chunks"][0]["tokens"][0])


def test_in_order_when_asked():
    rig = Rig()
    client = sampler(rig)
    rig.service.faults.add("asample", when=lambda call: first_token(call) % 3 == 0, delay=30.0)
    found = list(client.sample_many(map(prompt, range(20)), PARAMS, concurrency=6, ordered=True))
    assert [sampled.index for sampled in found] == list(range(20))


def test_options_and_requests_with_settings_of_their_own():
    rig = Rig()
    client = sampler(rig)
    request = types.SampleRequest(
        prompt=prompt(7), sampling_params=SamplingParams(max_tokens=2), num_samples=3, prompt_logprobs=True
    )
    first, second = client.sample_many([prompt(1), request], PARAMS, num_samples=2, ordered=True)
    assert [len(each.tokens) for each in first.result().sequences] == [4, 4]
    assert first.result().prompt_logprobs is None
    assert [len(each.tokens) for each in second.result().sequences] == [2, 2, 2]
    assert second.result().prompt_logprobs is not None
    assert second.item is request


def test_an_empty_input_gives_nothing():
    assert list(sampler(Rig()).sample_many([], PARAMS)) == []


def test_async_for_with_a_plain_and_an_async_input():
    client = sampler(Rig())

    async def read() -> list[list[int]]:
        items = Counted()
        plain = [each.index async for each in client.sample_many(map(prompt, range(9)), PARAMS)]
        taken = []
        async with client.sample_many(AsyncOnly(items), PARAMS, concurrency=4, ordered=True) as many:
            async for each in many:
                taken.append(each.index)
                if len(taken) == 9:
                    break
        return [sorted(plain), taken]

    assert asyncio.run(read()) == [list(range(9))] * 2


def test_a_slow_async_input_does_not_hold_back_results():
    client = sampler(Rig())

    async def read() -> list[int]:
        more = asyncio.Event()

        async def items() -> AsyncIterator[ModelInput]:
            yield prompt(0)
            yield prompt(1)
            await more.wait()
            yield prompt(2)

        many = client.sample_many(items(), PARAMS)
        found = [(await asyncio.wait_for(anext(many), WAIT)).index for _ in range(2)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(many), 0.02)
        more.set()
        return sorted(found) + [each.index async for each in many]

    assert asyncio.run(read()) == [0, 1, 2]


# ---- bounds


def test_no_more_is_taken_than_fits():
    rig = Rig()
    client = sampler(rig)
    items = Counted()
    many = client.sample_many(items, PARAMS, concurrency=5)
    assert items.taken == 0
    rig.service.pause("asample")
    reader = threading.Thread(target=next, args=(many,))
    reader.start()
    until(lambda: len(rig.service.calls_to("asample")) == 5)
    assert items.taken == 5
    rig.service.resume()
    reader.join(WAIT)
    for read in range(2, 30):
        next(many)
        assert items.taken - read <= 5
    many.close()


def test_never_more_under_way_than_asked_for():
    rig = Rig(latency=1.0)
    client = sampler(rig)
    pending: list[int] = []

    def look(_: Call) -> bool:
        pending.append(len(rig.service.tickets.pending("asample")))
        return False

    rig.service.faults.add("asample", when=look)
    assert len(list(client.sample_many(map(prompt, range(60)), PARAMS, concurrency=7))) == 60
    assert max(pending) == 6  # and the one that arrives


def test_reading_keeps_the_line_full():
    rig = Rig()
    client = sampler(rig)
    items = Counted()
    with client.sample_many(items, PARAMS, concurrency=10) as many:
        for _ in range(100):
            next(many)
        assert items.taken >= 105


@pytest.mark.parametrize("bad", [0, -1, 1.5])
def test_concurrency_is_checked(bad: float):
    with pytest.raises(InvalidArgumentError, match="concurrency"):
        sampler(Rig()).sample_many([], PARAMS, concurrency=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad", [prompt(1), 5, types.SampleRequest(prompt=prompt(1), sampling_params=PARAMS)]
)
def test_one_prompt_is_not_many(bad: object):
    with pytest.raises(InvalidArgumentError, match="items"):
        sampler(Rig()).sample_many(bad, PARAMS)  # type: ignore[arg-type]


def test_an_async_input_cannot_be_read_with_for():
    with pytest.raises(InvalidArgumentError, match="async for"):
        next(sampler(Rig()).sample_many(AsyncOnly(Counted()), PARAMS))


# ---- errors


def test_the_first_error_is_raised_and_ends_it():
    rig = Rig()
    client = sampler(rig)
    rig.service.faults.add("asample", when=lambda call: first_token(call) == 3, status=400)
    items = Counted()
    many = client.sample_many(items, PARAMS, concurrency=2)
    with pytest.raises(BadRequestError):
        for _ in many:
            pass
    taken = items.taken
    assert list(many) == []
    assert items.taken == taken


@pytest.mark.parametrize("ordered", [False, True])
def test_errors_are_returned_when_asked(ordered: bool):
    rig = Rig()
    client = sampler(rig)
    rig.service.faults.add("asample", when=lambda call: first_token(call) == 3, status=400)
    rig.service.faults.add("asample", when=lambda call: first_token(call) == 5, fail=("no", "user"))
    items = [*map(prompt, range(8)), "text", types.SampleRequest(
        prompt=prompt(9), sampling_params=PARAMS, model_path="tinker://x/y/z"
    )]  # fmt: skip
    found = list(client.sample_many(items, PARAMS, concurrency=3, ordered=ordered, return_exceptions=True))
    failed = {sampled.index: type(sampled.error) for sampled in found if sampled.error is not None}
    assert failed == {
        3: BadRequestError, 5: RequestFailedError, 8: InvalidArgumentError, 9: InvalidArgumentError
    }  # fmt: skip
    assert len(found) == 10
    for sampled in found:
        if sampled.index in failed:
            with pytest.raises(failed[sampled.index]):
                sampled.result()
        else:
            assert sampled.response is not None


def test_an_input_that_fails_ends_it():
    client = sampler(Rig())

    def items() -> Iterator[ModelInput]:
        yield prompt(0)
        raise KeyError("source")

    many = client.sample_many(items(), PARAMS)
    with pytest.raises(KeyError, match="source"):
        list(many)
    assert list(many) == []

    async def read() -> None:
        async def failing() -> AsyncIterator[ModelInput]:
            yield prompt(0)
            raise KeyError("async source")

        with pytest.raises(KeyError, match="async source"):
            async for _ in client.sample_many(failing(), PARAMS):
                pass

    asyncio.run(read())


def test_whatever_stands_in_the_way_of_one_prompt_is_its_error(monkeypatch: pytest.MonkeyPatch):
    client = sampler(Rig())
    form = client._form

    def fragile(item: ModelInput, *others: object) -> object:
        if item == prompt(1):
            raise RuntimeWarning("as an error")
        return form(item, *others)

    monkeypatch.setattr(client, "_form", fragile)
    many = client.sample_many(map(prompt, range(3)), PARAMS, return_exceptions=True, ordered=True)
    assert [type(each.error) for each in many] == [type(None), RuntimeWarning, type(None)]
    many = client.sample_many(map(prompt, range(3)), PARAMS, ordered=True)
    next(many)
    with pytest.raises(RuntimeWarning):
        next(many)
    assert list(many) == []


def test_a_closed_service_client_is_an_error_not_a_hang():
    service_client = Rig().client()
    client = service_client.create_sampling_client(base_model="Qwen/Qwen3-8B")
    service_client.close().result(WAIT)
    with pytest.raises(ClientClosedError):
        list(client.sample_many(map(prompt, range(3)), PARAMS))


# ---- leaving early


@pytest.mark.parametrize("how", ["close", "with", "drop", "error", "async"])
def test_leaving_early_cancels_what_is_under_way(how: str):
    rig = Rig()
    rig.service.dynamic = types.ClientDynamicConfigResponse(sample_cancel_enabled=True)
    client = sampler(rig)
    blocked = rig.service.faults.add("asample", when=lambda call: first_token(call) == 99, status=400)
    many = client.sample_many(itertools.chain([prompt(99)], Counted()), PARAMS, concurrency=6,
                              return_exceptions=how != "error")  # fmt: skip
    rig.service.pause("asample")

    def accepted() -> bool:
        return all(future.request_id for future in many._running.values())

    if how == "error":
        with pytest.raises(BadRequestError):
            next(many)
    elif how == "async":

        async def leave() -> None:
            async with many:
                await anext(many)
                until(accepted)

        asyncio.run(leave())
    else:
        assert next(many).index == 0
        until(accepted)
        if how == "close":
            many.close()
            assert list(many) == []
        elif how == "with":
            with many:
                pass
        else:
            del accepted, many
            gc.collect()
    blocked.remove()
    until(lambda: client._runner._gate is not None and client._runner._gate.inside == 0)
    if how != "error":  # what is cancelled on its way to the server has no ticket to cancel there
        until(lambda: rig.service.tickets.pending("asample") == [])
    rig.service.resume()
    assert client.sample(prompt(1), 1, PARAMS).result(WAIT).sequences


def test_closing_wakes_a_reader_in_another_thread():
    rig = Rig()
    client = sampler(rig)
    rig.service.pause("asample")
    many = client.sample_many(map(prompt, range(3)), PARAMS)
    read: list[list[Sampled]] = []
    reader = threading.Thread(target=lambda: read.append(list(many)))
    reader.start()
    until(lambda: len(rig.service.calls_to("asample")) == 3)
    many.close()
    reader.join(WAIT)
    assert read == [[]]


def test_closing_wakes_a_reader_in_another_task():
    rig = Rig()
    client = sampler(rig)
    rig.service.pause("asample")

    async def leave() -> list[Sampled]:
        async def items() -> AsyncIterator[ModelInput]:
            yield prompt(0)
            await asyncio.Event().wait()

        async def read() -> list[Sampled]:
            return [each async for each in many]

        many = client.sample_many(items(), PARAMS)
        reader = asyncio.ensure_future(read())
        await asyncio.to_thread(until, lambda: len(rig.service.calls_to("asample")) == 1)
        many.close()
        return await asyncio.wait_for(reader, WAIT)

    assert asyncio.run(leave()) == []


def test_thousands_go_through():
    client = sampler(Rig(hold=20.0))
    found = sum(1 for _ in client.sample_many(map(prompt, range(2000)), PARAMS, concurrency=200))
    assert found == 2000
