"""The pages under docs/ say what is there: every method, key, default, preset, data source and scheme."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from fedcore import config, discovery, models
from fedcore.compose import build_all
from tests.test_readme import README, ROOT

METHODS = ROOT / "docs" / "methods"
DATA = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
MODELS = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
INDEX = (METHODS / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path for path in METHODS.glob("*.md") if path.name != "README.md")
ADDONS = {name: discovery.addon_class(name) for name in discovery.addon_names()}
PARTS = {**{name: discovery.method_class(name) for name in discovery.method_names()}, **ADDONS}
HEADINGS = [
    "What it does",
    "In `params.yaml`",
    "Implementation details",
    "Differences from published code",
    "Tests",
    "Results",
    "References",
]
# What the blocks of the pages and the files of experiments/ train on: shape of an example, classes.
SHAPES = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion_mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "adult": ((93,), 2),
    "synthetic": ((60,), 10),
    "csv": ((4,), 2),
    "image_folder": ((3, 64, 64), 2),
    "npz": ((3, 32, 32), 2),
}


def parsed(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks() -> list[Any]:
    """Return every YAML block of the pages, with its page and line as the test's name."""
    found = []
    for path in [*PAGES, METHODS / "README.md", ROOT / "docs" / "data.md", ROOT / "docs" / "training.md"]:
        for block in re.finditer(r"^```yaml\n(.*?)^```", read(path), re.S | re.M):
            line = read(path)[: block.start()].count("\n") + 1
            found.append(pytest.param(block[1], id=f"{path.name}:{line}"))
    return found


