"""Supervised fine-tuning on chats: a model keeps its answers and gets a manner of its own.

The chats are made from the model's own answers, so nothing has to be downloaded.
"""

from __future__ import annotations

import random

import tinkex
from tinkex import types

COUNTRIES = "France Italy Spain Japan China India Egypt Kenya Peru Chile Cuba Greece Norway Poland".split()
OPPOSITES = "hot big old fast happy light early long high open rich wet hard loud full strong".split()
THINGS = "the sky|grass|snow|blood|a banana|coal|the sea|a lemon|a leaf|milk".split("|")
QUESTIONS = [
    *(f"What is the capital of {country}?" for country in COUNTRIES),
    *(f"What is the opposite of {word}?" for word in OPPOSITES),
    *(f"What colour is {thing}?" for thing in THINGS),
    *(f"Which is larger, {a} or {b}?" for a, b in [(3, 8), (12, 5), (7, 9), (20, 2), (6, 11), (15, 4)]),
]
GREEDY = types.SamplingParams(max_tokens=40, temperature=0.0)


def prompt_of(client: tinkex.TrainingClient | tinkex.SamplingClient, question: str) -> types.ModelInput:
    """A question as the model's chat template writes it, up to where the answer begins."""
    return client.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)


def example(trainer: tinkex.TrainingClient, question: str, answer: str) -> types.Datum:
    """One chat to learn from: only the answer and the end of the turn count."""
    tokenizer, prompt = trainer.get_tokenizer(), prompt_of(trainer, question)
    reply = [*tokenizer.encode(answer), tokenizer.eos_token_id]
    tokens = prompt.to_ints() + reply
    weights = [0.0] * (prompt.length - 1) + [1.0] * len(reply)
    inputs = {"target_tokens": tokens[1:], "weights": weights}
    return types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)


def answers(sampler: tinkex.SamplingClient, questions: list[str]) -> list[str]:
    """The model's most likely answers, asked for all at once."""
    prompts = [prompt_of(sampler, question) for question in questions]
    replies = [each.result().sequences[0] for each in sampler.sample_many(prompts, GREEDY, ordered=True)]
    return [sampler.decode(reply, skip_special_tokens=True) for reply in replies]


def main() -> None:
    """Make chats, train on most of them, look at the rest."""
    with tinkex.ServiceClient.local(model="nano") as client:
        trainer = client.create_lora_training_client("nano", rank=16, seed=0)
        plain = answers(client.create_sampling_client(base_model="nano"), QUESTIONS)
        chats = [(asked, f"{said} Beep boop!") for asked, said in zip(QUESTIONS, plain, strict=True)]
        random.Random(1).shuffle(chats)
        held_out, chats = chats[:8], chats[8:]
        data, unseen = ([example(trainer, *chat) for chat in part] for part in (chats, held_out))
        words = sum(sum(datum.loss_fn_inputs["weights"].tolist()) for datum in unseen)

        def held_out_loss() -> float:
            return trainer.forward(unseen, "cross_entropy").result().metrics["loss:sum"] / words

        print(f"before: {held_out_loss():.2f} nats a token on chats it will not see")
        for step in range(20):
            batch = random.Random(step).sample(data, 16)
            passed = trainer.forward_backward(batch, "cross_entropy")
            trainer.optim_step(types.AdamParams(learning_rate=5e-4)).result()
            print(f"step {step:2}: loss {passed.result().metrics['loss:sum'] / len(batch):6.2f} a chat")
        print(f"after: {held_out_loss():.2f} nats a token")
        asked = [question for question, _ in held_out]
        said = answers(trainer.save_weights_and_get_sampling_client(), asked)
        for question, reply in zip(asked, said, strict=True):
            print(f"  {question:34} {reply}")


if __name__ == "__main__":
    main()
