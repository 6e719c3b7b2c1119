"""From arguments, environment and a TOML file to a server's options: the first that says something wins."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from .. import models
from ..config import Secret, normalize_url
from ..errors import InvalidArgumentError
from .key_file import KeysError, check_name
from .options import Limits, ModelSpec, ServerOptions, Times
from .places import default_state
from .settings import SETTINGS, closest

__all__ = ["Layer", "Value", "build", "from_environment", "from_file", "lay", "written"]


@dataclass(frozen=True, slots=True)
class Value:
    """A setting's value and where it was said."""

    value: Any
    source: str


Layer: TypeAlias = Mapping[str, Value]


def from_environment(environ: Mapping[str, str]) -> Layer:
    """What TINKEX_* variables (and TINKER_API_KEY) say; empty ones say nothing."""
    found = {}
    for setting in SETTINGS.values():
        text = environ.get(setting.variable, "")
        if text.strip():
            found[setting.name] = Value(setting.read(text, setting.variable), setting.variable)
    return found


def from_file(path: Path) -> Layer:
    """What a TOML file says; a name that is not known is refused with the one that was meant."""
    try:
        with path.open("rb") as file:
            private = os.name != "posix" or not os.fstat(file.fileno()).st_mode & 0o077
            data = tomllib.load(file)
    except OSError as problem:
        raise InvalidArgumentError(f"config file {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidArgumentError(f"config file {path} is not TOML: {problem}") from None
    if "api_key" in data and not private:
        raise InvalidArgumentError(
            f"config file {path} holds a key and may be read by others; run chmod 600 on it, "
            "or put the key into TINKER_API_KEY"
        )
    groups = {setting.group for setting in SETTINGS.values() if setting.group}
    flat: dict[str, Any] = {}
    for name, given in data.items():
        if name in groups and isinstance(given, dict):
            flat |= {f"{name}.{inner}": value for inner, value in given.items()}
        else:
            flat[name] = given
    found = {}
    for name, given in flat.items():
        if name not in SETTINGS:
            raise InvalidArgumentError(f"config file {path}: no setting {name!r}{closest(name, SETTINGS)}")
        found[name] = Value(SETTINGS[name].read(given, f"{path}: {name}"), str(path))
    return found


def lay(layers: Sequence[Layer]) -> Layer:
    """Each setting as the first layer has it that has it."""
    return {name: value for layer in reversed(layers) for name, value in layer.items()}


def build(values: Layer) -> ServerOptions:
    """The options of a server; what cannot work together is refused."""
    plain = {name: each.value for name, each in values.items()}
    limits = {SETTINGS[name].short: plain.pop(name) for name in list(plain) if name.startswith("limits.")}
    times = {SETTINGS[name].short: plain.pop(name) for name in list(plain) if name.startswith("times.")}
    named = plain.pop("models", None)
    if "public_url" in plain:
        plain["public_url"] = _address(values["public_url"])
    if "owner" in plain:
        try:
            check_name("owner", plain["owner"])
        except KeysError as problem:
            raise InvalidArgumentError(f"{values['owner'].source}: {problem}") from None
    if "api_key" in plain and not plain["api_key"].reveal().startswith("tml-"):
        raise InvalidArgumentError(
            f"{values['api_key'].source}: a key must begin with 'tml-', or clients refuse to use it; "
            "without one the server makes its own"
        )
    if ("tls_cert" in plain) != ("tls_key" in plain):
        raise InvalidArgumentError("TLS needs both a certificate (tls_cert) and its key (tls_key)")
    for name in ("tls_cert", "tls_key"):
        if name in plain and not plain[name].is_file():
            raise InvalidArgumentError(f"{values[name].source}: {name}: there is no file {plain[name]}")
    return ServerOptions(
        models=_specs(named),
        state=plain.pop("state", None) or default_state(),
        limits=Limits(**limits),
        times=Times(**times),
        **plain,
    )


def _address(given: Value) -> str:
    url = normalize_url(given.value) if given.value != "local" else ""
    if not url:
        raise InvalidArgumentError(f"{given.source}: public_url: an http:// or https:// address is needed")
    return url


def _specs(named: Sequence[tuple[str, str | None]] | None) -> tuple[ModelSpec, ...]:
    if not named:
        offer = models.known()
        raise InvalidArgumentError(
            "no model was named; say --model NAME=FOLDER"
            + (f", or --model with one of: {', '.join(offer)}" if offer else "")
        )
    specs = [_spec(name, folder) for name, folder in named]
    names = [spec.name for spec in specs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgumentError(f"model {twice!r} was named twice")
    return tuple(specs)


def _spec(name: str, folder: str | None) -> ModelSpec:
    if folder is not None:
        return ModelSpec(name, models.check(models.expanded(folder), name))
    found = models.resolve(name)
    return ModelSpec(found.name if models.is_path(name) else name, found)


def written(values: Layer) -> str:
    """All settings as TOML, each with where it came from; a credential is not written."""
    lines, group = [], ""
    for setting in sorted(SETTINGS.values(), key=lambda each: each.group):  # plain names before tables
        if setting.group != group:
            group = setting.group
            lines += ["", f"[{group}]"]
        given = values.get(setting.name)
        text = _toml(setting.default if given is None else given.value)
        source = f"  # {given.source}" if given is not None else ""
        lines.append(f"{'# ' if text is None else ''}{setting.short} = {text or ''}".rstrip() + source)
    return "\n".join(lines)


def _toml(value: Any) -> str | None:
    if value is None or isinstance(value, Secret):
        return None
    if isinstance(value, tuple):
        return _toml([name if folder is None else f"{name}={folder}" for name, folder in value])
    if isinstance(value, list):
        return f"[{', '.join(json.dumps(each, ensure_ascii=False) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(name)} = {rate}' for name, rate in value.items())}}}"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
