"""Register the comparison's winners: ``<experiment>-global`` and ``<experiment>-personal``.

Winners are chosen on the validation split only. A model version is found again by the run it was made from, so the
same winner is registered once.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import registry
from tasks.files import read_json, write_json
from tasks.model_card import Subject, write_card
from tasks.model_folder import save_model
from tasks.parameters import run_step
from tasks.run_files import FALLBACK_TAG, FILE_TAG, file_hashes
from tasks.run_folder import Run, read_runs
from tasks.tracking_runs import KEY, as_number, lineage_tags
from tasks.tracking_store import ensure_experiment, open_client, readable_errors, tracking_lock

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

VIEWS = ("global", "personal")
SCORE = "fedcore.val_score"
MODEL = "fedcore.model_id"
_ALIASES = (
    "`champion` is in service, `challenger` is what the gate judges next, `previous` was champion before."
    " `make models` lists who became champion when and why; `make rollback` goes back."
)
_ABOUT = {
    "global": f"One model for every client: the aggregated one of the comparison's winner.\n\n{_ALIASES}",
    "personal": "A family of models, one per client, chosen by the column `client_id`; a client without one is answered"
    f" by a global model.\n\n{_ALIASES}",
}


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
        scores = [_as_served(run, f"selected/{view}/val/accuracy") for run in members]
        finite = [score for score in scores if score is not None and math.isfinite(score)]
        if len(finite) < len(members) or (best is not None and mean(finite) <= best.score):
            continue
        last = [_as_served(run, f"{view}/val/accuracy") for run in members]
        known = [value for value in last if value is not None and math.isfinite(value)]
        run = members[finite.index(max(finite))]
        best = Winner(view, run, mean(finite), mean(known) if len(known) == len(members) else None)
    return best


def _as_served(run: Run, metric: str) -> float | None:
    """Return an accuracy without outputs beyond the task's classes, which nobody is ever answered."""
    return as_number(run.metrics.get(f"{metric}_natural", run.metrics.get(metric)))


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
        client.create_registered_model(name, description=_ABOUT[winner.view])
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
        tags |= {f"{FALLBACK_TAG}{name}": digest for name, digest in file_hashes(winner.fallback.folder).items()}
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
