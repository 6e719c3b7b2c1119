"""Plain requests about order: what is done once, in which order, and how pieces add up."""

from __future__ import annotations

import time
from typing import Any

from ..wire.headers import IDEMPOTENCY_KEY, PROTOBUF
from .checks import Skipped, check, expect, widest
from .examples import ADAM, EXAMPLES, SAMPLE, weighted_loss
from .plain_work import PlainWork, pass_body, rows_of
from .surroundings import Surroundings

_CLOSE = 2e-3
_STEP = {"learning_rate": ADAM.learning_rate, "beta1": ADAM.beta1, "beta2": ADAM.beta2, "eps": ADAM.eps}
_PATIENCE = 5.0
"""Seconds a step may take beyond thrice its usual time before it counts as having waited for another."""
_GROUPS = [EXAMPLES[:2], EXAMPLES[2:3], EXAMPLES[3:]]


# ---- once


@check("wire/0.10/twice-is-once")
def twice_is_once(here: Surroundings) -> str:
    """A pass and a step sent twice, with new idempotency keys, are done once."""
    work = here.work
    session = work.session()
    model, once = work.model(session, 0), work.model(session, 1)
    first = [work.submit_pass(model, 1), work.submit_step(model, 2)]
    again = [work.submit_pass(model, 1), work.submit_step(model, 2)]
    expect(first == again, f"the tickets {first} became {again}")
    work.submit_pass(once, 1)
    work.submit_step(once, 2)
    apart = widest(work.look(once, 3), work.look(model, 3))
    expect(apart <= _CLOSE, f"the model that was told twice differs by {apart:.2g}")
    return f"the same tickets, weights within {apart:.1g}"


@check("wire/0.10/key-is-not-all")
def key_is_not_all(here: Surroundings) -> str:
    """One idempotency key does not join different work."""
    model = here.work.model()
    headers = {IDEMPOTENCY_KEY: f"the same for {model}"}
    tickets = [
        here.work.ticket("/optim_step", {"model_id": model, "adam_params": {}, "seq_id": number}, headers)
        for number in (1, 2)
    ]
    expect(len(set(tickets)) == 2, f"two steps, one ticket {tickets[0]}")
    for ticket in tickets:
        here.work.result(ticket)
    return f"{tickets[0]} and {tickets[1]}"


def _repeats(here: Surroundings, path: str, body: dict[str, Any], change: dict[str, Any]) -> Any:
    """Send the same work thrice, the last time when it has been done; its result."""
    work = here.work
    first = work.ticket(path, body)
    for when in ("at once", "when it was done"):
        again = work.ticket(path, {**body, **change})
        expect(again == first, f"{path} again {when}: {again} instead of {first}")
        result = work.result(first)
    return result


@check("wire/6.2/saves-and-loads")
def saves_and_loads(here: Surroundings) -> str:
    """Saves, loads and models sent twice keep their ticket, whatever else the body says."""
    work = here.work
    session = work.session()
    made = _repeats(here, "/create_model", work.model_request(session), {})
    model = str(made["model_id"])
    expect(model == f"{session}:train:0", f"model 0 of {session} is called {model}")

    def named(number: int, **more: Any) -> dict[str, Any]:
        return {"model_id": model, "seq_id": number, **more}

    saved = _repeats(here, "/save_weights", named(1, path="w"), {})["path"]
    _repeats(here, "/save_weights_for_sampler", named(2, path="s"), {})
    unnamed = named(3, sampling_session_seq_id=3)
    # A retried unnamed save has a new number of its own.
    sampler = _repeats(here, "/save_weights_for_sampler", unnamed, {"sampling_session_seq_id": 4})
    drawn = work.result(work.submit_sample(sampler["sampling_session_id"]))
    expect(len(drawn["sequences"]) == 1, "the unnamed sampler does not sample")
    _repeats(here, "/load_weights", named(4, path=saved, optimizer=True), {})
    runs = here.http.found(f"/sessions/{session}")["training_run_ids"]
    expect(runs == [model], f"the session has the runs {runs}")
    return "a model, two saves, an unnamed save, a load"


