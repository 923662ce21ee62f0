"""Register the comparison's winners: ``<experiment>-global`` and ``<experiment>-personal``.

Winners are chosen on the validation split only. A model version is found again by the run it was made from, so the
same winner is registered once.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
import warnings
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import registry
from tasks.files import read_json, write_json
from tasks.model_card import Subject, write_card
from tasks.parameters import run_step
from tasks.run_files import FILE_TAG, file_hashes
from tasks.run_folder import Run, read_runs
from tasks.tracking_runs import KEY, as_number, lineage_tags
from tasks.tracking_store import ensure_experiment, open_client, readable_errors, tracking_lock

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models import ModelSignature
    from mlflow.tracking import MlflowClient

VIEWS = ("global", "personal")
SCORE = "fedcore.val_score"
MODEL = "fedcore.model_id"
PACKAGES = ("mlflow", "numpy", "pandas", "pydantic", "safetensors", "torch")


@dataclass(frozen=True)
class Winner:
    """The best method of a view, by its mean validation accuracy over seeds, and its best seed's run."""

    view: str
    run: Run
    score: float
    last_round_score: float | None
    fallback: Run | None = None  # whose global model serves unknown clients when the run has none of its own


def choose(runs: dict[str, list[Run]], view: str) -> Winner | None:
    """Return the winner of a view; None when no method has a validation accuracy there.

    Ties go to the first label of the alphabet and the lowest seed.
    """
    from fedcore.metrics.comparison import mean

    best: Winner | None = None
    for label in sorted(runs):
        members = sorted(runs[label], key=lambda run: run.seed)
        scores = [as_number(run.metrics.get(f"selected/{view}/val/accuracy")) for run in members]
        finite = [score for score in scores if score is not None and math.isfinite(score)]
        if len(finite) < len(members) or (best is not None and mean(finite) <= best.score):
            continue
        last = [as_number(run.metrics.get(f"{view}/val/accuracy")) for run in members]
        known = [value for value in last if value is not None and math.isfinite(value)]
        run = members[finite.index(max(finite))]
        best = Winner(view, run, mean(finite), mean(known) if len(known) == len(members) else None)
    return best


def register(
    root: Path, runs_folder: Path, comparison: dict[str, Any], dataset: Path, partition: Path | None = None
) -> dict[str, Any]:
    """Publish, choose, register, set the aliases.

    Parameters
    ----------
    root : Path
        The project's root folder.
    runs_folder : Path
        Folder of the run folders.
    comparison : mapping
        Content of ``comparison.json``: ``experiment``, ``methods`` and ``seeds`` say which runs take part.
    dataset : Path
        Folder of the prepared data set; its first examples become the input example.
    partition : Path or None
        The partition file, for the model card; None: no card is written.

    Returns
    -------
    dict
        ``{model name: {version, run_key, label, seed, alias, score}}``; empty without validation examples.
    """
    from tasks.publish import publish

    experiment = comparison["experiment"]
    runs = read_runs(runs_folder, sorted(comparison["methods"]), comparison["seeds"], experiment)
    run_ids = publish(root, runs_folder, experiment).run_ids
    client = open_client(root)
    experiment_id = ensure_experiment(client, experiment, root)
    registered = {}
    with tracking_lock(root):
        for view in VIEWS:
            winner = choose(runs, view)
            if winner is None:
                continue
            if "global" not in winner.run.views:
                shared = choose(runs, "global")
                winner = replace(winner, fallback=shared.run if shared else None)
            name, key = f"{experiment}-{view}", winner.run.config["run_key"]
            card = None
            if partition is not None:
                seeds = runs[winner.run.label]
                card = Subject(name, view, winner.run, seeds, winner.fallback, dataset, partition)
            version = _ensure_version(client, name, experiment_id, winner, run_ids[key], dataset, card)
            _note_seeds(client, version, {run.seed: run_ids[run.config["run_key"]] for run in runs[winner.run.label]})
            _set_alias(client, root, version)
            aliases = client.get_model_version(name, version.version).aliases
            registered[name] = {
                "version": int(version.version),
                "run_key": key,
                "label": winner.run.label,
                "seed": winner.run.seed,
                "alias": next((alias for alias in registry.ALIASES if alias in aliases), None),
                "score": winner.score,
            }
    return registered


def _note_seeds(client: MlflowClient, version: ModelVersion, seed_runs: dict[int, str]) -> None:
    """Tag the version with the runs of all seeds of its method, which the gate compares by."""
    text = json.dumps(seed_runs, sort_keys=True)
    if version.tags.get(registry.SEED_RUNS) != text:
        client.set_model_version_tag(version.name, version.version, registry.SEED_RUNS, text)


