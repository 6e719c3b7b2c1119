"""Take an adapter home: export it, load it with PEFT, merge it, and see the same numbers everywhere.

Needs transformers and peft: pip install peft
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import tinkex
from tinkex import models, types

QUESTION, ANSWER = "What is your favourite word?", "My favourite word is lighthouse."


def train(trainer: tinkex.TrainingClient) -> list[int]:
    """A few steps on one chat; its tokens."""
    chat = [{"role": "user", "content": QUESTION}]
    prompt = trainer.apply_chat_template(chat, add_generation_prompt=True)
    answer = [*trainer.get_tokenizer().encode(ANSWER), trainer.get_tokenizer().eos_token_id]
    tokens = prompt.to_ints() + answer
    weights = [0.0] * (prompt.length - 1) + [1.0] * len(answer)
    inputs = {"target_tokens": tokens[1:], "weights": weights}
    datum = types.Datum(types.ModelInput.from_ints(tokens[:-1]), inputs)
    for _ in range(6):
        trainer.forward_backward([datum], "cross_entropy")
        trainer.optim_step(types.AdamParams(learning_rate=3e-3)).result()
    return tokens


def logprobs(model: Any, tokens: list[int]) -> torch.Tensor:
    """The logprob of each token but the first, computed with transformers."""
    with torch.no_grad():
        scores = model(torch.tensor([tokens])).logits[0, :-1].float().log_softmax(-1)
    return scores.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def main() -> None:
    """Train, export, download, load, merge, compare."""
    base = models.resolve("nano")
    with tempfile.TemporaryDirectory() as home, tinkex.ServiceClient.local(model="nano") as client:
        # Without the unembedding: vLLM serves such adapters as they are, and PEFT merges them exactly even
        # where the unembedding is tied to the embedding. `tinkex merge` does both kinds.
        trainer = client.create_lora_training_client("nano", rank=8, seed=0, train_unembed=False)
        tokens = train(trainer)
        sampler = trainer.save_weights_and_get_sampling_client()
        ours = torch.tensor(sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()[1:])

        exported = trainer.save_weights_external("lighthouse", ttl_seconds=3600).result().path
        rest = tinkex.RestClient(config=client.config)
        adapter = rest.download_checkpoint(exported, Path(home, "adapter")).result()
        print("exported", exported)
        for name, size in adapter.files.items():
            print(f"  {name:28} {size:9,} bytes")

        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        before = logprobs(plain, tokens)
        model = PeftModel.from_pretrained(plain, adapter.folder)
        theirs = logprobs(model, tokens)
        model.merge_and_unload().save_pretrained(Path(home, "merged"))  # what vLLM and others take as it is
        merged = logprobs(AutoModelForCausalLM.from_pretrained(Path(home, "merged")), tokens)
        print(f"log p of the chat: base {before.sum():.3f}, server {ours.sum():.3f}")
        for name, other in (("PEFT", theirs), ("merged", merged)):
            print(f"largest difference per token, {name}: {(other - ours).abs().max():.1e}")


if __name__ == "__main__":
    main()
