"""Plain requests about results: how they are polled for, one by one and many at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .checks import Failed, Skipped, check, expect
from .examples import CLONE
from .plain_http import Answer
from .surroundings import Surroundings

_STATES = ("active", "paused_capacity", "paused_rate_limit")
_LONG = {"num_samples": 16, "sampling_params": {"max_tokens": 400, "stop": []}}


@check("wire/5.1/unknown-future")
def unknown_future(here: Surroundings) -> str:
    """What was never promised is a 404."""
    for name in ("nothing", "nobody:train:0:1"):
        answer = here.work.poll(name)
        expect(answer.status == 404, f"{name}: {answer}")
    return str(answer)


@check("wire/5.1/result-again")
def result_again(here: Surroundings) -> str:
    """A result is given as often as it is asked for, the same each time."""
    ticket = here.work.submit_pass(here.work.model(), 1)
    first = here.work.polls(ticket, binary=True)[-1]
    again = here.work.poll(ticket, binary=True)
    expect(first.status == again.status == 200, f"first {first}, then {again}")
    expect(first.body == again.body, "the second answer differs from the first")
    return f"{len(first.body)} bytes, twice"


@check("wire/5.1/small-result")
def small_result(here: Surroundings) -> str:
    """A small result is given at once, also to clients that would take its size first."""
    ticket = here.work.submit_pass(here.work.model(), 1, [([3], [4], [1.0])])
    here.work.polls(ticket)
    answer = here.work.poll(ticket, binary=True, allow_metadata_only=True)
    if answer.status == 200 and not answer.binary and answer.json.get("status") == "complete_metadata":
        whole = here.work.poll(ticket, binary=True, allow_metadata_only=False)
        expect(whole.binary, f"after its size, the result was {whole}")
        size = answer.json.get("response_payload_size")
        expect(isinstance(size, int), f"response_payload_size is {size!r}")
        return f"announced first: {size} bytes"
    expect(answer.status == 200 and answer.binary, str(answer))
    return f"{len(answer.body)} bytes at once"


@check("wire/5.1/large-result")
def large_result(here: Surroundings) -> str:
    """A large result is announced only to clients that allow it, and then given whole."""
    tokens = {"chunks": [{"tokens": [3, 4, 5, 6] * 500, "type": "encoded_text"}]}
    sampler = here.work.sampler()
    asked = {
        "sampling_params": {"max_tokens": 1, "stop": []},
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 20,
    }
    body = {"prompt": tokens, "num_samples": 1, "sampling_session_id": sampler, "seq_id": 0}
    answer = here.http.post("/asample", {**body, **asked})
    if answer.refused:
        raise Skipped(f"a prompt of 2000 tokens with 20 alternatives each is refused: {answer}")
    ticket = answer.json["request_id"]
    whole = here.work.polls(ticket, binary=True)[-1]
    expect(whole.status == 200 and whole.binary, str(whole))
    announced = here.work.poll(ticket, binary=True, allow_metadata_only=True)
    if announced.binary:
        return f"{len(whole.body)} bytes, not announced"
    expect(announced.json.get("status") == "complete_metadata", str(announced))
    size = announced.json.get("response_payload_size")
    expect(size == len(whole.body), f"announced {size} bytes, gave {len(whole.body)}")
    fetched = here.work.poll(ticket, binary=True, allow_metadata_only=False)
    expect(fetched.body == whole.body, "after the announcement another result came")
    return f"{size} bytes, announced"


@check("wire/0.6/failed-work")
def failed_work(here: Surroundings) -> str:
    """Work that cannot be done is refused, or ends as 200 with an error and whose fault it was."""
    work = here.work
    session = work.session()
    model = work.model(session)
    named = {"model_id": model}
    cases = {
        "a load of nothing": ("/load_weights", {**named, "seq_id": 1, "path": f"tinker://{model}/weights/none"}),
        "a sampler of nothing": ("/create_sampling_session", {
            "session_id": session, "sampling_session_seq_id": 7,
            "model_path": f"tinker://{model}/sampler_weights/none",
        }),
    }  # fmt: skip
    seen = []
    for name, (path, body) in cases.items():
        answer = here.http.post(path, body)
        if answer.refused:
            seen.append(f"{name}: {answer.status}")
            continue
        expect(answer.status == 200, f"{name}: {answer}")
        if path == "/create_sampling_session":
            body = {
                "prompt": {"chunks": [{"tokens": [5]}]},
                "sampling_params": {"max_tokens": 1},
                "seq_id": 0,
            }
            answer = here.http.post("/asample", {**body, **answer.json})
            if answer.refused:
                seen.append(f"{name}: {answer.status} on use")
                continue
        seen.append(f"{name}: {_failure(here, name, answer.json['request_id'])}")
    return "; ".join(seen)


def _failure(here: Surroundings, name: str, ticket: str) -> str:
    last = here.work.polls(ticket)[-1]
    expect(
        last.status == 200, f"{name}: a failed job must be a 200, not {last}; clients would poll for ever"
    )
    made = last.json
    expect("error" in made, f"{name}: it succeeded: {last}")
    expect(isinstance(made["error"], str) and made["error"], f"{name}: {last}")
    expect(
        made.get("category") in ("user", "server", "unknown"), f"{name}: category {made.get('category')!r}"
    )
    return f"failed, category {made['category']}"


@check("wire/2.5/cancel")
def cancel(here: Surroundings) -> str:
    """A sample that is no longer wanted can be cancelled; polling for it ends all the same."""
    ticket = here.work.submit_sample(here.work.sampler(), 0, **_LONG)
    answer = here.http.post("/cancel_future", {"request_id": ticket})
    if answer.absent:
        raise Skipped(f"not offered: {answer}")
    expect(200 <= answer.status < 300, str(answer))
    made = here.work.outcome(ticket)
    if "error" in made:
        expect(made.get("category") in ("user", "server", "unknown"), f"category {made.get('category')!r}")
        return f"{made['error']} ({made['category']})"
    return "it was done before it could be cancelled"


def _results(here: Surroundings) -> dict[str, tuple[Any, Callable[[Any, str], bool]]]:
    """One result of each kind of work, and what it must be like for its model."""
    work = here.work
    session = work.session()
    made = work.done("/create_model", work.model_request(session))
    model = str(made["model_id"])
    named = {"model_id": model}
    unnamed = {**named, "sampling_session_seq_id": 0, "seq_id": 6}
    load = {**named, "seq_id": 7, "path": f"tinker://{model}/weights/w", "optimizer": True}

    def path(kind: str) -> Callable[[Any, str], bool]:
        return lambda got, run: got["path"] == f"tinker://{run}/{kind}"

    passes = {"loss_fn_output_type", "loss_fn_outputs", "metrics"}
    results: dict[str, tuple[Any, Callable[[Any, str], bool]]] = {
        "CreateModel": (made, lambda got, run: got["model_id"] == f"{session}:train:0"),
        "ForwardBackward": (work.result(work.submit_pass(model, 1)), lambda got, run: passes <= set(got)),
        "Forward": (
            work.result(work.submit_pass(model, 2, forward_only=True)),
            lambda got, run: passes <= set(got),
        ),
        "OptimStep": (
            work.result(work.submit_step(model, 3)),
            lambda got, run: all(isinstance(x, (int, float)) for x in (got.get("metrics") or {}).values()),
        ),
        "SaveWeights": (work.done("/save_weights", {**named, "path": "w", "seq_id": 4}), path("weights/w")),
        "SaveWeightsForSampler": (
            work.done("/save_weights_for_sampler", {**named, "path": "s", "seq_id": 5}),
            path("sampler_weights/s"),
        ),
        "unnamed SaveWeightsForSampler": (
            work.done("/save_weights_for_sampler", unnamed),
            lambda got, run: got.get("path") is None and isinstance(got["sampling_session_id"], str),
        ),
        "LoadWeights": (
            work.done("/load_weights", load),
            lambda got, run: got.get("model_id") in (None, run),
        ),
    }
    sampler = results["unnamed SaveWeightsForSampler"][0]["sampling_session_id"]
    results["Sample"] = (
        work.result(work.submit_sample(sampler)),
        lambda got, run: [len(each["tokens"]) for each in got["sequences"]] == [4],
    )
    results["UnloadModel"] = (work.done("/unload_model", named), lambda got, run: got["model_id"] == run)
    return results


@check("wire/5.1/result-shapes")
def result_shapes(here: Surroundings) -> str:
    """The result of each kind of work has its shape, and is taken for nothing else."""
    results = _results(here)
    model = results["CreateModel"][0]["model_id"]
    for kind, (result, right) in results.items():
        expect(
            "error" not in result, f"{kind}: a success with the key error is taken for a failure: {result}"
        )
        expect(result.get("type") != "try_again", f"{kind}: {result}")
        expect(result.get("status") != "complete_metadata", f"{kind}: {result}")
        expect(right(result, model), f"{kind}: {str(result)[:200]}")
    return f"{len(results)} kinds"


# ---- many at once


def _ask(here: Surroundings, sampler: str, cursor: int = 0, clone: int = 0, *known: str) -> Answer:
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
    body = {"target": target, "prev_cursor": cursor, "retrieved_request_ids": list(known)}
    answer = here.http.post("/retrieve_futures", body)
    # Where there is no such route, a body that makes no sense gets the same answer.
    if answer.absent and here.http.post("/retrieve_futures", {}).absent:
        raise Skipped(f"not offered: {answer}")
    return answer


def _gather(
    here: Surroundings, sampler: str, count: int, clone: int = 0, cursor: int = 0
) -> tuple[dict[str, Any], int]:
    """Events by request id until so many have come, each exactly once, and the cursor behind them."""
    seen: dict[str, Any] = {}
    while True:
        answer = _ask(here, sampler, cursor, clone)
        expect(answer.status == 200, str(answer))
        made = answer.json
        expect(isinstance(made.get("cursor"), int), f"cursor: {answer}")
        expect(made["cursor"] >= cursor, f"the cursor went back from {cursor} to {made['cursor']}")
        cursor = made["cursor"]
        for event in made["completions"]:
            expect(event["request_id"] not in seen, f"{event['request_id']} was told twice")
            seen[event["request_id"]] = event
        if len(seen) >= count:
            return seen, cursor
        if here.http.left() <= 0:
            raise Failed(f"{len(seen)} of {count} completions came")


@check("wire/5.2/cursor")
def cursor_moves(here: Surroundings) -> str:
    """Completions of a sampling session are told once each, and the cursor moves on."""
    work = here.work
    sampler = work.sampler()
    tickets = [work.submit_sample(sampler, number) for number in range(3)]
    seen, cursor = _gather(here, sampler, 3)
    expect(set(seen) == set(tickets), f"{sorted(seen)} for the tickets {tickets}")
    later = work.submit_sample(sampler, 3)
    more, _ = _gather(here, sampler, 1, cursor=cursor)
    expect(set(more) == {later}, f"after cursor {cursor}: {sorted(more)}, not {later}")
    state = more[later]
    expect(state.get("state") == "finished", f"{state}")
    size = state.get("response_payload_uncompressed_size")
    whole = work.poll(later, binary=True, allow_metadata_only=False)
    expect(whole.status == 200 and whole.binary, f"single polls beside it: {whole}")
    expect(size in (None, len(whole.body)), f"said {size} bytes, gave {len(whole.body)}")
    # Named twice, or unknown: a client repeats itself until a poll succeeds.
    named = _ask(here, sampler, 0, 0, later, "nothing")
    expect(named.status == 200, f"with results it may forget: {named}")
    return f"3 + 1 completions, cursor {cursor}"


@check("wire/5.2/clones")
def clones(here: Surroundings) -> str:
    """Cloned samplers hear of their own samples only."""
    work = here.work
    sampler = work.sampler()
    own = work.submit_sample(sampler, 0)
    cloned = {work.submit_sample(sampler, 7 * CLONE + number) for number in (0, 5)}
    far = work.submit_sample(sampler, 999_999_999 * CLONE + 1)
    for clone, expected in ((0, {own}), (7, cloned), (999_999_999, {far})):
        seen, _ = _gather(here, sampler, len(expected), clone)
        expect(set(seen) == expected, f"clone {clone}: {sorted(seen)}, not {sorted(expected)}")
    return "clones 0, 7 and 999999999"


@check("wire/5.2/unknown-session")
def unknown_session(here: Surroundings) -> str:
    """Completions of an unknown sampling session are a 404."""
    answer = _ask(here, "nobody:sample:0")
    expect(answer.status == 404, str(answer))
    return str(answer)


# ---- what a server may take its time for


@check("wire/5.1/pending", slow=True)
def pending(here: Surroundings) -> str:
    """A poll for work that has to wait is held, and then a 408 that says try again."""
    model = here.work.model()
    # Every other number is missing: a server that gives up gaps after a while has to do so several times.
    ticket = [here.work.submit_step(model, number) for number in range(2, 14, 2)][-1]
    asked = time.monotonic()
    answer = here.work.poll(ticket)
    held = time.monotonic() - asked
    if answer.status == 200 and b'"try_again"' not in answer.body:
        raise Skipped(f"all gaps were given up after {held:.0f} s, before a poll ended")
    expect(answer.status in (200, 408), str(answer))
    made = answer.json
    expect(made.get("type") == "try_again" and made.get("request_id") == ticket, str(answer))
    expect(made.get("queue_state") in _STATES, f"queue_state {made.get('queue_state')!r}")
    expect(isinstance(made.get("queue_state_reason", ""), str), f"{answer}")
    expect(
        held >= 0.4, f"answered after {held:.3f} s: official clients ask again at once, thousands of times"
    )
    expect(held <= 45, f"held for {held:.0f} s: official clients give up after 45")
    return f"{answer.status} after {held:.1f} s"


@check("wire/5.2/nothing-new", slow=True)
def nothing_new(here: Surroundings) -> str:
    """With nothing new, the common poll is held and then empty."""
    sampler = here.work.sampler()
    here.work.submit_sample(sampler)
    _, cursor = _gather(here, sampler, 1)
    asked = time.monotonic()
    answer = _ask(here, sampler, cursor)
    held = time.monotonic() - asked
    expect(answer.status == 200 and answer.json["completions"] == [], str(answer))
    expect(answer.json["cursor"] >= cursor, f"the cursor went back: {answer}")
    expect(held >= 0.4, f"answered after {held:.3f} s: official clients ask again at once")
    return f"empty after {held:.1f} s"
