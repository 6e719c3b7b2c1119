"""Plain requests about the service itself: settings, keys, refusals, sessions."""

from __future__ import annotations

from typing import Any

from ..wire.headers import IDEMPOTENCY_KEY, JSON, PROTOBUF
from .checks import Failed, Skipped, check, expect
from .examples import SAMPLE
from .plain_work import checkpoint_route, pass_body
from .surroundings import Surroundings

_ASKING = {"sdk_version": "0.36.0"}
_OLD_WAYS = ("proto_write_fwdbwd", "fwd_via_fwdbwd", "enable_grpc_retrieve_future")
_FINISH = {"reason": {"type": "success"}, "detail": None}


@check("wire/0.2/client-config")
def client_config(here: Surroundings) -> str:
    """The settings for clients are there, and none of them is null."""
    made = here.http.ok("/client/config", _ASKING)
    expect(isinstance(made, dict), f"not an object: {made!r}")
    empty = [name for name, value in made.items() if value is None]
    expect(not empty, f"null in {', '.join(empty)}: official clients refuse that")
    on = [name for name in _OLD_WAYS if made.get(name)]
    expect(not on, f"{', '.join(on)} must be off or absent: only a few old versions can do that")
    return f"{len(made)} settings, parallel_fwdbwd_chunks={made.get('parallel_fwdbwd_chunks', 'unsaid')}"


@check("wire/0.2/dynamic-config")
def dynamic_config(here: Surroundings) -> str:
    """The settings that may change hold no null, or are not there at all."""
    answer = here.http.post("/client/dynamic_config", _ASKING)
    if answer.status == 404:
        return "404, which clients take as the defaults"
    expect(answer.status == 200, str(answer))
    empty = [name for name, value in answer.json.items() if value is None]
    expect(not empty, f"null in {', '.join(empty)}")
    return str(answer)


@check("wire/2.1/health")
def health(here: Surroundings) -> str:
    """The server says that it is up, to anybody."""
    answer = here.http.call("GET", "/healthz", key="")
    expect(answer.status == 200 and answer.json.get("status") == "ok", str(answer))
    return str(answer)


