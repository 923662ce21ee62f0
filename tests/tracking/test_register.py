from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tasks import model_folder
from tasks import register as step
from tasks.register import choose, register
from tasks.run_folder import read_runs
from tests.tracking.conftest import OFFSET, SCALE, SHAPE, Project

LOW, HIGH = (0.25, 0.5, 0.375), (0.5, 0.75, 0.625)

# What a program somewhere else does: no project on the path, another folder, models by alias.
LOAD = """
import json, sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in str(getattr(finder, "__module__", ""))]
try:
    import fedcore
    sys.exit("fedcore is importable, so the test would prove nothing")
except ImportError:
    pass
import mlflow, numpy as np, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
inputs = np.asarray(json.loads(sys.argv[2]), dtype=float)
answers = {}
personal = mlflow.pyfunc.load_model("models:/digits-personal@champion")
table = pd.DataFrame({"client_id": np.array([3, 7, 99, 3]), "features": list(inputs)})
answers["personal"] = personal.predict(table).to_dict("list")
answers["one"] = personal.predict(table.iloc[1:2]).to_dict("list")
answers["example"] = personal.predict(personal.input_example).to_dict("list")
def refusal(table):
    try:
        personal.predict(table)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
answers["no client"] = refusal(table[["features"]])
answers["short"] = refusal(table.assign(features=[[1.0, 2.0]] * 4))
answers["nan"] = refusal(table.assign(features=[[1.0, 2.0, 3.0, float("nan")]] * 4))
general = mlflow.pyfunc.load_model("models:/digits-global@champion")
answers["global"] = general.predict(table[["features"]]).to_dict("list")
import fedcore
answers["code"] = fedcore.__file__
print(json.dumps(answers, default=lambda value: value.tolist()))
"""


def registered(project: Project) -> dict[str, Any]:
    return register(project.root, project.root / "runs", project.comparison(), project.dataset)


def probabilities(weights: dict[str, np.ndarray], example: np.ndarray) -> np.ndarray:
    """Softmax regression by hand: (x - offset) * scale, one linear layer, softmax."""
    logits = weights["head.weight"] @ ((example - OFFSET) * SCALE) + weights["head.bias"]
    return np.exp(logits) / np.exp(logits).sum()


