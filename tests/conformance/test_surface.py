"""Our public surface against the installed official SDK's, by introspection: names, fields, signatures."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import typing
from typing import Annotated, Any, Literal, get_args, get_origin

import pydantic
import pytest
import tinker
import tinker.types

import tinkex
import tinkex.types

from .signatures import accepts, compare_members, shape


def _public(module: Any) -> dict[str, Any]:
    """What a module offers under its own name: no submodules, no `from __future__` leftovers."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


TYPES = _public(tinker.types)
MODELS = sorted(name for name, value in TYPES.items() if _is(value, pydantic.BaseModel))
DATACLASSES = sorted(name for name, value in TYPES.items() if dataclasses.is_dataclass(value))
ENUMS = sorted(name for name, value in TYPES.items() if _is(value, enum.Enum))
ALIASES = sorted(TYPES.keys() - {*MODELS, *DATACLASSES, *ENUMS})
ERRORS = sorted(name for name in tinker.__all__ if _is(getattr(tinker, name), Exception))
# What the client room owns: everything the package exports that is neither type nor error nor version.
CLIENT_NAMES = sorted(
    name
    for name in tinker.__all__
    if name not in TYPES and name not in ERRORS and not name.startswith("__") and name != "types"
)
CLIENT_CLASSES = [name for name in CLIENT_NAMES if isinstance(getattr(tinker, name), type)]


def ours(name: str) -> Any:
    return getattr(tinkex.types, name)


def theirs(name: str) -> Any:
    return TYPES[name]


# ---- names


def test_introspection_found_the_whole_surface():
    assert len(tinker.__all__) == 59
    assert len(TYPES) == 151
    assert len(MODELS) > 100
    assert len(DATACLASSES) > 8
    assert len(ALIASES) > 20
    assert len(CLIENT_CLASSES) > 7


@pytest.mark.parametrize("name", sorted(tinker.__all__))
def test_every_package_name_exists(name: str):
    assert name in tinkex.__all__
    assert getattr(tinkex, name) is not None


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_type_name_exists(name: str):
    assert name in tinkex.types.__all__
    assert ours(name) is not None


@pytest.mark.parametrize("name", sorted(set(tinker.__all__) & set(TYPES)))
def test_package_and_types_export_the_same_object(name: str):
    assert getattr(tinkex, name) is ours(name)


# Module paths that published packages import from (tinker_cookbook, skyrl, tuft, twinkle_kit).
PATHS = [
    ("types", "Datum"),
    ("types.tensor_data", "TensorData"),
    ("types.checkpoint", "ParsedCheckpointTinkerPath"),
    ("types.try_again_response", "TryAgainResponse"),
    ("types.sample_response", "SampleResponse"),
    ("types.forward_backward_output", "ForwardBackwardOutput"),
    ("_version", "__version__"),
    ("lib.public_interfaces", "APIFuture"),
    ("lib.public_interfaces.rest_client", "RestClient"),
    ("lib.public_interfaces.service_client", "ServiceClient"),
    ("lib.public_interfaces.training_client", "TrainingClient"),
    ("lib.internal_client_holder", "InternalClientHolder"),
    ("lib.internal_client_holder", "ClientConnectionPoolType"),
    ("lib.chunked_fwdbwd_helpers", "REDUCE_MAP"),
    ("lib.chunked_fwdbwd_helpers", "combine_fwd_bwd_output_results"),
    ("lib.retry_handler", "RetryConfig"),
    ("proto.tinker_public_pb2", "SampleResponse"),
    ("proto.response_conv", "deserialize_sample_response"),
    ("proto.request_conv", "forward_backward_request_to_proto"),
    ("_exceptions", "TinkerError"),
    ("_types", "NOT_GIVEN"),
]
# The generated HTTP client has nothing to stand for here; only a package that patches it imports it.
REFUSED_PATHS = [("_client", "AsyncTinker"), ("_base_client", "AsyncAPIClient")]


@pytest.mark.parametrize(("path", "name"), REFUSED_PATHS)
def test_module_path_that_says_why_it_is_not_there(path: str, name: str):
    assert hasattr(importlib.import_module(f"tinker.{path}"), name)
    with pytest.raises(ImportError, match=f"tinkex has no .*{name}"):
        getattr(importlib.import_module(f"tinkex.{path}"), name)


