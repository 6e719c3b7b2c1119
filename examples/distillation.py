"""On-policy distillation: a student learns from what a teacher thinks of the student's own words.

The teacher is an adapter that was shown the right sums; the student never sees an answer. Each token's
advantage is log p(teacher) - log p(student), so the student moves to where the teacher would have gone.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np

import tinkex
from tinkex import types

SUMS = list(itertools.product(range(10), repeat=2))
PARAMS = types.SamplingParams(max_tokens=6, temperature=1.0)


def example(prompt: types.ModelInput, reply: list[int], **inputs: Any) -> types.Datum:
    """A prompt and a reply; the inputs are of the reply's tokens, the prompt's are zero."""
    tokens, before = prompt.to_ints() + reply, np.zeros(prompt.length - 1)
    aligned = {name: np.concatenate([before, values]) for name, values in inputs.items()}
    return types.Datum(types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:], **aligned})


def right(sampler: tinkex.SamplingClient, prompts: list[types.ModelInput]) -> float:
    """How many sampled answers are right."""
    sampled = sampler.sample_many(prompts, PARAMS, ordered=True)
    texts = [sampler.decode(each.result().sequences[0], skip_special_tokens=True) for each in sampled]
    return sum(text == str(sum(pair)) for text, pair in zip(texts, SUMS, strict=True)) / len(SUMS)


def main() -> None:
    """Train a teacher on answers, then a student on the teacher's opinion."""
    with tinkex.ServiceClient.local(model="nano") as client:
        school = client.create_lora_training_client("nano", rank=16, seed=0)
        tokenizer, prompts = school.get_tokenizer(), []
        for a, b in SUMS:
            chat = [{"role": "user", "content": f"What is {a} + {b}?"}]
            prompts.append(school.apply_chat_template(chat, add_generation_prompt=True))
        lessons = []
        for prompt, pair in zip(prompts, SUMS, strict=True):
            answer = [*tokenizer.encode(str(sum(pair))), tokenizer.eos_token_id]
            lessons.append(example(prompt, answer, weights=np.ones(len(answer))))
        for _ in range(10):
            school.forward_backward(lessons, "cross_entropy")
            school.optim_step(types.AdamParams(learning_rate=2e-3)).result()
        teacher = school.save_weights_and_get_sampling_client()

        trainer = client.create_lora_training_client("nano", rank=16, seed=1)
        student = trainer.save_weights_and_get_sampling_client()
        print(
            f"right answers: teacher {right(teacher, prompts):.0%}, student {right(student, prompts):.0%}"
        )
        for step in range(12):
            asked = random.Random(step).sample(prompts, 20)
            answers = [student.sample(prompt, 4, PARAMS) for prompt in asked]
            graded = []
            for prompt, sampled in zip(asked, answers, strict=True):
                for reply in sampled.result().sequences:
                    said = types.ModelInput.from_ints(prompt.to_ints() + reply.tokens)
                    graded.append((prompt, reply, teacher.compute_logprobs(said)))
            data, divergence = [], 0.0
            for prompt, reply, grades in graded:
                marks, own = np.array(grades.result()[prompt.length :]), np.array(reply.logprobs)
                divergence += float((own - marks).sum())
                data.append(example(prompt, reply.tokens, logprobs=own, advantages=marks - own))
            trainer.forward_backward(data, "importance_sampling")
            trainer.optim_step(types.AdamParams(learning_rate=6e-4)).result()
            student = trainer.save_weights_and_get_sampling_client()
            print(f"step {step:2}: {divergence / len(data):6.3f} nats an answer away from the teacher")
        print(f"right answers: student {right(student, prompts):.0%}")


if __name__ == "__main__":
    main()
