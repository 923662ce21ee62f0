"""Mistakes in parameters, as one line each: where, what was found, what is valid."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel

Path = tuple[str | int, ...]

_DISCRIMINATORS = ("name", "scheme", "generator")  # the keys by which a section says which of several it is


@dataclass(frozen=True)
class Problem:
    """One mistake: where it is (keys from the root) and what would be right."""

    path: Path
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path)) or 'params'}: {self.message}"


class ConfigError(ValueError):
    """The parameters are wrong; ``problems`` lists every mistake found."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return "; did you mean 'x'? Valid: ..." for a word that is none of `valid`."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    return f"{hint} Valid: {', '.join(names)}"


def explain(section: type[BaseModel], path: Path, detail: Any) -> Problem:
    """Say what one of pydantic's errors means, in a line for people; `path` is where the section stands."""
    location = tuple(detail["loc"])
    kind, context, value = detail["type"], detail.get("ctx", {}), detail.get("input")
    owner, location = _resolve(section, location)
    if kind == "extra_forbidden":
        message = f"unknown key '{location[-1]}'" + nearest(str(location[-1]), owner.model_fields if owner else ())
    elif kind == "missing":
        message = "missing; it is required"
    elif kind == "union_tag_invalid":
        key = context["discriminator"].strip("'")
        location = (*location, key)
        message = f"'{context['tag']}' does not exist" + nearest(context["tag"], _literals(context["expected_tags"]))
    elif kind == "union_tag_not_found":
        location = (*location, context["discriminator"].strip("'"))
        message = "missing; it is required"
    elif kind == "string_pattern_mismatch":
        message = f"{value!r}: use lower-case letters, digits, '-' and '_' only"
    elif kind == "value_error":
        message = str(context["error"])
    else:
        message = describe(detail)
    if location and location[-1] == "[key]":
        location = location[:-1]
    return Problem((*path, *location), message)


def describe(detail: Any) -> str:
    """Say what is wrong with a value that pydantic refused."""
    value = detail.get("input")
    if detail["type"] == "literal_error":
        return f"{value!r} is not valid" + nearest(str(value), _literals(detail["ctx"]["expected"]))
    text = detail["msg"].replace("valid tuple", "list")  # which is what YAML calls it
    return f"{text[0].lower()}{text[1:]}, got {value!r}"


def _literals(expected: str) -> list[str]:
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]


def _resolve(section: type[BaseModel], location: Path) -> tuple[type[BaseModel] | None, Path]:
    """Follow a location through the models; drop the union tags pydantic inserts, return the innermost model."""
    owner: Any = section
    kept: list[str | int] = []
    for part in location:
        members = _members(owner)
        tagged = next((m for m in members if _tag(m, part)), None)
        if tagged is not None and len(members) > 1:
            owner = tagged
            continue
        kept.append(part)
        model = members[0] if len(members) == 1 else None
        field = model.model_fields.get(str(part)) if model is not None else None
        if field is not None:
            owner = field.annotation
        elif part == location[-1]:
            break
        else:
            arguments = typing.get_args(owner)
            owner = arguments[-1] if arguments else None
    members = _members(owner)
    return (members[0] if len(members) == 1 else None), tuple(kept)


def _members(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, Annotated):
        return [m for a in typing.get_args(annotation) for m in _members(a)]
    return []


def _tag(model: type[BaseModel], part: str | int) -> bool:
    return any(part in typing.get_args(f.annotation) for n, f in model.model_fields.items() if n in _DISCRIMINATORS)
