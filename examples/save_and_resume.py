"""Stop in the middle and go on: a run that is resumed gives the losses of one that never stopped.

`save_state` keeps the weights and the optimizer's memory, to train on; `save_weights_for_sampler` keeps the
weights alone, to sample from.
"""

from __future__ import annotations

import tinkex
from tinkex import types

LINES = [
    "The owl likes rain.",
    "The fox sleeps at noon.",
    "A crow keeps the keys.",
    "The hare tells the time.",
]


def example(trainer: tinkex.TrainingClient, line: str) -> types.Datum:
    """A line to learn by heart, asked for by its first two words."""
    chat = [{"role": "user", "content": "Complete: " + " ".join(line.split()[:2])}]
    prompt = trainer.apply_chat_template(chat, add_generation_prompt=True)
    answer = [*trainer.get_tokenizer().encode(line), trainer.get_tokenizer().eos_token_id]
    tokens = prompt.to_ints() + answer
    weights = [0.0] * (prompt.length - 1) + [1.0] * len(answer)
    return types.Datum(
        types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], "weights": weights}
    )


def train(trainer: tinkex.TrainingClient, steps: int) -> list[float]:
    """Some steps on all lines; the losses."""
    data = [example(trainer, line) for line in LINES]
    losses = []
    for _ in range(steps):
        passed = trainer.forward_backward(data, "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=2e-3))
        losses.append(passed)
    return [each.result().metrics["loss:sum"] for each in losses]


def main() -> None:
    """Train once in one go, once in two halves, and compare."""
    with tinkex.ServiceClient.local(model="nano") as client:
        whole = train(client.create_lora_training_client("nano", rank=8, seed=0), 8)

        trainer = client.create_lora_training_client("nano", rank=8, seed=0)
        halves = train(trainer, 4)
        path = trainer.save_state("half-way", overwrite=True, ttl_seconds=3600).result().path
        print("saved  ", path)

    # Another day, another process: all that is needed is the path.
    with tinkex.ServiceClient.local(model="nano") as client:
        trainer = client.create_training_client_from_state_with_optimizer(path)
        halves += train(trainer, 4)
        print("whole  ", " ".join(f"{loss:7.3f}" for loss in whole))
        print("resumed", " ".join(f"{loss:7.3f}" for loss in halves))
        fresh = client.create_training_client_from_state(path)  # the same weights, a new optimizer
        print("without the optimizer's memory", " ".join(f"{loss:7.3f}" for loss in train(fresh, 4)))

        kept = trainer.save_weights_for_sampler("owls", ttl_seconds=3600).result().path
        sampler = client.create_sampling_client(model_path=kept)
        chat = [{"role": "user", "content": "Complete: A crow"}]
        prompt = sampler.apply_chat_template(chat, add_generation_prompt=True)
        said = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=20, temperature=0.0)).result()
        print("says   ", sampler.decode(said.sequences[0], skip_special_tokens=True))
        for checkpoint in (
            tinkex.RestClient(config=client.config).list_user_checkpoints().result().checkpoints[:2]
        ):
            print("listed ", checkpoint.tinker_path, checkpoint.size_bytes, "bytes")


if __name__ == "__main__":
    main()
