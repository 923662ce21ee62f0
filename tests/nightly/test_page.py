"""docs/nightly.md has every key of the three sections with its default."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from fedcore.config import Config, Drift, Incoming, Notify
from fedcore.config import validate as check

PAGE = (Path(__file__).parents[2] / "docs" / "nightly.md").read_text(encoding="utf-8")


def parsed(text: str) -> object:
    return YAML(typ="safe", pure=True).load(text.strip("`"))


@pytest.mark.parametrize(("name", "section"), [("incoming", Incoming), ("drift", Drift), ("notify", Notify)])
def test_every_key_is_there_with_its_default(name: str, section: type[BaseModel]) -> None:
    lines = PAGE.split(f"| key of `{name}` |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    said = {key.strip("`"): parsed(default) for key, default, _ in cells}
    assert said == {key: field.default for key, field in section.model_fields.items()}


def test_the_example_is_valid() -> None:
    own = parsed(PAGE.split("```yaml\n")[1].split("```")[0])
    assert isinstance(own, dict)
    source = {"name": "csv", "files": ["a.csv"], "client": "hospital"}
    rest = {"experiment": "trial", "dataset": source, "model": {"name": "mlp"}, "train": {"rounds": 1}}
    config = check({**rest, "methods": {"fedavg": {}}, "compare": {"seeds": [0]}, **own})
    assert isinstance(config, Config)
    assert config.incoming == Incoming()