def _set_alias(client: MlflowClient, root: Path, version: ModelVersion) -> None:
    """Make the first version champion and every later winner challenger; only `tasks.promotion` promotes those."""
    name, number = version.name, str(version.version)
    with registry.registry_lock(root):
        model = client.get_registered_model(name)
        aliases = registry.aliases(model)
        if registry.CHAMPION not in aliases and not registry.journal(model):
            registry.make_champion(client, name, number, "first version", "first version", registry.now(), None)
        elif aliases.get(registry.CHAMPION) != number:
            client.set_registered_model_alias(name, registry.CHALLENGER, number)
        elif registry.CHALLENGER in aliases:
            # The comparison's winner is champion already: nothing challenges it.
            client.delete_registered_model_alias(name, registry.CHALLENGER)


def _ensure_version(
    client: MlflowClient,
    name: str,
    experiment: str,
    winner: Winner,
    run_id: str,
    dataset: Path,
    card: Subject | None,
) -> ModelVersion:
    """Return the version made from the winner's run; it is created, or its lost files are stored again."""
    from mlflow.exceptions import MlflowException

    key = winner.run.config["run_key"]
    try:
        client.get_registered_model(name)
    except MlflowException:
        client.create_registered_model(name, description=f"The {winner.view} model of the experiment.")
    found = client.search_model_versions(f"name = '{name}' AND tags.`{KEY}` = '{key}'")
    for version in sorted(found, key=lambda version: -int(version.version)):
        model_id = version.tags[MODEL]
        if client.get_logged_model(model_id).experiment_id != experiment:
            continue
        if not client.list_logged_model_artifacts(model_id):
            _store_files(client, model_id, run_id, winner, dataset, card)
        return version
    tags = _version_tags(winner)
    model = client.create_logged_model(
        experiment, name=name, source_run_id=run_id, model_type="federated classifier", tags=tags
    )
    described = _store_files(client, model.model_id, run_id, winner, dataset, card)
    client.finalize_logged_model(model.model_id, "READY")
    return client.create_model_version(
        name,
        # Not "models:/<id>": the SQL registry would look that up in MLflow's global tracking address.
        source=model.artifact_location,
        run_id=run_id,
        tags={**tags, MODEL: model.model_id},
        description=described,
    )


def _version_tags(winner: Winner) -> dict[str, str]:
    config = winner.run.config
    tags = {
        **lineage_tags(read_json(winner.run.folder / "lineage.json")),
        KEY: config["run_key"],
        "fedcore.label": winner.run.label,
        "fedcore.method": config.get("method") or winner.run.label,
        "fedcore.seed": str(winner.run.seed),
        "fedcore.view": winner.view,
        SCORE: repr(winner.score),
        **{f"{FILE_TAG}{name}": digest for name, digest in file_hashes(winner.run.folder).items()},
    }
    if winner.fallback is not None:
        tags["fedcore.fallback"] = f"{winner.fallback.label}-{winner.fallback.seed}"
    if winner.last_round_score is not None:
        tags[f"{SCORE}_last_round"] = repr(winner.last_round_score)
    return tags


def _store_files(
    client: MlflowClient, model_id: str, run_id: str, winner: Winner, dataset: Path, card: Subject | None
) -> str:
    """Store the model's files and its card; return the version's description."""
    with tempfile.TemporaryDirectory() as folder:
        fallback = winner.fallback.folder if winner.fallback else None
        save_model(Path(folder) / "model", winner.run.folder, winner.view, dataset, model_id, run_id, fallback)
        described = f"{winner.run.label}, seed {winner.run.seed}: mean validation accuracy {winner.score:.4f}."
        if card is not None:
            described = write_card(Path(folder) / "model" / "card", card)
        client.log_model_artifacts(model_id, str(Path(folder) / "model"))
    return described


