"""Many models, one server: three people train adapters over the same base model at the same time.

Their passes are joined into one, so three cost less than three times one; their weights stay apart.
"""

from __future__ import annotations

import asyncio
import time

import tinkex
from tinkex import types

MANNERS = {"Ann": "Ahoy, captain!", "Bob": "Beep boop.", "Cat": "Meow."}
GREETINGS = ["Hello!", "Hi!", "Good morning!", "Good evening!", "Hello, how are you?"]


def example(trainer: tinkex.TrainingClient, greeting: str, answer: str) -> types.Datum:
    """A chat whose answer is to be learned."""
    prompt = trainer.apply_chat_template(
        [{"role": "user", "content": greeting}], add_generation_prompt=True
    )
    reply = [*trainer.get_tokenizer().encode(answer), trainer.get_tokenizer().eos_token_id]
    tokens = prompt.to_ints() + reply
    weights = [0.0] * (prompt.length - 1) + [1.0] * len(reply)
    return types.Datum(
        types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights}
    )


async def train(
    client: tinkex.ServiceClient, who: str, answer: str, steps: int = 10
) -> tinkex.SamplingClient:
    """One person's loop, as it would be written alone; two steps are always under way."""
    trainer = await client.create_lora_training_client_async("nano", rank=8, seed=0)
    await trainer.get_tokenizer_async()  # loaded once, without holding up the others
    data = [example(trainer, greeting, answer) for greeting in GREETINGS]
    under_way = []
    for step in range(steps):
        under_way.append(await trainer.forward_backward_async(data, "cross_entropy"))
        await trainer.optim_step_async(types.AdamParams(learning_rate=2e-3))
        if step:
            await under_way[-2]
    losses = [(await each).metrics["loss:sum"] for each in under_way]
    print(f"{who}: loss {losses[0]:6.1f} -> {losses[-1]:.2f}")
    return await trainer.save_weights_and_get_sampling_client_async()


async def main() -> None:
    """Train all three, then ask each the same."""
    async with await tinkex.ServiceClient.local_async(model="nano") as client:
        await (await client.create_sampling_client_async(base_model="nano")).get_tokenizer_async()
        started = time.perf_counter()
        await train(client, "alone", "Hello yourself.")
        one = time.perf_counter() - started
        started = time.perf_counter()
        samplers = await asyncio.gather(*(train(client, who, answer) for who, answer in MANNERS.items()))
        three = time.perf_counter() - started
        print(f"one alone {one:.1f} s, three together {three:.1f} s")
        for who, sampler in zip(MANNERS, samplers, strict=True):
            chat = [{"role": "user", "content": "Hey!"}]
            prompt = await sampler.apply_chat_template_async(chat, add_generation_prompt=True)
            greedy = types.SamplingParams(max_tokens=16, temperature=0.0)
            reply = (await sampler.sample_async(prompt, 1, greedy)).sequences[0]
            print(f"{who}'s model answers:", await sampler.decode_async(reply, skip_special_tokens=True))


if __name__ == "__main__":
    asyncio.run(main())
