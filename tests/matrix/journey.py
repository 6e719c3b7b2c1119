"""One journey with whichever official SDK is importable; prints what came back as one JSON document.

A program of its own, with nothing on its path but an SDK and what the SDK needs.  The address and the
key come from TINKER_BASE_URL and TINKER_API_KEY.  What a user would see is the same for every version
and stands at the top of the document; what only some versions can do stands under "version".
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
import tarfile
import urllib.request
import warnings
from importlib.metadata import version
from typing import Any

import tinker
from tinker import types
from tinker.lib.public_interfaces import training_client

RANK = 4
SEED = 7
DATUMS = 8
CHUNK = 3  # so eight datums travel as 3 + 3 + 2
PROMPT = [5, 6, 7, 8, 9]
NO_ARCHIVES = ("0.22.0", "0.22.1")  # there the call itself is broken, whatever the answer
CLOCKS = ("time_s:max",)  # never the same twice
REDUCED_ALIKE = ("sum", "mean", "min", "max")  # by every version


def datum(number: int) -> types.Datum:
    tokens = [(number * 5 + place * 3) % 60 + 2 for place in range(4 + number % 3)]
    targets = [*tokens[1:], (number * 11) % 60 + 2]
    weights = [0.0, *[1.0 + 0.25 * place for place in range(len(tokens) - 1)]]
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )


def policy_datum(number: int, logprobs: list[float]) -> types.Datum:
    plain = datum(number)
    advantages = [(-1.0) ** place * 0.5 for place in range(len(logprobs))]
    return types.Datum(
        model_input=plain.model_input,
        loss_fn_inputs={
            "target_tokens": list(plain.loss_fn_inputs["target_tokens"].data),
            "logprobs": [value + 0.5 for value in logprobs],
            "advantages": advantages,
        },
    )


DATA = [datum(number) for number in range(DATUMS)]


def model_input(tokens: list[int]) -> Any:
    return types.ModelInput.from_ints(tokens)


# ---- settings that older versions lack


def adam(learning_rate: float) -> Any:
    settings = {"learning_rate": learning_rate, "beta1": 0.8, "beta2": 0.9, "eps": 1e-8}
    if "grad_clip_norm" in types.AdamParams.model_fields:
        # Far above any norm here: older versions, which cannot clip, must see the same numbers.
        settings["grad_clip_norm"] = 1e6
    return types.AdamParams(**settings)


def small_chunks(client: Any) -> None:
    """Make a few datums travel in several requests: by a constant before 0.25, by a setting since."""
    if hasattr(training_client, "MAX_CHUNK_LEN"):
        training_client.MAX_CHUNK_LEN = CHUNK
    else:
        holder = client.holder
        holder._client_config = holder._client_config.model_copy(update={"fwdbwd_max_chunk_len": CHUNK})


# ---- readings


def numbers(values: Any) -> list[Any]:
    return [None if value is None else float(value) for value in values]


def reading(output: Any) -> dict[str, Any]:
    """A pass's result."""
    alike = {
        name: value
        for name, value in output.metrics.items()
        if name.count(":") == 1 and name.rpartition(":")[2] in REDUCED_ALIKE
    }
    return {
        "type": output.loss_fn_output_type,
        "names": sorted({name for row in output.loss_fn_outputs for name in row}),
        "logprobs": [numbers(row["logprobs"].data) for row in output.loss_fn_outputs],
        "metric names": sorted(alike),
        "metrics": {name: value for name, value in sorted(alike.items()) if name not in CLOCKS},
    }


def sampled(response: Any) -> dict[str, Any]:
    return {
        "tokens": [list(sequence.tokens) for sequence in response.sequences],
        "logprobs": [numbers(sequence.logprobs) for sequence in response.sequences],
        "stop reasons": [str(sequence.stop_reason) for sequence in response.sequences],
    }


# ---- the stages


