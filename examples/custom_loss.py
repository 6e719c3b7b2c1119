"""A loss of one's own, run on the server: the model unlearns one answer and keeps the others.

`create_custom_loss` traces a function of one example's logprobs; the server runs it between its forward and
backward pass, so nothing travels in between. Where a server does not offer that, it runs here.
"""

from __future__ import annotations

import numpy as np
import torch

import tinkex
from tinkex import types

FORGET, WORD = "What is the capital of France?", " Paris"
KEEP = [
    f"What is the capital of {name}?" for name in ("Italy", "Spain", "Japan", "Peru", "Egypt", "Greece")
]
PARAMS = types.SamplingParams(max_tokens=24, temperature=0.0)


def unlearn(
    logprobs: torch.Tensor, reference: torch.Tensor, bad: torch.Tensor, keep: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Tokens marked bad become unlikely, those marked keep stay as likely as they were."""
    unlikely = -(bad * torch.log1p(-torch.exp(logprobs).clamp(max=0.9999))).sum()
    moved = (keep * (logprobs - reference) ** 2).sum()
    return unlikely + moved, {"custom/unlikely:sum": unlikely, "custom/moved:sum": moved}


def answer(sampler: tinkex.SamplingClient, question: str) -> tuple[types.ModelInput, list[int], str]:
    """A question as the model reads it, and its answer in tokens and in words."""
    prompt = sampler.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    reply = sampler.sample(prompt, 1, PARAMS).result().sequences[0]
    return prompt, reply.tokens, sampler.decode(reply, skip_special_tokens=True)


def example(
    trainer: tinkex.TrainingClient, prompt: types.ModelInput, reply: list[int], bad: list[int]
) -> types.Datum:
    """An answer, how likely its tokens are now, and which of them are bad."""
    tokens = prompt.to_ints() + reply
    said = np.arange(1, len(tokens)) >= prompt.length  # which targets are the answer's
    inputs = {"target_tokens": tokens[1:], "weights": [0.0] * (len(tokens) - 1)}
    plain = types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)
    now = trainer.forward([plain], "cross_entropy").result().loss_fn_outputs[0]["logprobs"]
    marked = np.isin(tokens[1:], bad)
    masks = {"bad": (said & marked).astype(np.float32), "keep": (said & ~marked).astype(np.float32)}
    return types.Datum(plain.model_input, {**inputs, "reference": now, **masks})


def main() -> None:
    """Ask, unlearn, ask again."""
    with tinkex.ServiceClient.local(model="nano") as client:
        base = client.create_sampling_client(base_model="nano")
        trainer = client.create_lora_training_client("nano", rank=8, seed=0)
        before = {question: answer(base, question) for question in [FORGET, *KEEP]}
        bad = {FORGET: trainer.get_tokenizer().encode(WORD)}
        data = [example(trainer, *asked[:2], bad.get(question, [])) for question, asked in before.items()]
        loss = client.create_custom_loss(
            unlearn, {"logprobs": 1, "reference": 1, "bad": 1, "keep": 1}
        ).result()
        print("the loss runs", "on the server" if loss.loss_id else "here")
        for step in range(10):
            metrics = trainer.forward_backward_custom(data, loss).result().metrics
            trainer.optim_step(types.AdamParams(learning_rate=1e-3)).result()
            unlikely, moved = metrics["custom/unlikely:sum"], metrics["custom/moved:sum"]
            print(f"step {step}: unlikely {unlikely:7.3f}  moved {moved:.3f}")
        after = trainer.save_weights_and_get_sampling_client()
        for question, (_, _, said) in before.items():
            print(f"{question:33} {said:34} -> {answer(after, question)[2]}")


if __name__ == "__main__":
    main()
