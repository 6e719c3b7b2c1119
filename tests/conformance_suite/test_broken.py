"""Servers that are wrong in one way each: the checks of that row fail, and no others."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tinkex.conformance import order_checks
from tinkex.testing import FakeService, answers_sampling, answers_training, fake_model
from tinkex.testing.exchange import FakeRequest, FakeResponse
from tinkex.testing.handlers import Reply
from tinkex.testing.training_line import TrainingLine

from .running import KEY, MADE_UP, MODEL, check_fake, ended

Mangle = Callable[[str, FakeRequest, FakeResponse], FakeResponse]


class Broken(FakeService):
    """A fake whose answers are changed on their way out."""

    def __init__(self, mangle: Mangle | None = None, **settings: Any) -> None:
        super().__init__(**{"models": [MODEL], "api_keys": [KEY], "hold": 0.5, **settings})
        self.mangle = mangle

    def answer(self, request: FakeRequest) -> Reply:
        answer = super().answer(request)
        if self.mangle is None:
            return answer
        name = request.path.removeprefix("/api/v1/")
        if isinstance(answer, FakeResponse):
            return self.mangle(name, request, answer)
        return self._later(name, request, answer)

    async def _later(self, name: str, request: FakeRequest, answer: Any) -> FakeResponse:
        assert self.mangle is not None
        return self.mangle(name, request, await answer)


def changed(answer: FakeResponse, **fields: Any) -> FakeResponse:
    """A JSON answer with some fields changed."""
    return replace(answer, body=json.dumps({**json.loads(answer.body), **fields}).encode())


# ---- answers that are changed on their way out


def null_settings(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    return changed(answer, proto_compress_fwdbwd=None) if name == "client/config" else answer


def wordless_refusals(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    return replace(answer, body=b"") if 400 <= answer.status < 500 and answer.status != 408 else answer


def endless_refusals(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    return replace(answer, body=b"", chunks=[answer.body]) if answer.status == 400 else answer


def failures_as_errors(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    failed = name == "retrieve_future" and answer.status == 200 and b'"error"' in answer.body
    return replace(answer, status=422) if failed else answer


def null_errors(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    if name == "retrieve_future" and answer.status == 200 and answer.body.startswith(b"{"):
        return changed(answer, error=None)
    return answer


def unknown_is_pending(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    if name == "retrieve_future" and answer.status == 404:
        return replace(answer, status=408, body=b'{"type":"try_again","queue_state":"active"}')
    return answer


def undying_sessions(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    return replace(answer, status=200, body=b"{}") if name == "session_heartbeat" else answer


def fixed_norms(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    if name == "retrieve_future" and b'"passes"' in answer.body:
        return changed(answer, metrics={"grad_norm": 3.077})
    return answer


def steps_again(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    """Every submission of a step gets a ticket of its own."""
    if name == "optim_step" and answer.status == 200:
        ticket = json.loads(answer.body)["request_id"]
        return changed(answer, request_id=f"{next(_numbers)}@{ticket}")
    return answer


_numbers = itertools.count()


def strict_bodies(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    if b"null" in request.body and name in ("create_model", "forward_backward", "forward"):
        return FakeResponse(422, {"content-type": "application/json"}, b'{"detail":"null"}')
    return answer


def closed_bodies(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    if b"from_the_future" in request.body:
        return FakeResponse(422, {"content-type": "application/json"}, b'{"detail":"extra"}')
    return answer


def cursors_go_back(name: str, request: FakeRequest, answer: FakeResponse) -> FakeResponse:
    if name == "retrieve_futures" and answer.status == 200:
        return changed(answer, cursor=json.loads(answer.body)["cursor"] - 10)
    return answer


# ---- a service that thinks otherwise

Patch = Callable[[pytest.MonkeyPatch, FakeService], None]


def nameless_metrics(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    def run(request: Any, steps: int) -> Any:
        made = fake_model.run_pass(request, steps)
        return replace(made, metrics={**made.metrics, "speed": 3.0})

    patch.setattr(answers_training, "run_pass", run)


def mean_losses(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    def run(request: Any, steps: int) -> Any:
        made = fake_model.run_pass(request, steps)
        mean = made.metrics["loss:sum"] / made.metrics["tokens:sum"]
        return replace(made, metrics={**made.metrics, "loss:sum": mean})

    patch.setattr(answers_training, "run_pass", run)


def newest_model(service: FakeService, sampler: Any) -> Any:
    models = service.world.sessions[sampler.session_id].models
    return service.world.models[models[-1]] if models else None


def thawed_samplers(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    """Samplers follow the training."""
    frozen = answers_sampling._sampled

    def sampled(sampler: Any, body: Any, names: list[str]) -> Any:
        model = newest_model(service, sampler)
        return frozen(sampler if model is None else replace(sampler, steps=model.steps), body, names)

    patch.setattr(answers_sampling, "_sampled", sampled)


def samplers_in_the_training_slot(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    """Sampling puts the sampler's weights where the training weights were."""
    clean = answers_sampling._sampled

    def sampled(sampler: Any, body: Any, names: list[str]) -> Any:
        model = newest_model(service, sampler)
        if model is not None:
            model.steps = sampler.steps
        return clean(sampler, body, names)

    patch.setattr(answers_sampling, "_sampled", sampled)