@pytest.mark.parametrize(("path", "name"), PATHS)
def test_module_path_is_importable(path: str, name: str):
    assert hasattr(importlib.import_module(f"tinker.{path}"), name)
    assert hasattr(importlib.import_module(f"tinkex.{path}"), name)


# ---- signatures


def _signature_of(source: str) -> inspect.Signature:
    scope: dict[str, Any] = {}
    exec(f"def call{source}: ...", scope)
    return inspect.signature(scope["call"])


@pytest.mark.parametrize(
    ("official", "own", "fits"),
    [
        ("(a, b=1)", "(a, b=1)", True),
        ("(a, b=1)", "(a, b=1, *, timeout=None)", True),
        ("(a, *, b=None)", "(a, b=None)", True),
        ("(a, **k)", "(a, **more)", True),
        ("(a, b=1)", "(*args, **kwargs)", True),
        ("(a, b=1)", "(b=1, a=2)", False),
        ("(a, b=1)", "(a, b=2)", False),
        ("(a, b=1)", "(a, b)", False),
        ("(a)", "(a, b)", False),
        ("(a, b=1)", "(a, *, b=1)", False),
        ("(a)", "(a, /)", False),
        ("(a, *, b=None)", "(a)", False),
        ("(a, *more)", "(a)", False),
    ],
)
def test_the_comparison_of_signatures_can_fail(official: str, own: str, fits: bool):
    assert (accepts(_signature_of(official), _signature_of(own)) == []) is fits


# ---- records


def _own_fields(kind: Any) -> dict[str, tuple[bool, Any]]:
    """Name -> (required, default) of one of our types that stands for a pydantic model."""
    if hasattr(kind, "model_fields"):
        return {
            name: (info.is_required(), None if info.is_required() else info.get_default())
            for name, info in kind.model_fields.items()
        }
    parameters = inspect.signature(kind).parameters.values()
    return {
        p.name: (p.default is p.empty, None if p.default is p.empty else p.default)
        for p in parameters
        if p.kind is not p.VAR_KEYWORD
    }


