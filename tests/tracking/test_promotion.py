"""The gate in the registry: challengers evaluated beside the champion on today's validation examples."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedcore.config import Gate
from fedcore.data import dataset as datasets
from fedcore.data import partitions
from tasks import promotion, registry
from tasks.parameters import run_step
from tasks.register import register
from tests.tracking.conftest import SHAPE, Project

NAME = "digits-global"
CLIENTS, EXAMPLES = 6, 12


class Registered:
    """A project whose data is real: the label is the place of the brightest of an example's first three pixels."""

    def __init__(self, project: Project):
        self.project = project
        rows = CLIENTS * EXAMPLES
        labels = np.arange(rows) % 3
        inputs = np.zeros((rows, *SHAPE), np.uint8)
        inputs.reshape(rows, 4)[np.arange(rows), labels] = 16
        data = datasets.Dataset("digits", inputs, labels, ("0", "1", "2"), (8.0,), (0.125,), rows)
        datasets.save(data, project.dataset)
        split = np.tile(np.repeat([0, 1, 2], 4), CLIENTS)
        table = partitions.PartitionTable(np.repeat(np.arange(CLIENTS), EXAMPLES), split, CLIENTS, 0, "{}")
        self.partition = project.root / "data" / "partitions" / "digits.npz"
        partitions.save(table, self.partition)
        self.hash = table.content_hash

    def add(self, right: float, lr: float, seeds: tuple[int, ...] = (0,), **changes: Any) -> None:
        """Register a model that is right about a share of the classes: 1 all three, 0.34 one."""
        for seed in seeds:
            changes = {"partition": self.hash, "train": {"lr": lr}} | changes
            folder = self.project.add("fedavg", seed, **changes)
            weight = np.eye(3, 4, dtype=np.float32)
            weight[round(3 * right) :] = 0
            bias = np.array([0, 0, -9 * (right < 1)], np.float32)
            save_file({"head.weight": weight, "head.bias": bias}, folder / "model.safetensors", {"format": "fedcore-1"})
        register(self.project.root, self.project.root / "runs", self.project.comparison(), self.project.dataset)

    def promote(self, gate: Gate | None = None, **options: Any) -> promotion.Outcome:
        return promotion.promote(
            self.project.root, "digits", "global", gate or Gate(), self.project.dataset, self.partition, **options
        )


@pytest.fixture
def world(project: Project) -> Registered:
    return Registered(project)


def aliases(client: Any) -> dict[str, str]:
    return registry.aliases(client.get_registered_model(NAME))


def test_a_better_challenger_is_promoted_and_leaves_its_evidence(world: Registered, client: Any) -> None:
    """Right about classes 0 and 1 of three against all: each client's 4 validation examples hold 1 or 2 of class 2."""
    world.add(0.67, 0.1, seeds=(0, 1))
    world.add(1.0, 0.2, seeds=(0, 1))
    outcome = world.promote(Gate(min_seeds=2))
    assert outcome.change is not None
    assert outcome.decision is not None
    assert aliases(client) == {"champion": "2", "previous": "1"}
    found = outcome.decision.evidence
    assert found is not None
    assert (found.seeds, found.num_clients, found.num_examples) == ((0, 1), CLIENTS, 4 * CLIENTS)
    labels = [label for start in range(0, CLIENTS * EXAMPLES, EXAMPLES) for label in range(start + 8, start + EXAMPLES)]
    share = sum(label % 3 == 2 for label in labels) / len(labels)
    assert (found.challenger, found.champion) == (1.0, pytest.approx(1 - share))
    version = client.get_model_version(NAME, "2")
    assert (version.tags["promotion.how"], version.tags["gate.verdict"]) == ("gate", "promote")
    assert float(version.tags["gate.difference"]) == pytest.approx(share, abs=1e-6)
    assert version.tags["gate.seeds"] == "0, 1"
    folder = f"gate/{NAME}-2-against-1"
    assert {item.path for item in client.list_artifacts(version.run_id, folder)} == {
        f"{folder}/decision.json",
        f"{folder}/decision.md",
    }
    page = Path(client.download_artifacts(version.run_id, f"{folder}/decision.md")).read_text()
    assert "**promote**" in page
    assert "| validation accuracy (accuracy), challenger | 100.00 % |" in page
    assert world.promote().challenger is None
    promotion.roll_back(world.project.root, "digits", None, "wrong on Mondays")
    client.set_registered_model_alias(NAME, "challenger", "2")
    again = world.promote()
    assert again.change is None
    assert "wrong on Mondays" in again.lines()[1]