def order_of_arrival(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    def enter(self: TrainingLine, number: int, job: Any) -> None:
        self.next = number + 1
        job(lambda: None)

    patch.setattr(TrainingLine, "enter", enter)
    patch.setattr(TrainingLine, "too_late", lambda self, number: False)


def refused_numbers_are_missed(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    patch.setattr(service, "_use_up", lambda *_: None)


def seeds_are_ignored(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    draws = itertools.count()

    def run(request: Any, steps: int, names: Any) -> Any:
        params = request.sampling_params.model_copy(update={"seed": next(draws)})
        return fake_model.run_sample(request.model_copy(update={"sampling_params": params}), steps, names)

    patch.setattr(answers_sampling, "run_sample", run)


def samples_are_one(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    one = fake_model._sequence

    def sequence(request: Any, prompt: Any, steps: int, seed: int, number: int, name: str) -> Any:
        return one(request, prompt, steps, seed, 0, name)

    patch.setattr(fake_model, "_sequence", sequence)


def stops_are_ignored(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    def run(request: Any, steps: int, names: Any) -> Any:
        params = request.sampling_params.model_copy(update={"stop": None})
        return fake_model.run_sample(request.model_copy(update={"sampling_params": params}), steps, names)

    patch.setattr(answers_sampling, "run_sample", run)


def loads_change_nothing(patch: pytest.MonkeyPatch, service: FakeService) -> None:
    right = answers_training._load

    def load(ask: Any, body: Any, model: Any) -> Any:
        steps = model.steps
        made = right(ask, body, model)
        model.steps = steps
        return made

    patch.setattr(answers_training, "_load", load)


@dataclass(frozen=True)
class Case:
    """One way to be wrong, and the checks that must notice."""

    noticed: set[str]
    mangle: Mangle | None = None
    patch: Patch | None = None
    settings: dict[str, Any] | None = None
    seconds: float = 60.0


CASES = {
    "null in the settings": Case({"wire/0.2/client-config"}, null_settings),
    "results in JSON alone": Case(
        {
            *(f"wire/0.1/{form}" for form in ("protobuf-pass", "forward-only-pass", "json-pass")),
            *("wire/0.1/forward-route", "wire/0.1/sample-forms", "wire/1.7/zstd-pass"),
            *("wire/5.1/small-result", "wire/5.1/large-result", "wire/5.2/cursor"),
        },
        settings={"json_only": True},
    ),
    "sequences without names": Case({"wire/0.3/sequence-ids"}, settings={"sample_sequence_ids": False}),
    "any key will do": Case({"wire/1.3/key"}, settings={"api_keys": None}),
    "refusals without a word": Case({"wire/0.8/refusals", "wire/1.3/key"}, wordless_refusals),
    "refusals without a length": Case({"wire/0.8/refusals"}, endless_refusals),
    "failures as HTTP errors": Case({"wire/0.6/failed-work"}, failures_as_errors),
    "unknown results are pending": Case({"wire/5.1/unknown-future"}, unknown_is_pending, seconds=5.0),
    "heartbeats for ever": Case({"wire/2.1/heartbeat"}, undying_sessions),
    "norms that know no scale": Case(
        {"numerics/6.4/token-sum", "numerics/6.4/accumulation", "numerics/3.3/importance-sampling"},
        fixed_norms,
    ),
    "no nulls in bodies": Case(
        {"wire/9/sdk-0.3.0", "wire/0.1/json-pass", "wire/0.1/forward-route"}, strict_bodies
    ),
    "no unknown fields": Case({"wire/9/unknown-fields"}, closed_bodies),
    "cursors that go back": Case({"wire/5.2/cursor", "wire/5.2/clones"}, cursors_go_back),
    "metrics without a reduction": Case({"wire/0.4/metric-names"}, patch=nameless_metrics),
    "losses that are means": Case(
        {
            *("journey/2.3/forward-backward", "journey/6.4/several-pieces", "wire/6.5/pieces"),
            *("numerics/3.3/loss-sum", "numerics/3.3/importance-sampling"),
        },
        patch=mean_losses,
    ),
    "samplers that follow the training": Case({"journey/2.5/frozen-sampler"}, patch=thawed_samplers),
    "samplers in the training slot": Case(
        {"journey/2.5/frozen-sampler"}, patch=samplers_in_the_training_slot
    ),
    "operations in order of arrival": Case({"wire/6.3/out-of-order"}, patch=order_of_arrival),
    "refused numbers are waited for": Case(
        {"wire/6.3/refused-number"}, patch=refused_numbers_are_missed, seconds=2.0
    ),
    "seeds are ignored": Case({"journey/3.6/seed", "wire/6.2/samples"}, patch=seeds_are_ignored),
    "several samples are one": Case({"journey/3.6/several-samples"}, patch=samples_are_one),
    "stops are ignored": Case({"journey/3.6/stop"}, patch=stops_are_ignored),
    "loads change nothing": Case(
        {"journey/2.4/load-with-optimizer", "journey/2.4/load-weights-alone"}, patch=loads_change_nothing
    ),
    "no list of checkpoints or sessions": Case(
        {"journey/2.9/checkpoints", "journey/2.10/sessions"},
        settings={"without": ["list_user_checkpoints", "list_sessions"]},
    ),
    "checkpoints are not found by their path": Case(
        {"wire/1.1/ids-in-paths", "journey/2.9/publish", "journey/2.9/ttl"},
        settings={"without": ["publish_checkpoint", "set_checkpoint_ttl"]},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_server_that_is_wrong_in_one_way_fails_the_checks_of_that_row(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    case = CASES[name]
    service = Broken(case.mangle, **(case.settings or {}))
    if case.patch is not None:
        case.patch(monkeypatch, service)
    failed = ended(check_fake(service, seconds=case.seconds), "fail")
    assert {check: seen for check, seen in failed.items() if check not in MADE_UP | case.noticed} == {}
    assert case.noticed <= failed.keys()


def test_work_done_twice_is_noticed():
    failed = ended(check_fake(Broken(steps_again), ["twice-is-once"]), "fail")
    assert "became" in failed["wire/0.10/twice-is-once"]


def test_a_refused_number_that_is_waited_for_and_given_up_is_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(order_checks, "_PATIENCE", 0.2)
    service = Broken(skip_after=0.6)
    refused_numbers_are_missed(monkeypatch, service)
    failed = ended(check_fake(service, ["refused-number"]), "fail")
    assert "the one after" in failed["wire/6.3/refused-number"]


def test_a_success_with_an_error_in_it_is_noticed():
    outcomes = check_fake(Broken(null_errors), ["result-shapes", "journey/2.2"])
    assert ended(outcomes, "fail").keys() == {"wire/5.1/result-shapes", "journey/2.2/create-model"}


def test_what_could_not_be_made_is_not_tried_again():
    service = Broken()
    service.faults.add("save_weights", status=403, body={"detail": "not today"})
    outcomes = check_fake(service, ["journey/2.9/", "journey/2.4/save-state", "weights-info"])
    assert "not today" in outcomes["journey/2.4/save-state"].seen
    skipped = ended(outcomes, "skip")
    assert skipped.keys() >= {"journey/2.9/publish", "journey/2.9/ttl", "journey/2.4/weights-info"}
    assert all("not today" in seen for seen in skipped.values())


def test_a_server_that_never_answers_does_not_hold_up_the_rest():
    service = Broken()
    service.faults.add("asample", hang=True)
    outcomes = check_fake(service, ["journey/2.5/sample", "wire/0.3", "wire/2.1/health"], seconds=0.5)
    assert outcomes["journey/2.5/sample"].result == "fail"
    assert outcomes["wire/0.3/sequence-ids"].result == "fail"
    assert outcomes["wire/2.1/health"].result == "pass"


def test_a_server_that_is_gone_fails_every_check():
    service = Broken()
    service.faults.add("*", when=lambda call: call.route != "get_server_capabilities", drop=True)
    outcomes = check_fake(service, ["wire/0.2", "wire/5.1", "wire/2.1"], seconds=2.0)
    assert ended(outcomes, "pass").keys() == {"wire/2.1/capabilities"}