def _dumped(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value


@pytest.mark.parametrize("name", MODELS)
def test_fields_and_defaults_of_records(name: str):
    official = theirs(name).model_fields
    own = _own_fields(ours(name))
    assert list(own) == list(official)
    for field, info in official.items():
        required, default = own[field]
        assert required == info.is_required(), field
        if not required:
            expected = info.get_default(call_default_factory=True)
            assert _dumped(default) == _dumped(expected), field
            assert isinstance(default, bool) == isinstance(expected, bool), field


@pytest.mark.parametrize("name", MODELS)
def test_members_of_records(name: str):
    assert compare_members(theirs(name), ours(name), pydantic.BaseModel) == []


# Of pydantic's own methods: those about a record's data, not about building models.
_ABOUT_MODELS = {"model_post_init", "model_rebuild", "model_parametrized_name", "model_validate_strings"}
DUCK_METHODS = sorted(
    name
    for name, value in vars(pydantic.BaseModel).items()
    if name.startswith("model_")
    and name not in _ABOUT_MODELS
    and (inspect.isfunction(value) or isinstance(value, classmethod))
)


def test_pydantic_methods_found():
    assert {"model_dump", "model_dump_json", "model_copy", "model_validate"} <= set(DUCK_METHODS)


@pytest.mark.parametrize("name", MODELS)
def test_records_have_pydantics_methods(name: str):
    for method in DUCK_METHODS:
        how, signature = shape(inspect.getattr_static(pydantic.BaseModel, method))
        own_how, own_signature = shape(inspect.getattr_static(ours(name), method))
        assert how == own_how, method
        # Options we have no use for are taken and ignored.
        named = [p for p in signature.parameters.values() if p.name in own_signature.parameters]
        assert accepts(inspect.Signature(named), own_signature) == [], method
        if len(named) < len(signature.parameters):
            assert any(p.kind is p.VAR_KEYWORD for p in own_signature.parameters.values()), method


# ---- dataclasses


@pytest.mark.parametrize("name", DATACLASSES)
def test_fields_and_defaults_of_dataclasses(name: str):
    official, own = dataclasses.fields(theirs(name)), dataclasses.fields(ours(name))
    assert [field.name for field in own] == [field.name for field in official]
    for field, expected in zip(own, official, strict=True):
        assert field.repr == expected.repr, field.name
        if expected.default_factory is not dataclasses.MISSING:
            assert field.default_factory is not dataclasses.MISSING
            assert field.default_factory() == expected.default_factory()
        else:
            assert field.default == expected.default, field.name
    assert accepts(inspect.signature(theirs(name)), inspect.signature(ours(name))) == []


@pytest.mark.parametrize("name", DATACLASSES)
def test_members_of_dataclasses(name: str):
    assert compare_members(theirs(name), ours(name), object) == []


# ---- aliases, enumerations, errors


def _bare(alias: Any) -> Any:
    while get_origin(alias) is Annotated:
        alias = get_args(alias)[0]
    return alias


def _arms(alias: Any) -> set[str]:
    """The class names a union is made of, unions inside it spread out."""
    alias = _bare(alias)
    if get_origin(alias) in (typing.Union, type(int | str)):
        return set().union(*(_arms(arm) for arm in get_args(alias)))
    return {getattr(alias, "__name__", str(alias))}


@pytest.mark.parametrize("name", ALIASES)
def test_aliases_mean_the_same(name: str):
    official, own = _bare(theirs(name)), _bare(ours(name))
    if get_origin(official) is Literal:
        assert get_origin(own) is Literal
        assert get_args(own) == get_args(official)
    elif isinstance(official, type):
        assert own is official
    elif get_origin(official) in (dict, list):
        assert get_origin(own) is get_origin(official)
        mine, expected = get_args(own), get_args(official)
        assert [_arms(arm) for arm in mine] == [_arms(arm) for arm in expected]
    else:
        assert _arms(own) >= _arms(official)


@pytest.mark.parametrize("name", ENUMS)
def test_enumerations_have_the_same_members(name: str):
    official, own = theirs(name), ours(name)
    assert {m.name: m.value for m in own} == {m.name: m.value for m in official}
    assert _is(own, str) == _is(official, str)
    for member in official:
        assert own(member.value).value == member.value


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_the_same_ancestors_and_constructors(name: str):
    official, own = getattr(tinker, name), getattr(tinkex, name)
    ancestors = {kind.__name__ for kind in official.__mro__}
    assert ancestors <= {kind.__name__ for kind in own.__mro__}
    if inspect.isfunction(official.__init__):
        assert accepts(inspect.signature(official), inspect.signature(own)) == []
    assert getattr(own, "status_code", None) == getattr(official, "status_code", None)
    assert set(getattr(official, "__annotations__", {})) <= _attributes(own)


def _attributes(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in (*vars(base), *getattr(base, "__annotations__", {}))}


# ---- clients

# Users get these from another client; their constructors take the SDK's internals.
_NOT_CONSTRUCTED = {"TrainingClient", "SamplingClient", "LossHandle"}


def _fields_of_typed_dict(kind: type) -> set[str] | None:
    return set(kind.__annotations__) if hasattr(kind, "__total__") else None


@pytest.mark.parametrize("name", CLIENT_CLASSES)
def test_client_members(name: str):
    official, own = getattr(tinker, name), getattr(tinkex, name)
    keys = _fields_of_typed_dict(official)
    if keys is not None:
        assert keys <= set(own.__annotations__)
    else:
        assert compare_members(official, own, object) == []


@pytest.mark.parametrize("name", sorted(set(CLIENT_CLASSES) - _NOT_CONSTRUCTED))
def test_client_constructors(name: str):
    official, own = getattr(tinker, name), getattr(tinkex, name)
    if _fields_of_typed_dict(official) is not None:
        assert own() == {}
        return
    public = [p for p in inspect.signature(official).parameters.values() if not p.name.startswith("_")]
    assert accepts(inspect.Signature(public), inspect.signature(own)) == []


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_client_submodules_have_the_same_functions(name: str):
    official, own = getattr(tinker, name), getattr(tinkex, name)
    assert inspect.ismodule(official) == inspect.ismodule(own)
    if inspect.ismodule(official):
        for public, value in _public(official).items():
            if inspect.isfunction(value) and value.__module__ == official.__name__:
                signature = inspect.signature(getattr(own, public))
                assert accepts(inspect.signature(value), signature) == [], public