def test_both_models_predict_by_alias_in_a_fresh_process_elsewhere(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.add("fedavg", 0, val=LOW)
    project.add("local", 0, val=HIGH)
    registered(project)
    inputs = np.arange(16).reshape(4, 4) % 17
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSTARTUP")}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, f"sqlite:///{project.root}/mlruns/mlflow.db", json.dumps(inputs.tolist())],
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    answers = json.loads(done.stdout)

    local, shared = project.root / "runs" / "local-0", project.root / "runs" / "fedavg-0"
    own, base = load_file(local / "personal.safetensors"), load_file(shared / "model.safetensors")
    stacks = [{name: own[f"own/{name}"][row] for name in base} for row in (0, 1)]
    expected = [probabilities(w, x) for w, x in zip((stacks[0], stacks[1], base, stacks[0]), inputs, strict=True)]
    personal = answers["personal"]
    assert np.allclose(personal["probabilities"], expected, atol=1e-5)
    assert personal["label"] == [int(p.argmax()) for p in expected]
    assert np.allclose(personal["probability"], [p.max() for p in expected], atol=1e-5)
    assert personal["known_client"] == [True, True, False, True]
    assert np.allclose(answers["one"]["probabilities"], expected[1:2], atol=1e-5)
    assert answers["example"]["known_client"] == [True, True]

    general = load_file(shared / "model.safetensors")
    assert np.allclose(answers["global"]["probabilities"], [probabilities(general, x) for x in inputs], atol=1e-5)
    assert sorted(answers["global"]) == ["class_name", "label", "probabilities", "probability"]
    assert personal["class_name"] == [str(label) for label in personal["label"]]

    assert "client_id" in answers["no client"]
    assert answers["no client"].startswith("MlflowException")
    assert answers["short"] == "InputError: row 0: 2 features, expected 4 (1 x 2 x 2)"
    assert answers["nan"] == "InputError: row 0: feature 3 is nan, expected a finite number"
    assert answers["code"].startswith(str(project.root / "mlruns" / "artifacts"))


def test_a_version_carries_signature_example_lineage_and_no_pickle(project: Project, client: Any) -> None:
    project.add("local", 0)
    registered(project)
    version = client.get_model_version_by_alias("digits-personal", "champion")
    tags = version.tags
    assert tags["lineage.partition_hash"] == "e" * 64
    assert (tags["git_commit"], tags["fedcore.label"], tags["fedcore.seed"]) == ("c0ffee", "local", "0")
    assert (float(tags["fedcore.val_score"]), float(tags["fedcore.val_score_last_round"])) == (0.75, 0.625)
    assert (tags["promotion.from"], tags["promotion.to"]) == ("none", "1")
    assert (tags["promotion.how"], tags["promotion.why"]) == ("first version", "first version")
    assert tags["promotion.who"]
    assert client.get_run(version.run_id).info.run_name == "local-0"
    folder = Path(client.get_model_version_download_uri("digits-personal", "1").removeprefix("file://"))
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {
        "MLmodel",
        "input_example.json",
        "artifacts/run/personal.safetensors",
        "code/fedcore/config/__init__.py",
    } <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pyc", ".pt", ".pth"))]
    requirements = (folder / "requirements.txt").read_text().split()
    assert {line.split("==")[0] for line in requirements} == set(model_folder.PACKAGES)
    assert "+" not in "".join(requirements)
    example = json.loads((folder / "input_example.json").read_text())
    assert example == {"columns": ["client_id", "features"], "data": [[3, [0, 1, 2, 3]], [3, [4, 5, 6, 7]]]}


def test_the_global_model_holds_nobodys_personal_weights(project: Project, tmp_path: Path) -> None:
    folder = project.add("local", 0)
    model_folder.save_model(tmp_path / "model", folder, "global", project.dataset)
    personal = load_file(tmp_path / "model" / "artifacts" / "run" / "personal.safetensors")
    assert {name: array.tolist() for name, array in personal.items()} == {"clients": []}


def test_the_choice_rests_on_validation_over_all_seeds_only(project: Project) -> None:
    """`steady` has the better mean on validation, `lucky` the best seed and the better test accuracy."""
    project.add("lucky", 0, val=(0.9, 0.9, 0.9), test=(1.0, 1.0, 1.0))
    project.add("lucky", 1, val=(0.3, 0.3, 0.3), test=(1.0, 1.0, 1.0))
    project.add("steady", 0, val=(0.2, 0.7, 0.1), test=(0.1, 0.1, 0.1))
    project.add("steady", 1, val=(0.2, 0.8, 0.1), test=(0.1, 0.1, 0.1))
    project.add("local", 0, val=(0.9, 0.9, 0.9))
    project.add("local", 1, val=(0.9, 0.9, 0.9))
    runs = read_runs(project.root / "runs", ["local", "lucky", "steady"], [0, 1], "digits")
    winner = choose(runs, "global")
    assert winner is not None
    assert (winner.run.label, winner.run.seed, winner.score) == ("steady", 1, 0.75)
    assert winner.last_round_score == pytest.approx(0.1)
    personal = choose(runs, "personal")
    assert personal is not None
    assert (personal.run.label, personal.run.seed) == ("local", 0)
    assert choose({"local": runs["local"]}, "global") is None


def test_a_winner_is_chosen_by_what_it_would_answer(project: Project) -> None:
    """`virtual` calls half of what it knows by a virtual class's name, which is never served."""
    project.add("plain", 0, val=(0.7, 0.7, 0.7))
    project.add("virtual", 0, val=(0.4, 0.4, 0.4))
    runs = read_runs(project.root / "runs", ["plain", "virtual"], [0], "digits")
    assert choose(runs, "global").run.label == "plain"
    (run,) = runs["virtual"]
    run.metrics["selected/global/val/accuracy_natural"] = 0.8
    run.metrics["global/val/accuracy_natural"] = 0.6
    winner = choose(runs, "global")
    assert (winner.run.label, winner.score, winner.last_round_score) == ("virtual", 0.8, 0.6)


def test_the_first_version_is_champion_and_later_ones_challenge(project: Project, client: Any) -> None:
    def aliases() -> dict[str, str]:
        return {name: str(v) for name, v in client.get_registered_model("digits-personal").aliases.items()}

    project.add("local", 0, val=(0.5, 0.5, 0.5))
    first = registered(project)["digits-personal"]
    assert (first["version"], first["alias"], aliases()) == (1, "champion", {"champion": "1"})

    project.add("local", 0, val=(0.9, 0.9, 0.9), train={"lr": 0.1})
    better = registered(project)["digits-personal"]
    assert (better["version"], better["alias"], aliases()) == (2, "challenger", {"champion": "1", "challenger": "2"})
    assert registered(project)["digits-personal"] == better

    project.add("local", 0, val=(0.4, 0.4, 0.4), train={"lr": 0.2})
    assert registered(project)["digits-personal"]["version"] == 3
    assert aliases() == {"champion": "1", "challenger": "3"}

    # Back to the champion's run: nothing challenges it any more, and nothing is registered twice.
    project.add("local", 0, val=(0.5, 0.5, 0.5))
    assert registered(project)["digits-personal"] == first
    assert aliases() == {"champion": "1"}
    assert len(client.search_model_versions("name = 'digits-personal'")) == 3


def test_a_version_names_the_runs_of_all_seeds(project: Project, client: Any) -> None:
    for seed in (0, 1):
        project.add("local", seed, val=(0.5, 0.5, 0.5))
    registered(project)
    runs = json.loads(client.get_model_version("digits-personal", "1").tags["fedcore.seed_runs"])
    assert {seed: client.get_run(run).info.run_name for seed, run in runs.items()} == {"0": "local-0", "1": "local-1"}


def test_a_first_version_without_its_alias_gets_it_the_next_time(
    project: Project, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    project.add("local", 0)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            registered(project)
    assert registered(project)["digits-personal"]["alias"] == "champion"
    assert len(client.search_model_versions("name = 'digits-personal'")) == 1


def test_lost_files_of_a_version_are_stored_again(project: Project, client: Any) -> None:
    import shutil

    project.add("local", 0)
    first = registered(project)
    folder = Path(client.get_model_version_download_uri("digits-personal", "1").removeprefix("file://"))
    shutil.rmtree(project.root / "mlruns" / "artifacts")
    assert registered(project) == first
    assert (folder / "artifacts" / "run" / "personal.safetensors").is_file()


def test_without_validation_examples_nothing_is_registered(
    project: Project, client: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.add("fedavg", 0, val=())
    project.write_comparison()
    monkeypatch.setattr(sys, "argv", ["register", "--dataset", str(project.dataset)])
    step.main()
    assert json.loads((project.root / "reports" / "registered.json").read_text()) == {}
    assert "nothing registered" in capsys.readouterr().out
    assert client.search_registered_models() == []


def test_the_command_writes_the_same_bytes_twice(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project.add("fedavg", 0)
    project.write_comparison()
    monkeypatch.setattr(sys, "argv", ["register", "--dataset", str(project.dataset)])
    step.main()
    out = project.root / "reports" / "registered.json"
    before = out.read_bytes()
    step.main()
    assert out.read_bytes() == before
    assert sorted(json.loads(before)) == ["digits-global", "digits-personal"]
    assert "digits-global: version 1 (champion) is fedavg, seed 0, mean validation accuracy 0.7500" in (
        capsys.readouterr().out
    )


def test_a_missing_run_is_named_and_earlier_results_stay(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project.add("fedavg", 0)
    project.write_comparison()
    out = project.root / "reports" / "registered.json"
    out.write_text("earlier")
    (folder / "metrics.json").unlink()
    monkeypatch.setattr(sys, "argv", ["register", "--dataset", str(project.dataset)])
    with pytest.raises(ValueError, match=r"fedavg-0: metrics\.json does not exist; run `dvc repro train@fedavg-0`"):
        step.main()
    assert out.read_text() == "earlier"


def test_a_comparison_of_something_else_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project.write_comparison()
    path.write_text('{"experiment": "digits"}')
    monkeypatch.setattr(sys, "argv", ["register", "--dataset", str(project.dataset)])
    with pytest.raises(ValueError, match=r"comparison\.json: 'methods' is missing"):
        step.main()


def test_the_data_set_must_be_there_for_the_example(project: Project) -> None:
    with pytest.raises(ValueError, match=r"inputs\.npy: does not exist; run `dvc repro prepare`"):
        model_folder.input_example(project.root / "nowhere", "global", 0)
    assert np.load(project.dataset / "inputs.npy").shape[1:] == SHAPE
