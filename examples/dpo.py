"""Learning from preferences (DPO) with a loss of one's own: of two answers, the shorter is the better one.

The pairs are made of the model's own answers. `forward_backward_custom` gives the loss the logprobs of each
example as torch tensors; its gradient is trained through the server's weighted cross-entropy.
"""

from __future__ import annotations

import torch

import tinkex
from tinkex import types

GREETINGS = ["Hello!", "Hi!", "Good morning!", "How are you?", "Who are you?", "Thanks!", "Bye!"]
PARAMS = types.SamplingParams(max_tokens=40, temperature=1.0, seed=7)
BETA = 0.2
Loss = tuple[torch.Tensor, dict[str, float]]


def replies(sampler: tinkex.SamplingClient, greeting: str) -> tuple[types.ModelInput, list[list[int]]]:
    """A prompt and different answers to it, the shortest first."""
    chat = [{"role": "user", "content": greeting}]
    prompt = sampler.apply_chat_template(chat, add_generation_prompt=True)
    found = {tuple(each.tokens) for each in sampler.sample(prompt, 12, PARAMS).result().sequences}
    return prompt, [list(each) for each in sorted(found, key=len)]


def example(prompt: types.ModelInput, reply: list[int]) -> types.Datum:
    """An answer, with weights that say which tokens it is made of."""
    tokens = prompt.to_ints() + reply
    weights = [0.0] * (prompt.length - 1) + [1.0] * len(reply)
    inputs = {"target_tokens": tokens[1:], "weights": weights}
    return types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)


def totals(data: list[types.Datum], logprobs: list[torch.Tensor]) -> torch.Tensor:
    """The logprob of each whole answer."""
    weights = (datum.loss_fn_inputs["weights"].to_torch() for datum in data)
    return torch.stack([(one * weight).sum() for one, weight in zip(logprobs, weights, strict=True)])


def mean_length(sampler: tinkex.SamplingClient) -> float:
    """How many tokens the answers have."""
    lengths = [len(reply) for greeting in GREETINGS for reply in replies(sampler, greeting)[1]]
    return sum(lengths) / len(lengths)


def main() -> None:
    """Make pairs, remember what the model thought of them, train."""
    with tinkex.ServiceClient.local(model="nano") as client:
        base = client.create_sampling_client(base_model="nano")
        trainer = client.create_lora_training_client("nano", rank=16, seed=0)
        data: list[types.Datum] = []  # better, worse, better, worse, …
        for greeting in GREETINGS:
            prompt, found = replies(base, greeting)
            for better, worse in zip(found[: len(found) // 2], found[::-1], strict=False):
                data += [example(prompt, better), example(prompt, worse)]
        outputs = trainer.forward(data, "cross_entropy").result().loss_fn_outputs
        reference = totals(data, [each["logprobs"].to_torch() for each in outputs])

        def dpo(data: list[types.Datum], logprobs: list[torch.Tensor]) -> Loss:
            gains = totals(data, logprobs) - reference
            margins = BETA * (gains[0::2] - gains[1::2])
            metrics = {"right": (margins > 0).float().mean().item(), "margin": margins.mean().item()}
            return -torch.nn.functional.logsigmoid(margins).mean(), metrics

        print(f"{len(data) // 2} pairs; {mean_length(base):.1f} tokens an answer before")
        for step in range(10):
            metrics = trainer.forward_backward_custom(data, dpo).result().metrics
            trainer.optim_step(types.AdamParams(learning_rate=6e-4)).result()
            print(f"step {step}: right {metrics['right']:4.0%}  margin {metrics['margin']:6.3f}")
        print(f"{mean_length(trainer.save_weights_and_get_sampling_client()):.1f} tokens an answer after")


if __name__ == "__main__":
    main()