@check("wire/6.2/create-by-loading")
def create_by_loading(here: Surroundings) -> str:
    """A model made by loading is known by session and number too."""
    work = here.work
    session = work.session()
    model = work.model(session)
    path = work.done("/save_weights", {"model_id": model, "seq_id": 1, "path": "w"})["path"]
    body = {
        "session_id": session,
        "model_seq_id": 1,
        "path": path,
        "optimizer": True,
        "type": "load_weights",
    }
    answer = here.http.post("/load_weights", body)
    offered = here.http.ok("/client/config", {"sdk_version": "0.36.0"}).get("create_model_via_load_weights")
    if answer.refused and not offered:
        raise Skipped(f"not offered: {answer}")
    expect(answer.status == 200, str(answer))
    first = answer.json["request_id"]
    expect(work.ticket("/load_weights", body) == first, "the same load again got another ticket")
    made = work.result(first).get("model_id")
    expect(made in (None, f"{session}:train:1"), f"the model is called {made}")
    apart = widest(work.look(model, 2), work.look(f"{session}:train:1", 1))
    expect(apart <= _CLOSE, f"the loaded model differs by {apart:.2g}")
    return f"{session}:train:1, weights within {apart:.1g}"


@check("wire/6.2/samples")
def samples(here: Surroundings) -> str:
    """Sampling sessions and samples sent twice are one; a new number is new work; no order is needed."""
    work = here.work
    session = work.session()
    sampler = work.sampler(session, 4)
    expect(work.sampler(session, 4) == sampler, "one number, two sampling sessions")
    expect(work.sampler(session, 9) != sampler, "two numbers, one sampling session")
    request = {**SAMPLE, "num_samples": 2, "sampling_session_id": sampler, "seq_id": 12}
    first = here.http.ok("/asample", request)
    expect(here.http.ok("/asample", request) == first, "the same sample again got another answer")
    result = work.result(first["request_id"])
    expect(here.http.ok("/asample", request) == first, "the same sample when done got another answer")
    expect(work.result(first["request_id"]) == result, "the same ticket has another result")
    other = here.http.ok("/asample", {**request, "seq_id": 3})
    expect(other["request_id"] != first["request_id"], "another number got the same ticket")
    tokens = [each["tokens"] for each in result["sequences"]]
    drawn = [each["tokens"] for each in work.result(other["request_id"])["sequences"]]
    expect(drawn == tokens, f"one seed, but {drawn} after {tokens}")
    return "numbers 4 and 9 of a session, 12 and 3 of a sampler"


# ---- the order


def _rounds(work: PlainWork, model: str, numbers: list[int]) -> dict[int, str]:
    """Three rounds of pass, step and look, submitted in the order of these numbers (1 to 9)."""
    tickets = {}
    for number in numbers:
        if number % 3 == 2:
            tickets[number] = work.submit_step(model, number)
        else:
            tickets[number] = work.submit_pass(model, number, forward_only=number % 3 == 0)
    return tickets


@check("wire/6.3/out-of-order")
def out_of_order(here: Surroundings) -> str:
    """Operations run by their numbers, whatever order they come in."""
    work = here.work
    session = work.session()
    straight = _rounds(work, work.model(session, 0), list(range(1, 10)))
    looks = {number: rows_of(work.result(straight[number])) for number in (3, 6, 9)}
    losses = [weighted_loss(looks[number]) for number in (3, 6, 9)]
    expect(losses == sorted(losses, reverse=True), f"training does not lower the loss: {losses}")
    for place, numbers in enumerate(([2, 3, 4, 5, 6, 7, 8, 9, 1], [9, 8, 7, 6, 5, 4, 3, 2, 1]), 1):
        mixed = _rounds(work, work.model(session, place), numbers)
        for number, expected in looks.items():
            apart = widest(expected, rows_of(work.result(mixed[number])))
            expect(apart <= _CLOSE, f"sent as {numbers}, operation {number} differs by {apart:.2g}")
    return "first last, and backwards, as in order"


