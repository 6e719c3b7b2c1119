"""Three ways to sample: a story word by word, many prompts at once, and how likely a text is."""

from __future__ import annotations

import time

import tinkex
from tinkex import types


def prompt_of(sampler: tinkex.SamplingClient, text: str) -> types.ModelInput:
    """What a user says, as the model reads it."""
    return sampler.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)


def stream(sampler: tinkex.SamplingClient) -> None:
    """Print a story as it is made."""
    params = types.SamplingParams(max_tokens=80, temperature=0.7, seed=3)
    with sampler.sample_stream(prompt_of(sampler, "Tell me a story about a cat."), params) as words:
        tokens: list[int] = []
        for new in words:
            shown = len(sampler.decode(tokens))
            tokens += new.tokens
            print(sampler.decode(tokens)[shown:], end="", flush=True)
    print(f"\n({len(tokens)} tokens, stopped by {new.stop_reason})\n")


def many(sampler: tinkex.SamplingClient) -> None:
    """Ask a hundred sums; at most 32 are under way at a time, results come as they are ready."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    prompts = (prompt_of(sampler, f"What is {a} + {b}?") for a, b in pairs)
    params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=1)
    started, tokens, right = time.perf_counter(), 0, 0
    with sampler.sample_many(prompts, params, num_samples=4, concurrency=32) as results:
        for sampled in results:
            for sequence in sampled.result().sequences:
                said = sampler.decode(sequence, skip_special_tokens=True).strip()
                right += said == str(sum(pairs[sampled.index]))
                tokens += len(sequence.tokens)
    seconds = time.perf_counter() - started
    print(f"400 answers: {right} right; {tokens / seconds:.0f} tokens/s\n")


def likely(sampler: tinkex.SamplingClient) -> None:
    """Compare answers by their logprobs, without sampling anything."""
    prompt = prompt_of(sampler, "What is the capital of France?")
    for answer in ("The capital of France is Paris.", "The capital of France is Rome."):
        tokens = sampler.get_tokenizer().encode(answer)
        logprobs = sampler.compute_logprobs(types.ModelInput.from_ints(prompt.to_ints() + tokens)).result()
        total = sum(each or 0.0 for each in logprobs[prompt.length :])  # only the first token has none
        print(f"log p = {total:7.2f}  {answer}")


def main() -> None:
    """Run all three on the base model."""
    with tinkex.ServiceClient.local(model="nano") as client:
        sampler = client.create_sampling_client(base_model="nano")
        stream(sampler)
        many(sampler)
        likely(sampler)


if __name__ == "__main__":
    main()