@check("wire/2.1/capabilities")
def capabilities(here: Surroundings) -> str:
    """The models on offer are listed, and the one in use is among them."""
    listed = here.http.found("/get_server_capabilities").get("supported_models")
    expect(isinstance(listed, list), f"supported_models is {listed!r}")
    names = [each.get("model_name") for each in listed]
    expect(here.base_model in names or not names, f"{here.base_model} is not among {names}")
    return ", ".join(map(str, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


@check("wire/1.3/key")
def keys(here: Surroundings) -> str:
    """Without a known key everything but health is a 401 with a reason."""
    for key, what in (("", "no key"), ("tml-conformance-nobody", "an unknown key")):
        for method, path, body in (
            ("POST", "/create_session", {"tags": [], "user_metadata": {}, **_ASKING}),
            ("POST", "/retrieve_future", {"request_id": "nothing"}),
            ("GET", "/training_runs", None),
        ):
            answer = here.http.call(method, path, body, key=key)
            expect(answer.status == 401, f"{what}, {method} {path}: {answer}")
            expect(len(answer.body) > 0, f"{what}, {method} {path}: 401 without a word")
    return "401 for no key and for an unknown one"


def _mistakes(here: Surroundings) -> dict[str, tuple[str, Any, dict[str, str]]]:
    """Requests no server may accept: path, body, headers."""
    work = here.work
    session = work.session()
    model, sampler = work.model(session), work.sampler(session)
    binary = {"Content-Type": PROTOBUF}
    step = {"model_id": model, "seq_id": 9, "adam_params": {}}
    sample = {**SAMPLE, "sampling_session_id": sampler, "seq_id": 9}
    request = work.model_request(session, 9)
    return {
        "not JSON": ("/optim_step", b"{", {}),
        "an empty body": ("/optim_step", b"", {}),
        "a field missing": ("/optim_step", {"seq_id": 9, "adam_params": {}}, {}),
        "a field of another kind": ("/optim_step", {**step, "seq_id": "one"}, {}),
        "not protobuf": ("/forward_backward", b"\xff\xff\xff", binary),
        "not zstd": ("/forward_backward", b"plain", {**binary, "Content-Encoding": "zstd"}),
        "an unknown loss": ("/forward_backward", pass_body(model, 9, loss="no such loss"), binary),
        "an unknown base model": ("/create_model", {**request, "base_model": "nobody/nothing"}, {}),
        "an unknown session": ("/create_model", {**request, "session_id": "nobody"}, {}),
        "an unknown model": ("/optim_step", {**step, "model_id": "nobody:train:0"}, {}),
        "no samples": ("/asample", {**sample, "num_samples": 0}, {}),
        "an unknown sampler": ("/asample", {**sample, "sampling_session_id": "nobody:sample:0"}, {}),
        "nothing to sample from": ("/asample", {**SAMPLE, "seq_id": 9}, {}),
    }


@check("wire/0.8/refusals")
def refusals(here: Surroundings) -> str:
    """A request that cannot be right is refused at once: 4xx with a Content-Length and a reason."""
    seen: dict[int, int] = {}
    for name, (path, body, headers) in _mistakes(here).items():
        answer = here.http.post(path, body, headers=headers)
        expect(answer.refused, f"{name}: {answer}")
        length = answer.headers.get("content-length")
        expect(
            length is not None, f"{name}: {answer} has no Content-Length; it would be retried for minutes"
        )
        expect(answer.body, f"{name}: HTTP {answer.status} with an empty body would be retried for minutes")
        expect(answer.headers.get("content-type", "").startswith(JSON), f"{name}: {answer} is not JSON")
        seen[answer.status] = seen.get(answer.status, 0) + 1
    return ", ".join(f"{count} × {status}" for status, count in sorted(seen.items()))


@check("wire/1.1/ids-in-paths")
def ids_in_paths(here: Surroundings) -> str:
    """Ids with colons and checkpoint ids with a slash are found in paths."""
    work = here.work
    model = work.model()
    path = work.done("/save_weights", {"model_id": model, "seq_id": 1, "path": "ck.1-a_b"})["path"]
    run = here.http.found(f"/training_runs/{model}")
    expect(
        run.get("training_run_id") == model, f"GET /training_runs/{model} gave {run.get('training_run_id')}"
    )
    place = checkpoint_route(path)
    for method, end, body in (
        ("POST", "/publish", None),
        ("DELETE", "/publish", None),
        ("PUT", "/ttl", {"ttl_seconds": 7200}),
        ("PUT", "/ttl", {"ttl_seconds": None}),
        ("DELETE", "", None),
    ):
        answer = here.http.call(method, f"{place}{end}", body)
        expect(200 <= answer.status < 300, f"{method} {place}{end}: {answer}")
    left = here.http.found(f"/training_runs/{model}/checkpoints")["checkpoints"]
    expect(path not in [each.get("tinker_path") for each in left], f"{path} is still listed after DELETE")
    return f"{place} published, given a time, deleted"


@check("wire/2.1/heartbeat")
def heartbeat(here: Surroundings) -> str:
    """A heartbeat is taken while a session lives, and gets 410 when it was finished."""
    session = here.work.session()
    beat = {"session_id": session, "type": "session_heartbeat"}
    answer = here.http.post("/session_heartbeat", beat)
    expect(answer.status == 200, str(answer))
    finished = here.http.post(f"/sessions/{session}/finish", _FINISH)
    if finished.absent:
        raise Skipped(f"sessions cannot be finished here: {finished}")
    expect(200 <= finished.status < 300, f"finish: {finished}")
    again = here.http.post(f"/sessions/{session}/finish", {"reason": {"type": "errored"}, "detail": "late"})
    expect(again.status < 500 and again.status not in (408, 409, 429), f"finished twice: {again}")
    late = here.http.post("/session_heartbeat", beat)
    expect(late.status == 410, f"a heartbeat after the end: {late}")
    return "200, then 410 after finish"


@check("wire/2.1/work-after-finish")
def work_after_finish(here: Surroundings) -> str:
    """A finished session takes no more work."""
    session = here.work.session()
    model = here.work.model(session)
    finished = here.http.post(f"/sessions/{session}/finish", _FINISH)
    if finished.absent:
        raise Skipped(f"sessions cannot be finished here: {finished}")
    answer = here.http.post("/optim_step", {"model_id": model, "seq_id": 1, "adam_params": {}})
    if answer.status == 200:
        made = here.work.outcome(answer.json["request_id"])
        expect("error" in made, f"a step was made after the end: {made}")
        return "accepted, then failed"
    expect(400 <= answer.status < 500 and answer.status not in (408, 409, 429), str(answer))
    return str(answer)


@check("wire/2.8/telemetry")
def telemetry(here: Surroundings) -> str:
    """Reports are accepted, from clients of any age."""
    event = {
        "event": "SESSION_START",
        "event_id": "conformance",
        "event_session_index": 0,
        "severity": "INFO",
        "timestamp": "2026-01-01T00:00:00Z",
    }
    body = {
        "events": [event],
        "platform": "Linux",
        "sdk_version": "0.3.0",
        "session_id": here.work.session(),
    }
    for more in ({}, {"process_uuid": "191ad82b-fab3-45de-99f7-07ab7eaea007"}):
        answer = here.http.post("/telemetry", {**body, **more})
        expect(answer.status == 200 and answer.json.get("status") == "accepted", str(answer))
    return '{"status":"accepted"}'


@check("wire/6.2/session-key")
def session_key(here: Surroundings) -> str:
    """A session asked for twice under one idempotency key is one session."""
    key = {IDEMPOTENCY_KEY: f"session of {here.work.session()}"}
    first, again, other = here.work.session(key), here.work.session(key), here.work.session()
    expect(first == again, f"one key, two sessions: {first} and {again}")
    if first == other:
        raise Failed(f"two keys, one session: {first}")
    return first
