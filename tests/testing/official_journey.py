"""Everything the official SDK can do, once, against the address given; prints what came back as JSON.

A program of its own: the SDK's background loop and its unsent telemetry die with the process.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from datetime import UTC, datetime, timedelta
from typing import Any

import tinker
from tinker import types

BASE = "Qwen/Qwen3-8B"
DATUMS = 25  # with five to a request, five chunks
PROMPT = types.ModelInput.from_ints([5, 6, 7, 8])


def datum(number: int) -> types.Datum:
    tokens = [number, number + 1, number + 2]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": [t + 1 for t in tokens], "weights": [0.0, 1.0, 1.0]},
    )


def train(client: tinker.TrainingClient, saw: dict[str, Any]) -> str:
    data = [datum(number) for number in range(DATUMS)]
    passed = client.forward_backward(data, "cross_entropy")
    stepped = client.optim_step(types.AdamParams(learning_rate=1e-3))
    first = passed.result()
    saw["outputs"] = len(first.loss_fn_outputs)
    saw["logprobs"] = [output["logprobs"].tolist() for output in first.loss_fn_outputs]
    saw["metrics"] = first.metrics
    saw["optim"] = stepped.result().metrics
    second = client.forward(data[:3], "cross_entropy").result()
    saw["loss after a step"] = second.metrics["loss:sum"]
    saw["loss before a step"] = sum(-sum(row[1:]) for row in saw["logprobs"][:3])
    ratio = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2]),
        loss_fn_inputs={"target_tokens": [2, 3], "logprobs": [-1.0, -1.0], "advantages": [1.0, -1.0]},
    )
    for loss in ("importance_sampling", "ppo", "cispo", "dro"):
        saw[loss] = client.forward_backward([ratio], loss).result().metrics["loss:sum"]
    if importlib.util.find_spec("torch") is not None:
        saw["custom"] = custom_loss(client, data[:2])
    saw["info"] = client.get_info().model_dump(mode="json")
    return client.save_state("ck1", ttl_seconds=7200).result().path


def custom_loss(client: tinker.TrainingClient, data: list[types.Datum]) -> dict[str, float]:
    def loss(batch: Any, logprobs: Any) -> Any:
        total = sum((-each).sum() for each in logprobs)
        return total, {"half:sum": float(total) / 2}

    return dict(client.forward_backward_custom(data, loss).result().metrics)


def sample(client: tinker.SamplingClient, saw: dict[str, Any]) -> None:
    params = types.SamplingParams(max_tokens=4, seed=3, temperature=0.7)
    made = client.sample(PROMPT, 2, params).result()
    saw["sampled"] = [sequence.tokens for sequence in made.sequences]
    saw["sampled logprobs"] = [sequence.logprobs for sequence in made.sequences]
    saw["sequence ids"] = [sequence.sequence_id for sequence in made.sequences]
    whole = types.ModelInput.from_ints([5, 6, 7, 8, *made.sequences[0].tokens])
    saw["prompt logprobs"] = client.compute_logprobs(whole).result()
    saw["last two"] = client.compute_logprobs(PROMPT, prompt_logprobs_last_n=2).result()
    many = [client.sample(PROMPT, 1, types.SamplingParams(max_tokens=2)) for _ in range(20)]
    saw["many"] = [future.result().sequences[0].tokens for future in many]
    full = client.sample(
        PROMPT,
        1,
        types.SamplingParams(max_tokens=3),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=3,
        target_prompt_logprobs=types.TensorData(data=[6, -1, -1, 7, 8, 9], dtype="int64", shape=[3, 2]),
        prompt_alt_tokens_k=2,
    ).result()
    saw["topk prompt"] = full.topk_prompt_logprobs
    saw["topk sample"] = full.sequences[0].topk_logprobs
    saw["targets"] = full.target_prompt_logprobs.tolist()
    saw["alternatives"] = full.prompt_alt_tokens.tokens.shape


def look_around(service: tinker.ServiceClient, path: str, saw: dict[str, Any]) -> None:
    rest = service.create_rest_client()
    run = path.split("/")[2]
    saw["runs"] = rest.list_training_runs().result().model_dump(mode="json")
    saw["run"] = rest.get_training_run_by_tinker_path(path).result().model_dump(mode="json")
    rest.publish_checkpoint_from_tinker_path(path).result()
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    saw["checkpoints"] = rest.list_checkpoints(run).result().model_dump(mode="json")
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    saw["weights info"] = rest.get_weights_info_by_tinker_path(path).result().model_dump(mode="json")
    saw["copied"] = rest.copy_weights(path, "project-2").result()
    rest.delete_checkpoint_from_tinker_path(saw["copied"]).result()
    saw["all checkpoints"] = [one.tinker_path for one in rest.list_user_checkpoints().result().checkpoints]
    saw["sessions"] = rest.list_sessions().result().sessions
    session = saw["sessions"][0]
    rest.assign_session_project(session, "project-1").result()
    saw["session"] = rest.get_session(session).result().model_dump(mode="json")
    found = rest.search_sessions(types.SessionSearchRequest(user_metadata={"who": "tester"})).result()
    saw["found"] = found.model_dump(mode="json")
    saw["sampler"] = rest.get_sampler(saw["session"]["sampler_ids"][0]).result().model_dump(mode="json")
    saw["audit"] = [entry.event for entry in rest.get_audit_log(event_type="checkpoints").result().entries]
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    usage = rest.get_billing_usage(hour, hour + timedelta(hours=1)).result()
    saw["usage"] = sorted({event.event_info.type for event in usage.data})
    saw["storage"] = rest.get_current_checkpoint_storage_usage().result().data[0].checkpoint_count
    external = next(path for path in saw["all checkpoints"] if "/external_weights/" in path)
    saw["urls"] = dict(rest.get_external_weights_urls(external).result().urls)


def main(url: str) -> dict[str, Any]:
    saw: dict[str, Any] = {}
    service = tinker.ServiceClient(base_url=url, user_metadata={"who": "tester"})
    saw["models"] = [one.model_name for one in service.get_server_capabilities().supported_models]
    client = service.create_lora_training_client(base_model=BASE, rank=8)
    path = train(client, saw)
    saw["saved"] = path
    client.load_state_with_optimizer(path).result()
    resumed = service.create_training_client_from_state(path)
    saw["resumed"] = resumed.model_id
    named = client.save_weights_for_sampler("s1").result().path
    client.save_weights_external("e1").result()
    saw["named"] = named
    sample(service.create_sampling_client(model_path=named), saw)
    fresh = client.save_weights_and_get_sampling_client()
    saw["fresh"] = fresh.sample(PROMPT, 1, types.SamplingParams(max_tokens=2)).result().sequences[0].tokens
    look_around(service, path, saw)
    service.close("success", detail="done").result()
    return saw


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(main(sys.argv[1])))
