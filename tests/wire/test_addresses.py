"""Names that travel: `tinker://` paths, ids, and the paths of addresses."""

from __future__ import annotations

from typing import Any, get_args
from urllib.parse import unquote

import pytest
import tinker.types
from hypothesis import given
from hypothesis import strategies as st

from tinkex.errors import InvalidArgumentError
from tinkex.types import CheckpointType, ParsedCheckpointTinkerPath
from tinkex.wire import paths, routes

from ..strategies import examples

NAMES = st.from_regex(r"\A[A-Za-z0-9_.:=@+,~-]{1,40}\Z").filter(lambda name: name not in (".", ".."))
RUNS = st.from_regex(r"\A[A-Za-z0-9-]{1,20}(:train:[0-9]{1,6})?\Z")
KINDS = st.sampled_from(get_args(CheckpointType))


@examples(100)
@given(run=RUNS, kind=KINDS, name=NAMES)
def test_a_path_taken_apart_is_what_it_was_built_from(run: str, kind: CheckpointType, name: str):
    path = paths.tinker_path(run, kind, name)
    parsed = paths.parse(path)
    assert (parsed.training_run_id, parsed.checkpoint_type, parsed.tinker_path) == (run, kind, path)
    assert parsed.checkpoint_id.split("/")[1] == name
    assert f"tinker://{run}/{parsed.checkpoint_id}" == path
    official = tinker.types.ParsedCheckpointTinkerPath.from_tinker_path(path)
    assert parsed.model_dump() == official.model_dump()


BAD_PATHS = [
    "",
    "tinker:",
    "tinker://",
    "tinker://run",
    "tinker://run/weights",
    "tinker://run/weights/",
    "tinker:///weights/a",
    "tinker://run/weight/a",
    "tinker://run/weights/a/b",
    "tinker://run//weights/a",
    "Tinker://run/weights/a",
    "https://run/weights/a",
    "run/weights/a",
]


@pytest.mark.parametrize("path", [*BAD_PATHS, None, 3, b"tinker://run/weights/a"])
def test_a_bad_path_is_refused(path: Any):
    with pytest.raises(InvalidArgumentError, match="Invalid tinker path"):
        ParsedCheckpointTinkerPath.from_tinker_path(path)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "a\n", "ü", "x" * 256, None, 7, "a\\b", "a%2f"]
)
def test_a_bad_checkpoint_name_is_refused(name: Any):
    with pytest.raises(InvalidArgumentError, match="checkpoint name"):
        paths.tinker_path("run", "training", name)


@pytest.mark.parametrize("run", ["", "a/b"])
def test_a_bad_run_is_refused(run: str):
    with pytest.raises(InvalidArgumentError, match="training run id"):
        paths.tinker_path(run, "training", "a")


@pytest.mark.parametrize(
    ("path", "fine"),
    [
        ("tinker://x", True),
        ("tinker://run/sampler_weights/a", True),
        ("x", False),
        ("", False),
        (None, False),
    ],
)
def test_a_model_path_needs_only_the_scheme(path: Any, fine: bool):
    if fine:
        assert paths.check_model_path(path) == path
    else:
        with pytest.raises(InvalidArgumentError, match="model_path"):
            paths.check_model_path(path)


@examples(50)
@given(session=RUNS, number=st.integers(0, 10**6), seq=st.integers(0, 10**12))
def test_ids_say_what_they_belong_to(session: str, number: int, seq: int):
    assert paths.model_id(session, number) == f"{session}:train:{number}"
    sampling = paths.sampling_session_id(session, number)
    assert paths.sample_id(sampling, seq) == f"{session}:sample:{number}:{seq}"
    assert paths.clone_of(seq) * paths.CLONE_BLOCK <= seq < (paths.clone_of(seq) + 1) * paths.CLONE_BLOCK


# ---- addresses

SEGMENTS = st.text(min_size=1, max_size=12).filter(
    lambda text: not text.startswith("/") and not {".", ".."} & set(text.split("/"))
)
PARAMETERS = sorted({name for name, route in routes.ROUTES.items() if "{" in route.path})


def _parameters(route: routes.Route) -> dict[str, bool]:
    """The names of a path's parameters, and whether each may hold slashes."""
    marks = [part.split("}")[0] for part in route.path.split("{")[1:]]
    return {mark.removesuffix(":path"): mark.endswith(":path") for mark in marks}


def test_some_routes_have_parameters():
    assert "delete_checkpoint" in PARAMETERS
    assert _parameters(routes.route("delete_checkpoint")) == {
        "training_run_id": False,
        "checkpoint_id": True,
    }


@pytest.mark.parametrize("name", PARAMETERS)
@examples(40)
@given(data=st.data())
def test_an_address_keeps_every_character_of_its_parameters(name: str, data: st.DataObject):
    route = routes.route(name)
    slashes = _parameters(route)
    values = {parameter: data.draw(SEGMENTS, parameter) for parameter in slashes}
    path = route.url_path(**values)
    assert path.startswith("/api/v1/")
    assert path.isascii()
    assert not set(path) & set('?#{} \\\r\n"<>')
    pattern, filled = route.full_path.split("/"), path.split("/")
    expected = []
    for part in pattern:
        parameter = part.strip("{}").removesuffix(":path")
        if part.startswith("{"):
            expected += values[parameter].split("/") if slashes[parameter] else [values[parameter]]
        else:
            expected.append(part)
    assert [unquote(part) for part in filled] == expected


@pytest.mark.parametrize("value", ["", "..", "../x", "a/../b", "a/..", "/etc", None, 3, b"x"])
@pytest.mark.parametrize("parameter", ["training_run_id", "checkpoint_id"])
def test_a_parameter_cannot_leave_its_place(parameter: str, value: Any):
    values = {"training_run_id": "run", "checkpoint_id": "weights/a", parameter: value}
    with pytest.raises(InvalidArgumentError, match=parameter):
        routes.route("delete_checkpoint").url_path(**values)


@pytest.mark.parametrize("value", [".", "./a", "a/./b", "a/."])
def test_a_dot_segment_cannot_be_sent(value: str):
    # HTTP libraries drop `.` segments, so the server would see another path.
    with pytest.raises(InvalidArgumentError, match="checkpoint_id"):
        routes.route("delete_checkpoint").url_path(training_run_id="run", checkpoint_id=value)


def test_a_segment_parameter_hides_its_slashes():
    path = routes.route("get_session").url_path(session_id="a/b?c#d%e")
    assert path == "/api/v1/sessions/a%2Fb%3Fc%23d%25e"


def test_colons_stay_readable():
    path = routes.route("delete_checkpoint").url_path(
        training_run_id="s:train:0", checkpoint_id="sampler_weights/step=1"
    )
    assert path == "/api/v1/training_runs/s:train:0/checkpoints/sampler_weights/step=1"


def test_a_missing_parameter_is_named():
    with pytest.raises(InvalidArgumentError, match="checkpoint_id:path"):
        routes.route("delete_checkpoint").url_path(training_run_id="run")