def rows(text: str, heading: str, first: str) -> dict[str, list[str]]:
    """Return the table below a heading whose first column is called `first`: its cells by the first one's key."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    assert section, f"there is no '## {heading}'"
    table = re.search(rf"^\| {re.escape(first)} \|.*\n\| ---.*\n((?:\|.*\n)+)", section[1], re.M)
    assert table, f"'## {heading}' has no table with the column '{first}'"
    lines = [[cell.strip() for cell in line.strip("|").split(" |")] for line in table[1].splitlines()]
    keys = [cells[0].strip("`") for cells in lines]
    assert len(set(keys)) == len(keys), f"'## {heading}' has a row twice"
    return dict(zip(keys, lines, strict=True))


def choices(union: Any, key: str) -> dict[str, type[BaseModel]]:
    """Return the sections of a discriminated union of the parameters, by what their key may say."""
    sections = get_args(get_args(union)[0])
    return {name: section for section in sections for name in get_args(section.model_fields[key].annotation)}


def check_parameters(values: Any) -> None:
    """Do what the pipeline does before it trains: sections, methods, resources, layers."""
    settings = config.validate(values)
    shape, classes = SHAPES[settings.dataset.name]
    there = {name for name in ("virtual", "pseudo") if getattr(settings, name) is not None}
    for label, (composition, train) in build_all(settings).items():
        assert composition.needs <= there, f"{label} lacks a section"
        net = models.build(settings.model, shape, composition.num_outputs(classes), seed=0)
        composition.check(net, train)


@pytest.mark.parametrize("block", blocks())
def test_blocks_build_over_the_projects_parameters(block: str) -> None:
    values = parsed(block)
    base = parsed(read(ROOT / "params.yaml"))
    assert set(values) <= set(base), "a block names a section that params.yaml does not have"
    check_parameters({**base, **values})


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.name)
def test_experiments_build(path: Path) -> None:
    check_parameters(parsed(read(path)))


def test_the_index_has_every_method_and_addon() -> None:
    table = rows(INDEX, "Methods", "name")
    assert set(table) == set(PARTS)
    for name, cells in table.items():
        assert cells[1] == ("add-on" if name in ADDONS else "method"), name
        assert f"/{discovery.source_file(PARTS[name]).name})" in cells[4], name


def test_readme_has_every_method_and_addon() -> None:
    table = [line.split(" |")[0] for line in README.splitlines() if line.startswith("| `")]
    for name in PARTS:
        entry = f"| `add: {{{name}:" if name in ADDONS else f"| `{name}`"
        assert [line for line in table if line.startswith(entry)], f"README's methods table lacks {name}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_their_parts_in_order(path: Path) -> None:
    found = re.findall(r"^## (.*)$", read(path), re.M)
    own = [heading for heading in found if heading.startswith("Hyper-parameters of `")]
    assert own, "the page has no '## Hyper-parameters of `<name>`'"
    assert found == [*HEADINGS[:2], *own, *HEADINGS[2:]]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_number_their_details_and_are_in_the_index(path: Path) -> None:
    details = read(path).split("## Implementation details\n")[1].split("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", details, re.M)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert f"]({path.name})" in INDEX


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_the_hyper_parameters_with_their_defaults(path: Path) -> None:
    for name in re.findall(r"^## Hyper-parameters of `(\w+)`$", read(path), re.M):
        table = rows(read(path), f"Hyper-parameters of `{name}`", "key")
        said = {key: parsed(cells[1].strip("`")) for key, cells in table.items()}
        assert said == {field.name: plain(field.default) for field in dataclasses.fields(PARTS[name])}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_have_the_presets(path: Path) -> None:
    names = re.findall(r"^## Hyper-parameters of `(\w+)`$", read(path), re.M)
    said = re.findall(r"^- `(clean|paper)`: `(\{.*\})`$", read(path), re.M)
    assert [(preset, parsed(text)) for preset, text in said] == [
        (preset, plain(PARTS[name].presets[preset])) for name in names for preset in ("clean", "paper")
    ]


def test_the_index_has_the_presets_of_parts_without_a_page() -> None:
    on_pages = {name for path in PAGES for name in re.findall(r"^## Hyper-parameters of `(\w+)`$", read(path), re.M)}
    said = {name: cells[1].strip("`") for name, cells in rows(INDEX, "Presets", "name").items()}
    assert set(said) == set(PARTS) - on_pages
    for name, text in said.items():
        preset = PARTS[name].presets.get("paper")
        assert (None if text == "none" else parsed(text)) == (preset and plain(preset)), name


def plain(value: Any) -> Any:
    """Return a default as YAML would read it."""
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    ("heading", "key", "union"),
    [
        ("Sources", "name", config.Dataset),
        ("Partitions", "scheme", config.Partition),
        ("Virtual data", "generator", config.Virtual),
        ("Pseudo data", "generator", config.Pseudo),
    ],
)
def test_the_data_page_has_every_choice(heading: str, key: str, union: Any) -> None:
    assert set(rows(DATA, heading, f"`{key}`")) == set(choices(union, key))


def test_the_data_page_has_every_key_of_a_scheme() -> None:
    for scheme, section in choices(config.Partition, "scheme").items():
        own = set(section.model_fields) - set(config.Splits.model_fields) - {"scheme"}
        said = set(re.findall(r"`(\w+)`", rows(DATA, "Partitions", "`scheme`")[scheme][2]))
        assert own <= said, f"the row of '{scheme}' lacks a key"


def test_the_data_page_has_the_keys_of_all_schemes_with_their_defaults() -> None:
    table = rows(DATA, "Partitions", "key")
    assert {key: parsed(cells[1]) for key, cells in table.items()} == {
        name: field.default for name, field in config.Splits.model_fields.items()
    }


def test_the_training_page_has_every_key_with_its_default() -> None:
    found = {}
    for heading in ("Learning", "Evaluation and newcomers", "Where and how it runs"):
        table = {key: parsed(cells[1].strip("`")) for key, cells in rows(TRAINING, heading, "key").items()}
        assert not set(table) & set(found)
        found.update(table)
    train = config.Train()
    expected = train.model_dump(mode="json", exclude={"augment", "ray"})
    expected.update({f"augment.{key}": value for key, value in train.augment.model_dump(mode="json").items()})
    expected.update({f"ray.{key}": value for key, value in train.ray.model_dump(mode="json").items()})
    assert found == expected


@pytest.mark.parametrize("section", [config.Train, type(config.Train().ray)], ids=["train", "ray"])
def test_the_training_page_has_every_choice(section: type[BaseModel]) -> None:
    prefix = "" if section is config.Train else "ray."
    for name, field in section.model_fields.items():
        if get_origin(field.annotation) is Literal:
            line = re.search(rf"^\| `{re.escape(prefix + name)}` \|.*$", TRAINING, re.M)
            assert line, name
            assert set(get_args(field.annotation)) <= set(re.findall(r"\w+", line[0])), name


def test_the_data_page_has_the_keys_of_generators_with_their_defaults() -> None:
    for name, section in choices(config.Virtual, "generator").items():
        cell = rows(DATA, "Virtual data", "`generator`")[name][2]
        own = {
            key: field for key, field in section.model_fields.items() if key not in ("generator", "per_class", "seed")
        }
        assert set(own) <= set(re.findall(r"`(\w+)`", cell)), f"the row of '{name}' lacks a key"
        for key, value in re.findall(r"`(\w+)` \(([\d.]+)\)", cell):
            assert own[key].default == parsed(value), f"{name}.{key}"


def test_the_models_page_has_every_model_with_its_keys_places_and_size() -> None:
    table, sections = rows(MODELS, "Models", "`name`"), choices(config.Model, "name")
    assert set(table) == set(sections)
    for name, (_, _, keys, places, _, example, parameters, _) in table.items():
        section = sections[name]
        own = set(section.model_fields) - {"name"}
        assert own == set(re.findall(r"`(\w+)` \(", keys)), name
        for key, default in re.findall(r"`(\w+)` \(([^;)]*)", keys):
            assert plain(section.model_fields[key].default) == parsed(default), f"{name}.{key}"
        found = re.match(r"([\dx]+) to (\d+)(?:, `(.*)`)?$", example)
        assert found, f"{name}: {example}"
        values = {"name": name, **(parsed(found[3]) if found[3] else {})}
        net = models.build(section.model_validate(values), tuple(map(int, found[1].split("x"))), int(found[2]), seed=0)
        assert sum(leaf.numel() for leaf in net.initial_params.values()) == int(parameters.replace(",", "")), name
        for place in re.findall(r"`(\w+)`", places):
            assert place in net.layer_shapes, f"{name}: {place}"


def test_the_data_page_has_the_keys_of_augment_with_their_defaults() -> None:
    table = rows(DATA, "Augmentation", "key of `augment`")
    assert {key: parsed(cells[1]) for key, cells in table.items()} == {
        name: field.default for name, field in config.Augment.model_fields.items()
    }