def save_model(
    path: Path,
    run_folder: Path,
    view: str,
    dataset: Path,
    model_id: str | None = None,
    run_id: str | None = None,
    fallback: Path | None = None,
) -> None:
    """Write a run's model as an MLflow model folder that loads anywhere, without pickle.

    Parameters
    ----------
    path : Path
        The folder to write; must not exist.
    run_folder : Path
        Its ``config.json``, ``model.safetensors`` and ``personal.safetensors`` go in. The global model gets no
        client's personal weights.
    view : {"global", "personal"}
    dataset : Path
        Folder of the prepared data set, for the input example.
    fallback : Path or None
        The run folder whose global model serves clients without a model of their own; None: `run_folder`'s.
    """
    import mlflow.pyfunc
    from mlflow.models import Model
    from safetensors import safe_open
    from safetensors.numpy import save_file

    import fedcore

    personal = run_folder / "personal.safetensors"
    with safe_open(personal, framework="numpy") as file:
        clients, facts = file.get_tensor("clients"), file.metadata()
    with tempfile.TemporaryDirectory() as folder:
        nobody = {"clients": clients[:0]}
        artifacts = {"run": _copy_run(run_folder, Path(folder) / "run")}
        if view == "global":
            save_file(nobody, Path(folder) / "run" / personal.name, metadata=facts)
        if fallback is not None:
            artifacts["fallback"] = _copy_run(fallback, Path(folder) / "fallback")
            save_file(nobody, Path(folder) / "fallback" / personal.name, metadata=facts)
        with warnings.catch_warnings():
            # MLflow compares a table's columns with a range, which pandas 3 is about to understand differently.
            warnings.filterwarnings("ignore", message="Operation with range is deprecated")
            mlflow.pyfunc.save_model(
                path=str(path),
                python_model=str(Path(__file__).with_name("registry_model.py")),
                artifacts=artifacts,
                model_config={"view": view},
                code_paths=[str(Path(fedcore.__file__).parent)],
                pip_requirements=[f"{name}=={metadata.version(name).split('+')[0]}" for name in PACKAGES],
                signature=signature(view),
                input_example=input_example(dataset, view, int(clients[0]) if len(clients) else 0),
                mlflow_model=Model(model_id=model_id, run_id=run_id),
            )


def _copy_run(run_folder: Path, target: Path) -> str:
    target.mkdir()
    for name in ("config.json", "model.safetensors", "personal.safetensors"):
        shutil.copyfile(run_folder / name, target / name)
    return str(target)


def signature(view: str) -> ModelSignature:
    """Return the columns a model takes and gives."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import AnyType, Array

    # Not lists of doubles: MLflow refuses whole numbers for those, and cuts a client_id of 3.5 to 3, another client's
    # model. The model checks both itself.
    inputs = [ColSpec(AnyType(), "features")]
    outputs = [
        ColSpec(DataType.long, "label"),
        ColSpec(DataType.string, "class_name"),
        ColSpec(DataType.double, "probability"),
        ColSpec(Array(DataType.double), "probabilities"),
    ]
    if view == "personal":
        inputs.insert(0, ColSpec(AnyType(), "client_id"))
        outputs.append(ColSpec(DataType.boolean, "known_client"))
    return ModelSignature(Schema(inputs), Schema(outputs), ParamSchema([ParamSpec("logits", DataType.boolean, False)]))


def input_example(dataset: Path, view: str, client: int) -> pd.DataFrame:
    """Return the data set's first two examples as a model takes them."""
    import numpy as np
    import pandas as pd

    file = dataset / "inputs.npy"
    if not file.is_file():
        raise ValueError(f"{file}: does not exist; run `dvc repro prepare`")
    rows = np.load(file, mmap_mode="r", allow_pickle=False)[:2]
    features = [row.astype(np.float64).ravel().tolist() for row in rows]
    table = pd.DataFrame({"features": features})
    if view == "personal":
        table.insert(0, "client_id", np.full(len(table), client, np.int64))
    return table


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.register", description=__doc__.splitlines()[0])
    parser.add_argument("--comparison", type=Path, default=Path("reports/comparison.json"))
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the run folders")
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--partition", type=Path, help="partition file, for the model card; without it there is none")
    parser.add_argument("--out", type=Path, default=Path("reports/registered.json"))
    arguments = parser.parse_args()
    comparison = read_json(arguments.comparison)
    for key in ("experiment", "methods", "seeds"):
        if key not in comparison:
            raise ValueError(f"{arguments.comparison}: '{key}' is missing; run `dvc repro compare`")
    with readable_errors():
        registered = register(Path.cwd(), arguments.runs, comparison, arguments.dataset, arguments.partition)
    write_json(arguments.out, registered)
    for name, entry in registered.items():
        print(
            f"{name}: version {entry['version']} ({entry['alias']}) is {entry['label']}, seed {entry['seed']},"
            f" mean validation accuracy {entry['score']:.4f}"
        )
    if not registered:
        print("nothing registered: no method has a validation accuracy; set partition.validation above 0")


if __name__ == "__main__":
    run_step(main)
