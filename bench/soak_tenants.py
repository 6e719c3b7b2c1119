"""Tenants of a soak: programs as users write them, with our client or the official SDK.

Each has a key of its own and, one after the other, sessions in which it trains, samples from base weights,
unnamed and named ones, saves with a time to live, deletes, loads what must still be there, unloads. One
more sends thousands of samples at once, again and again.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import sys
import urllib.request
from collections.abc import Awaitable
from typing import Any

from soak_worker import MODEL, Tally, pause, work

ROWS, LENGTH, VOCAB = 4, 24, 250
ROUNDS = 16
"""Train steps of one session."""


class Tenant:
    """One of them."""

    def __init__(self, sdk: Any, name: str, key: str, plan: dict[str, Any], tally: Tally) -> None:
        self.sdk, self.types, self.name, self.key = sdk, sdk.types, name, key
        self.url, self.plan, self.tally = plan["url"], plan, tally
        self.chance = random.Random(name)
        self.numbers = 0

    async def live(self, over: asyncio.Event) -> None:
        """Session after session."""
        # Not all at the same moment.
        await pause(over, self.chance.random() * self.plan["stagger"])
        while not over.is_set():
            try:
                await self.session(over)
            except Exception as error:
                self.tally.failed(f"{self.sdk.__name__} session", error)
                await pause(over, 1.0)

    async def open(self) -> Any:
        """A client with a session."""
        settings = {} if self.sdk.__name__ == "tinker" else {"telemetry": False}
        return await asyncio.to_thread(
            self.sdk.ServiceClient, base_url=self.url, api_key=self.key, **settings
        )

    async def session(self, over: asyncio.Event) -> None:
        """One session from its start to its end."""
        service = await self.open()
        try:
            plain = await service.create_sampling_client_async(base_model=MODEL)
            client = await service.create_lora_training_client_async(
                MODEL, rank=4, seed=self.chance.randrange(1 << 20)
            )
            kept = (await (await client.save_state_async("kept", ttl_seconds=self.plan["long_ttl"]))).path
            sampler = plain
            for number in range(ROUNDS):
                if over.is_set():
                    break
                await self.step(client)
                await self.sample(sampler, 2)
                if number % 4 == 1:
                    sampler = await client.save_weights_and_get_sampling_client_async()
                    self.tally.did["unnamed samplers"] += 1
                if number % 5 == 4:
                    saved = await client.save_state_async(
                        f"at-{number}", ttl_seconds=self.plan["short_ttl"]
                    )
                    await saved
                    self.tally.did["saves that expire"] += 1
            await self.ending(service, client, kept)
        finally:
            await asyncio.to_thread(self.close, service)
        self.tally.did["sessions"] += 1

    async def ending(self, service: Any, client: Any, kept: str) -> None:
        """What is saved for long is still there, whatever the server's clock did; then all is deleted."""
        await (await client.load_state_async(kept))
        await self.step(client)
        path = (await (await client.save_weights_for_sampler_async("named"))).path
        named = await service.create_sampling_client_async(model_path=path)
        await self.sample(named, 1)
        rest = service.create_rest_client()
        for each in (path, kept):
            await rest.delete_checkpoint_from_tinker_path_async(each)
            self.tally.did["deletes"] += 1
        if self.chance.random() < 0.5:
            await asyncio.to_thread(self.unload, client.model_id)
            self.tally.did["unloads"] += 1

    def close(self, service: Any) -> None:
        """End a session."""
        ended = service.close("success")
        if ended is not None:
            ended.result(60)

    def unload(self, model_id: str) -> None:
        """Neither SDK does this: a request by hand."""
        ticket = self.post("unload_model", {"model_id": model_id})
        told = self.post("retrieve_future", {"request_id": ticket["request_id"]})
        if "error" in told:
            raise RuntimeError(f"unload_model: {told}")

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """An answer."""
        head = {"x-api-key": self.key, "content-type": "application/json"}
        asked = urllib.request.Request(f"{self.url}/api/v1/{path}", json.dumps(body).encode(), head)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    async def step(self, client: Any) -> None:
        """A pass and an optimizer step."""
        self.numbers += 1
        adam = self.types.AdamParams(learning_rate=1e-3)

        async def both() -> None:
            passed = await client.forward_backward_async(self.data(), "cross_entropy")
            stepped = await client.optim_step_async(adam)
            await passed
            await stepped

        await self.tally.timed("train", both())
        self.tally.steps[self.name] += 1

    def data(self) -> list[Any]:
        """Examples of a pass."""
        rows = [
            [(self.numbers + row * 7 + i * i) % VOCAB for i in range(LENGTH + 1)] for row in range(ROWS)
        ]
        return [
            self.types.Datum(
                model_input=self.types.ModelInput.from_ints(row[:-1]),
                loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * LENGTH},
            )
            for row in rows
        ]

    async def sample(self, sampler: Any, count: int, tokens: int = 12) -> None:
        """A sample."""
        self.numbers += 1
        prompt = self.types.ModelInput.from_ints([self.numbers % VOCAB, 1, 2, 3])
        params = self.types.SamplingParams(max_tokens=tokens, temperature=1.0, stop=[])
        answer = await self.tally.timed("sample", sampler.sample_async(prompt, count, params))
        if len(answer.sequences) != count or any(len(each.tokens) != tokens for each in answer.sequences):
            raise RuntimeError(f"{[len(each.tokens) for each in answer.sequences]} tokens, not {tokens}")
        self.tally.did["samples"] += count

    async def burst(self, over: asyncio.Event) -> None:
        """Thousands of samples at once, again and again."""
        while not await pause(over, self.plan["burst_pause"]):
            try:
                service = await self.open()
                try:
                    sampler = await service.create_sampling_client_async(base_model=MODEL)
                    await asyncio.gather(*(self.sample(sampler, 1, 24) for _ in range(self.plan["burst"])))
                    self.tally.did["bursts"] += 1
                finally:
                    await asyncio.to_thread(self.close, service)
            except Exception as error:
                self.tally.failed("burst", error)


def start(plan: dict[str, Any], tally: Tally, over: asyncio.Event) -> list[Awaitable[None]]:
    """Everyone's life."""
    sdk = importlib.import_module(sys.argv[1])
    tenants = [Tenant(sdk, name, key, plan, tally).live(over) for name, key in plan["keys"].items()]
    if plan["burst_key"]:
        tenants.append(Tenant(sdk, "burst", plan["burst_key"], plan, beside(tally)).burst(over))
    return tenants


def beside(tally: Tally) -> Tally:
    """Counts of its own where they must not be mixed with others'."""
    other = Tally()
    other.did, other.errors = tally.did, tally.errors
    return other


if __name__ == "__main__":
    asyncio.run(work(start))
    sys.stdout.flush()
    os._exit(0)  # an SDK's threads have nothing left to do