def test_a_worse_challenger_is_kept_out_unless_forced(world: Registered, client: Any) -> None:
    world.add(1.0, 0.1)
    world.add(0.34, 0.2)
    outcome = world.promote()
    assert outcome.change is None
    assert outcome.lines()[0] == f"{NAME}: kept version 1; version 2 against version 1"
    assert aliases(client) == {"champion": "1", "challenger": "2"}
    tags = client.get_model_version(NAME, "2").tags
    assert tags["gate.verdict"] == "keep"
    assert "at least +0.00 needed" in tags["gate.reasons"]
    assert "promotion.when" not in tags
    few = world.promote(Gate(min_seeds=2))
    assert few.decision is not None
    assert few.decision.reasons[0].startswith("1 seeds in common")
    about = client.get_model_version(NAME, "2").description
    assert about.count("**Gate**: keep against version 1, ") == 1, "the page would tell of decisions of the past"
    assert "\n- 1 seeds in common" in about
    forced = world.promote(force="the champion leaks")
    about = client.get_model_version(NAME, "2").description
    assert ", but promoted by force: the champion leaks\n\n- " in about
    assert forced.change is not None
    assert (forced.change.how, forced.change.why) == ("forced", "forced: the champion leaks")
    assert aliases(client) == {"champion": "2", "previous": "1"}


def test_what_cannot_be_compared_is_kept_out_with_a_reason(world: Registered, client: Any) -> None:
    world.add(0.34, 0.1)
    world.add(1.0, 0.2, partition="f" * 64)
    other = world.promote()
    assert other.decision is not None
    assert "was trained on another partition" in other.decision.reasons[0]
    facts = {"shape": list(SHAPE), "class_names": ["a", "b", "c"], "offset": [8.0], "scale": [0.125]}
    world.add(1.0, 0.3, input=facts)
    classes = world.promote()
    assert classes.decision is not None
    assert "knows other classes than data set 'digits'" in classes.decision.reasons[0]
    client.set_model_version_tag(NAME, "3", "lineage.clean", "false")
    marked = world.promote()
    assert marked.decision is not None
    assert "comes from a run that is marked" in marked.decision.reasons[0]
    assert aliases(client) == {"champion": "1", "challenger": "3"}


def test_a_promotion_in_between_is_judged_against(
    world: Registered, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While version 2 is evaluated against the weak version 1, the perfect version 3 becomes champion."""
    for right, lr in ((0.34, 0.1), (0.67, 0.2), (1.0, 0.3)):
        world.add(right, lr)
    judged = []
    decide = promotion.decide

    def slowly(*arguments: Any) -> Any:
        judged.append(str(arguments[4].version))
        if len(judged) == 1:
            with registry.registry_lock(world.project.root):
                registry.make_champion(client, NAME, "3", "gate", "", "other", "1")
        return decide(*arguments)

    monkeypatch.setattr(promotion, "decide", slowly)
    outcome = world.promote(version="2")
    assert judged == ["1", "3"]
    assert outcome.change is None
    assert aliases(client) == {"champion": "3", "previous": "1"}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["promote", "--force"], 'error: --force needs a reason: make promote FORCE=yes REASON="why"'),
        (["promote", "--reason", "x"], "error: a reason is given with --force only"),
        (["promote", "--version", "1"], "error: --version needs --kind"),
        (["promote", "--kind", "global"], "error: no registered model 'digits-global'; run `dvc repro register`"),
        (["rollback"], "error: no registered model 'digits-global'"),
    ],
)
def test_a_wrong_command_is_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    parameters = {
        "experiment": "digits",
        "dataset": {"name": "digits"},
        "partition": {"scheme": "iid", "clients": 2},
        "model": {"name": "softmax_regression"},
        "train": {},
        "methods": {"fedavg": {}},
        "compare": {},
    }
    (root / "params.yaml").write_text(json.dumps(parameters))
    monkeypatch.setattr(sys, "argv", ["promotion", *arguments])
    with pytest.raises(SystemExit) as stop:
        run_step(promotion.main)
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith(line)