@check("wire/6.3/refused-number")
def refused_number(here: Surroundings) -> str:
    """The number of a refused operation is used up: the next one does not wait for it."""
    work = here.work
    session = work.session()
    model, other = work.model(session, 0), work.model(session, 1)
    started = time.monotonic()
    work.result(work.submit_step(other, 1))
    usual = time.monotonic() - started
    headers = {"Content-Type": PROTOBUF}
    answer = here.http.post("/forward_backward", pass_body(model, 1, loss="no such loss"), headers=headers)
    expect(answer.refused, str(answer))
    started = time.monotonic()
    work.result(work.submit_step(model, 2))
    waited = time.monotonic() - started
    expect(
        waited <= 3 * usual + _PATIENCE,
        f"a step took {usual:.1f} s, the one after a refusal {waited:.1f} s",
    )
    # Refusing a later one leaves the earlier ones alone.
    answer = here.http.post("/forward_backward", pass_body(model, 4, loss="no such loss"), headers=headers)
    expect(answer.refused, str(answer))
    last = work.submit_step(model, 5)
    work.result(work.submit_pass(model, 3))
    work.result(last)
    return f"the next one was done after {waited:.1f} s"


@check("wire/6.3/other-models")
def other_models(here: Surroundings) -> str:
    """One model does not wait for another's missing operation."""
    work = here.work
    session = work.session()
    held, free = work.model(session, 0), work.model(session, 1)
    waiting = work.submit_step(held, 2)
    work.result(work.submit_step(free, 1))
    work.submit_pass(held, 1)
    work.result(waiting)
    return f"{free} went on while {held} had a gap"


@check("wire/6.3/gap", slow=True)
def gap(here: Surroundings) -> str:
    """An operation that never comes is given up; when it comes after all it fails and changes nothing."""
    work = here.work
    model = work.model()
    started = time.monotonic()
    work.result(work.submit_step(model, 2))
    waited = time.monotonic() - started
    before = work.look(model, 3)
    answer = here.http.post("/forward_backward", pass_body(model, 1), headers={"Content-Type": PROTOBUF})
    if answer.status == 200:
        late = work.outcome(answer.json["request_id"])
        expect("error" in late, f"the operation that was given up was done: {str(late)[:160]}")
        said = f"failed, category {late.get('category')}"
    else:
        expect(answer.refused, str(answer))
        said = f"HTTP {answer.status}"
    work.result(work.submit_step(model, 4))
    apart = widest(before, work.look(model, 5))
    expect(apart <= _CLOSE, f"the late pass left gradients behind: weights moved by {apart:.2g}")
    return f"given up after {waited:.0f} s; late: {said}"


# ---- how pieces add up


@check("wire/6.5/pieces")
def pieces(here: Surroundings) -> str:
    """The results of pieces reduce to that of the whole, and their gradients add up until the step."""
    work = here.work
    session = work.session()
    whole, cut = work.model(session, 0), work.model(session, 1)
    one = work.result(work.submit_pass(whole, 1))
    parts = [work.result(work.submit_pass(cut, number, group)) for number, group in enumerate(_GROUPS, 1)]
    joined = [row for part in parts for row in rows_of(part)]
    apart = widest(rows_of(one), joined)
    expect(apart <= _CLOSE, f"logprobs of pieces differ by {apart:.2g}")
    names = {tuple(sorted(part["metrics"])) for part in [one, *parts]}
    expect(len(names) == 1, f"not every piece has every metric: {sorted(names)}")
    expected = float(one["metrics"]["loss:sum"])
    total = sum(float(part["metrics"]["loss:sum"]) for part in parts)
    expect(abs(total - expected) <= _CLOSE * abs(expected), f"loss:sum {expected}, pieces {total}")
    work.submit_step(whole, 2)
    work.submit_step(cut, len(_GROUPS) + 1)
    apart = widest(work.look(whole, 3), work.look(cut, len(_GROUPS) + 2))
    expect(apart <= _CLOSE, f"after a step on pieces the weights differ by {apart:.2g}")
    return f"1 + {len(_GROUPS)} passes, loss:sum {expected:.4f} and {total:.4f}"
