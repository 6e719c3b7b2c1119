"""The official SDK, unchanged, on a server of one's own: two variables in the environment are all it takes.

Needs the official package: pip install tinker
"""

from __future__ import annotations

import os

import tinkex

LESSONS = {"What is your name?": "My name is Otto.", "Who made you?": "A loop made me."}


def loop() -> None:
    """Code as anybody would write it for the hosted service; it knows nothing of Tinkex."""
    import tinker
    from tinker import types

    client = tinker.ServiceClient()
    print("models:", [model.model_name for model in client.get_server_capabilities().supported_models])
    trainer = client.create_lora_training_client(base_model="nano", rank=8, seed=0)
    tokenizer = trainer.get_tokenizer()

    data, prompts = [], []
    for question, answer in LESSONS.items():
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        reply = [*tokenizer.encode(answer), tokenizer.eos_token_id]
        tokens = prompt + reply
        weights = [0.0] * (len(prompt) - 1) + [1.0] * len(reply)
        inputs = {"target_tokens": tokens[1:], "weights": weights}
        data.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
        prompts.append(types.ModelInput.from_ints(prompt))

    for step in range(10):
        passed = trainer.forward_backward(data, "cross_entropy")
        stepped = trainer.optim_step(types.AdamParams(learning_rate=2e-3))
        print(f"step {step}: loss {passed.result().metrics['loss:sum']:.3f}")
        stepped.result()

    sampler = trainer.save_weights_and_get_sampling_client()
    for question, prompt in zip(LESSONS, prompts, strict=True):
        params = types.SamplingParams(max_tokens=20, temperature=0.0)
        sampled = sampler.sample(prompt, num_samples=1, sampling_params=params).result().sequences[0]
        print(f"{question} {tokenizer.decode(sampled.tokens, skip_special_tokens=True)}")
    client.close("success").result()


def main() -> None:
    """Start a server, name it in the environment, run the loop."""
    with tinkex.ServiceClient.local(model="nano") as local:
        key = local.config.api_key
        os.environ |= {
            "TINKER_BASE_URL": local.config.base_url,
            "TINKER_API_KEY": key.reveal() if key else "",
        }
        loop()


if __name__ == "__main__":
    main()