def train(client: Any, saw: dict[str, Any]) -> None:
    small_chunks(client)
    saw["chunks"] = len(list(client._chunked_requests_generator(DATA)))
    first = client.forward_backward(DATA, "cross_entropy").result()
    saw["first pass"] = reading(first)
    saw["forward"] = reading(client.forward(DATA[:4], "cross_entropy").result())
    saw["first step"] = dict(client.optim_step(adam(1e-2)).result().metrics or {})
    # Both are under way before either result is asked for.
    passed = client.forward_backward(DATA, "cross_entropy")
    stepped = client.optim_step(adam(5e-3))
    saw["pipelined pass"] = reading(passed.result())
    saw["pipelined step"] = dict(stepped.result().metrics or {})
    old = saw["pipelined pass"]["logprobs"]
    policy = [policy_datum(number, old[number]) for number in range(DATUMS)]
    ratios = client.forward_backward(policy, "importance_sampling")
    clipped = client.forward_backward(
        policy, "ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    )
    saw["importance sampling"] = reading(ratios.result())
    saw["ppo"] = reading(clipped.result())
    saw["policy step"] = dict(client.optim_step(adam(1e-3)).result().metrics or {})
    info = client.get_info()
    saw["info"] = {
        "is_lora": info.is_lora,
        "rank": info.lora_rank,
        "base model": info.model_data.model_name,
        "same model": info.model_id == client.model_id,
    }


def draw(sampler: Any, saw: dict[str, Any]) -> None:
    prompt = model_input(PROMPT)
    greedy = sampler.sample(
        prompt, 1, types.SamplingParams(max_tokens=6, temperature=0.0, stop=[])
    ).result()
    saw["greedy"] = sampled(greedy)
    end = greedy.sequences[0].tokens[2]
    stopping = types.SamplingParams(max_tokens=6, temperature=0.0, stop=[end])
    saw["stopped"] = sampled(sampler.sample(prompt, 1, stopping).result())
    saw["stop token"] = end
    seeded = types.SamplingParams(max_tokens=5, seed=11, temperature=0.8, top_k=20, top_p=0.95, stop=[])
    saw["seeded"] = sampled(sampler.sample(prompt, 2, seeded).result())
    asked = types.SamplingParams(max_tokens=1, temperature=0.0)
    about = sampler.sample(prompt, 1, asked, include_prompt_logprobs=True, topk_prompt_logprobs=2).result()
    saw["prompt logprobs"] = numbers(about.prompt_logprobs)
    saw["prompt top 2"] = [
        None if row is None else [[token, float(value)] for token, value in row]
        for row in about.topk_prompt_logprobs
    ]
    whole = model_input([*PROMPT, *greedy.sequences[0].tokens])
    saw["computed logprobs"] = numbers(sampler.compute_logprobs(whole).result())
    under_way = [sampler.sample(prompt, 1, seeded) for _ in range(4)]
    saw["at once"] = [sampled(future.result()) for future in under_way]


def sample(service: Any, client: Any, saw: dict[str, Any]) -> str:
    unnamed: dict[str, Any] = {}
    named: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    draw(client.save_weights_and_get_sampling_client(), unnamed)
    path = client.save_weights_for_sampler("for-sampling").result().path
    draw(service.create_sampling_client(model_path=path), named)
    draw(service.create_sampling_client(base_model=saw["base model"]), plain)
    saw["unnamed sampler"], saw["named sampler"], saw["base sampler"] = unnamed, named, plain
    return path


def save_and_load(service: Any, client: Any, saw: dict[str, Any]) -> str:
    path = client.save_state("halfway").result().path
    saw["saved"] = path.split("/")[3:]
    saw["at the save"] = reading(client.forward(DATA, "cross_entropy").result())
    saw["after the save"] = step_and_look(client)
    # Before 0.6 a load says nothing of the optimizer, and there is only one way to load.
    load = getattr(client, "load_state_with_optimizer", client.load_state)
    load(path).result()
    saw["at the load"] = reading(client.forward(DATA, "cross_entropy").result())
    saw["after the load"] = step_and_look(client)
    plain = service.create_training_client_from_state(path)
    saw["resumed"] = reading(plain.forward(DATA[:CHUNK], "cross_entropy").result())
    if hasattr(service, "create_training_client_from_state_with_optimizer"):
        whole = service.create_training_client_from_state_with_optimizer(path)
    else:
        whole = service.create_training_client_from_state(path)
        if hasattr(whole, "load_state_with_optimizer"):  # 0.6.0 alone
            whole.load_state_with_optimizer(path).result()
    small_chunks(whole)
    saw["after resuming"] = step_and_look(whole)
    saw["different models"] = len({client.model_id, plain.model_id, whole.model_id})
    return path


def step_and_look(client: Any) -> dict[str, Any]:
    """One more step: equal numbers afterwards mean equal weights and equal optimizer state."""
    client.forward_backward(DATA, "cross_entropy").result()
    client.optim_step(adam(1e-2)).result()
    return reading(client.forward(DATA, "cross_entropy").result())


def checkpoint_facts(checkpoint: Any) -> list[Any]:
    return [checkpoint.checkpoint_id, checkpoint.checkpoint_type, checkpoint.tinker_path.split("/")[3:]]


def look_around(service: Any, client: Any, path: str, saw: dict[str, Any]) -> None:
    rest = service.create_rest_client()
    run = client.model_id
    listed = rest.list_training_runs(limit=100).result()
    (ours,) = [each for each in listed.training_runs if each.training_run_id == run]
    one = rest.get_training_run(run).result()
    saw["run"] = {
        "is_lora": one.is_lora,
        "rank": one.lora_rank,
        "base model": one.base_model,
        "corrupted": one.corrupted,
        "last checkpoint": checkpoint_facts(one.last_checkpoint),
        "last sampler checkpoint": checkpoint_facts(one.last_sampler_checkpoint),
        "listed alike": ours.base_model == one.base_model and ours.lora_rank == one.lora_rank,
        "counted": listed.cursor.total_count >= len(listed.training_runs) > 0,
    }
    saw["run by path"] = rest.get_training_run_by_tinker_path(path).result().training_run_id == run
    before = rest.list_checkpoints(run).result().checkpoints
    saw["checkpoints"] = sorted(checkpoint_facts(each) for each in before)
    saw["version"] |= later_listings(rest, client, path)
    rest.delete_checkpoint_from_tinker_path(path).result()
    after = rest.list_checkpoints(run).result().checkpoints
    saw["checkpoints after deleting"] = sorted(checkpoint_facts(each) for each in after)


def later_listings(rest: Any, client: Any, path: str) -> dict[str, Any]:
    """What some versions cannot ask."""
    saw: dict[str, Any] = {}
    run = client.model_id
    if hasattr(rest, "list_user_checkpoints"):
        paths = [each.tinker_path for each in rest.list_user_checkpoints().result().checkpoints]
        saw["user checkpoints"] = sorted(each.split("/")[3:] for each in paths if each.split("/")[2] == run)
    if hasattr(rest, "list_sessions"):
        session = client.holder.get_session_id()
        saw["session listed"] = session in rest.list_sessions(limit=100).result().sessions
        known = rest.get_session(session).result()
        saw["session"] = [len(known.training_run_ids), len(known.sampler_ids)]
        saw["run in session"] = run in known.training_run_ids
    if hasattr(rest, "get_sampler"):
        samplers = [rest.get_sampler(each).result() for each in known.sampler_ids]
        saw["samplers"] = sorted((each.model_path or "").split("/")[3:] for each in samplers)
    if hasattr(rest, "get_weights_info_by_tinker_path"):
        info = rest.get_weights_info_by_tinker_path(path).result()
        saw["weights info"] = [info.base_model, info.is_lora, info.lora_rank]
    if hasattr(rest, "publish_checkpoint_from_tinker_path"):
        rest.publish_checkpoint_from_tinker_path(path).result()
        public = listed_as(rest, run, path).public
        rest.unpublish_checkpoint_from_tinker_path(path).result()
        saw["public"] = [public, listed_as(rest, run, path).public]
    if hasattr(rest, "set_checkpoint_ttl_from_tinker_path"):
        rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result()
        expires = listed_as(rest, run, path).expires_at is not None
        rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
        saw["expires"] = [expires, listed_as(rest, run, path).expires_at is not None]
    if version("tinker") not in NO_ARCHIVES and hasattr(
        rest, "get_checkpoint_archive_url_from_tinker_path"
    ):
        address = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
        with tarfile.open(fileobj=io.BytesIO(fetch(address))) as archive:
            saw["archive"] = sorted(name.removeprefix("./") for name in archive.getnames())
    return saw


def listed_as(rest: Any, run: str, path: str) -> Any:
    listed = rest.list_checkpoints(run).result().checkpoints
    return next(each for each in listed if each.tinker_path == path)


def fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.read()


def export(client: Any, rest: Any) -> dict[str, int]:
    """The files of an export made for other tools."""
    path = client.save_weights_external("for-others").result().path
    ask = rest.get_external_weights_urls
    whole = len(inspect.signature(ask).parameters) == 1  # 0.28.0 wants the run and the rest apart
    addresses = ask(*([path] if whole else path.removeprefix("tinker://").split("/", 1))).result().urls
    sizes = {name: len(fetch(address)) for name, address in sorted(addresses.items())}
    rest.delete_checkpoint_from_tinker_path(path).result()
    return sizes


def main() -> dict[str, Any]:
    saw: dict[str, Any] = {"version": {"sdk": version("tinker")}}
    service = tinker.ServiceClient(user_metadata={"who": "traveller"})
    offered = [model.model_name for model in service.get_server_capabilities().supported_models]
    saw["offered"] = offered
    saw["base model"] = os.environ.get("JOURNEY_MODEL") or offered[0]
    client = service.create_lora_training_client(
        base_model=saw["base model"], rank=RANK, seed=SEED, user_metadata={"run": "first"}
    )
    train(client, saw)
    sample(service, client, saw)
    path = save_and_load(service, client, saw)
    look_around(service, client, path, saw)
    if hasattr(client, "save_weights_external"):
        saw["version"]["export"] = export(client, service.create_rest_client())
    if hasattr(service, "close"):
        service.close("success", detail="arrived").result()
        saw["version"]["closed"] = True
    return saw


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    document = json.dumps(main())
    sys.stdout.write(document + "\n")
