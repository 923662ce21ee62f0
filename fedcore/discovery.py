"""Find methods and add-ons by file name, and build them from checked hyper-parameters."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedcore import addons, methods
from fedcore.addons.base import Addon
from fedcore.config import ConfigError, Problem, nearest
from fedcore.methods.base import Method
from fedcore.problems import describe

_SHARED_MODULES = ("base", "parts")  # files of the two packages that hold no method or add-on
Part = TypeVar("Part", Method, Addon)


def method_names() -> list[str]:
    """Return the names of all methods."""
    return _names(methods)


def addon_names() -> list[str]:
    """Return the names of all add-ons."""
    return _names(addons)


def method_class(name: str) -> type[Method]:
    """Return the one class a method's file defines."""
    return _class(methods, name, Method)


def addon_class(name: str) -> type[Addon]:
    """Return the one class an add-on's file defines."""
    return _class(addons, name, Addon)


def source_file(part: type[Method] | type[Addon]) -> Path:
    """Return the file a method or add-on is written in."""
    module = importlib.import_module(part.__module__)
    return Path(str(module.__file__))


def with_preset(
    cls: type[Part], settings: Mapping[str, Any], path: tuple[str | int, ...]
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """Return the settings over those of the preset they name, what that preset sets of ``train``, and its name.

    Raises
    ------
    ConfigError
        If there is no such preset.
    """
    own = dict(settings)
    name = own.pop("preset", None)
    if name is None:
        return own, {}, None
    if name not in cls.presets:
        message = f"'{name}' is no preset" + nearest(str(name), cls.presets)
        raise ConfigError([Problem((*path, "preset"), message)])
    preset = dict(cls.presets[name])
    train = dict(preset.pop("train", {}))
    return {**preset, **own}, train, name


def build(cls: type[Part], settings: Mapping[str, Any], path: tuple[str | int, ...]) -> Part:
    """Build a method or add-on from its hyper-parameters.

    Raises
    ------
    ConfigError
        One problem per unknown, missing or invalid hyper-parameter; `path` is where they stand.
    """
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls, include_extras=True)
    problems, values = [], {}
    for name, value in settings.items():
        if name not in fields:
            problems.append(Problem((*path, name), f"unknown key '{name}'" + nearest(name, fields)))
            continue
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hints[name], config=ConfigDict(strict=True, allow_inf_nan=False))
            values[name] = adapter.validate_python(value)
        except ValidationError as error:
            detail = error.errors()[0]
            places: list[int] = [part for part in detail["loc"] if isinstance(part, int)]
            problems.append(Problem((*path, name, *places), describe(detail)))
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in settings:
            problems.append(Problem((*path, name), "missing; it is required"))
    if problems:
        raise ConfigError(problems)
    return cls(**values)


def _names(package: ModuleType) -> list[str]:
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _SHARED_MODULES)


def _class(package: ModuleType, name: str, base: type[Part]) -> type[Part]:
    module = importlib.import_module(f"{package.__name__}.{name}")
    found = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and issubclass(c, base) and c.__module__ == module.__name__
    ]
    if len(found) != 1:
        raise TypeError(f"{module.__file__}: must define exactly one {base.__name__}, found {len(found)}")
    return found[0]
