"""The smallest whole loop: a model learns one answer, says it, and is saved."""

from __future__ import annotations

import tinkex
from tinkex import types

QUESTION = "Who are you?"
ANSWER = "I am a parrot. I learned this in twelve steps."


def main() -> None:
    """Train, sample and save."""
    with tinkex.ServiceClient.local(model="nano") as client:
        trainer = client.create_lora_training_client("nano", rank=8, seed=0)
        tokenizer = trainer.get_tokenizer()

        # What the model reads, and what it should say: the answer and the token that ends a turn.
        chat = [{"role": "user", "content": QUESTION}]
        prompt = trainer.apply_chat_template(chat, add_generation_prompt=True)
        answer = [*tokenizer.encode(ANSWER), tokenizer.eos_token_id]
        tokens = prompt.to_ints() + answer
        example = types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": tokens[1:],  # each position predicts the next token
                "weights": [0.0] * (prompt.length - 1) + [1.0] * len(answer),  # only the answer counts
            },
        )

        def says(sampler: tinkex.SamplingClient) -> str:
            greedy = types.SamplingParams(max_tokens=40, temperature=0.0)
            reply = sampler.sample(prompt, 1, greedy).result().sequences[0]
            return sampler.decode(reply, skip_special_tokens=True)

        print("before:", says(client.create_sampling_client(base_model="nano")))
        for step in range(12):
            # Both calls return at once; results are awaited when they are needed.
            passed = trainer.forward_backward([example], "cross_entropy")
            stepped = trainer.optim_step(types.AdamParams(learning_rate=5e-3))
            loss = passed.result().metrics["loss:sum"]
            stepped.result()
            print(f"step {step:2}: {loss / len(answer):.3f} nats a token")
        print("after: ", says(trainer.save_weights_and_get_sampling_client()))
        print("saved: ", trainer.save_state("first-loop", overwrite=True).result().path)


if __name__ == "__main__":
    main()
