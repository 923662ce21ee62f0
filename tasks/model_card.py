"""The model card of a registered version: what it was made from, how well it does, for whom it does worst."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.metrics.comparison import summarise
from tasks.files import read_json
from tasks.tracking_runs import as_number, flatten

if TYPE_CHECKING:
    from fedcore.data.federation import Federation
    from tasks.run_folder import Run

WORST = 10  # clients in the table of those who do worst
_CLASSES = 20  # class names that are listed
_NATURAL = "test/accuracy_natural"  # of methods with outputs beyond the task's classes: those outputs left out
_FIGURES = {
    "global": ("val/accuracy", "test/accuracy", _NATURAL),
    "personal": ("val/accuracy", "test/accuracy", _NATURAL, "test/client_mean", "test/client_std", "test/worst_decile"),
}
_STYLE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Model card</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ccc;padding:.25rem .6rem;text-align:left}
td{font-variant-numeric:tabular-nums}img{max-width:100%}code{background:#f3f3f3;padding:.1rem .25rem}
td:last-child{overflow-wrap:anywhere}</style>
"""


@dataclass(frozen=True)
class Subject:
    """What a card is about.

    Parameters
    ----------
    model : str
        The registered model.
    view : {"global", "personal"}
    run : Run
        The run the version was made from.
    seeds : Runs
        Of all seeds of its method, `run` among them.
    fallback : Run or None
        Whose global model serves clients without a model of their own, if not `run`'s.
    dataset, partition : Path
        The prepared data set and the partition file the run was trained on; a picture lies beside the partition as
        ``.png``.
    """

    model: str
    view: str
    run: Run
    seeds: Sequence[Run]
    fallback: Run | None
    dataset: Path
    partition: Path


def write_card(folder: Path, subject: Subject) -> str:
    """Write ``card.md``, ``card.html`` and ``partition.png`` into a new folder; return the summary in markdown."""
    from markdown_it import MarkdownIt

    from tasks.validation import read_federation

    federation, partition_hash = read_federation(subject.dataset, subject.partition)
    lineage = read_json(subject.run.folder / "lineage.json")
    picture = subject.partition.with_suffix(".png")
    sections = [
        ("", _summary(subject)),
        ("Data", _data(federation, lineage)),
        ("Clients", _clients(federation, subject.run.config, partition_hash, picture.is_file())),
        ("Method and parameters", _method(subject.run.config)),
        ("Results", _results(subject)),
        ("Who does worst", _worst(subject, federation)),
        ("Limits", _limits(subject, federation, lineage)),
        ("Lineage", _table(("what", "value"), ((f"`{name}`", f"`{value}`") for name, value in flatten(lineage)))),
    ]
    text = "\n\n".join([f"## {title}\n\n{body}" if title else body for title, body in sections]) + "\n"
    folder.mkdir(parents=True)
    (folder / "card.md").write_text(text, encoding="utf-8")
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    (folder / "card.html").write_text(_STYLE + html, encoding="utf-8")
    if picture.is_file():
        shutil.copyfile(picture, folder / "partition.png")
    return summary(subject)


def summary(subject: Subject) -> str:
    """Return the description of a version: its first line is what lists show; no table, MLflow's pages crowd them."""
    run, over = subject.run, ", and mean over seeds with 95 % interval" if len(subject.seeds) > 1 else ""
    accuracy = as_number(run.metrics.get(f"selected/{subject.view}/val/accuracy"))
    head = f"{run.label}, seed {run.seed}" + ("" if accuracy is None else f": {_percent(accuracy)} % on validation")
    lines = [
        f"- {name}: **{own}**" + (f"; {mean} ({interval})" if over else "")
        for name, own, mean, interval in _figures(subject)
    ]
    listed = "\n".join([f"In %, of the round chosen on validation{over}:", "", *lines])
    return "\n\n".join([head, _about(subject), listed, "The whole card: `card/card.md` among the model's files."])


def _summary(subject: Subject) -> str:
    return f"# {subject.model}: {subject.run.label}, seed {subject.run.seed}\n\n{_about(subject)}"


def _about(subject: Subject) -> str:
    config = subject.run.config
    addons = "".join(f" + {name}" for name in config.get("add", {}))
    kind = {
        "global": "One model for everybody: the server's, of the round its validation accuracy chose.",
        "personal": "A family of models, one per client, chosen by the column `client_id`; an unknown client gets the"
        " global model.",
    }[subject.view]
    return (
        f"{kind} Trained by `{config['method']}{addons}` on data set"
        f" `{config['dataset']['name']}` with {config['clients']['training']} clients; takes examples of shape"
        f" {' x '.join(map(str, config['input']['shape']))} in raw units, gives one of"
        f" {len(config['input']['class_names'])} classes."
    )


def _data(federation: Federation, lineage: Mapping[str, Any]) -> str:
    data = federation.dataset
    names = ", ".join(map(_literal, data.class_names[:_CLASSES])) + (", …" if data.num_classes > _CLASSES else "")
    sizes = {split: int(federation.sizes(split).sum()) for split in ("train", "val", "test")}
    rows = [
        ("source", f"`{data.name}`"),
        ("rows", f"{len(data):,}"),
        ("of them used", f"{sizes['train']:,} train, {sizes['val']:,} validation, {sizes['test']:,} test"),
        ("example", " x ".join(map(str, data.input_shape))),
        ("classes", f"{data.num_classes}: {names}"),
        ("content hash", f"`{lineage.get('dataset_hash', 'unknown')}`"),
    ]
    return _table(("what", "value"), rows)


def _clients(federation: Federation, config: Mapping[str, Any], partition_hash: str, has_picture: bool) -> str:
    sizes = federation.sizes("train")[: federation.num_clients]
    scheme = ", ".join(f"{key} {value}" for key, value in flatten(config["partition"]))
    rows = [
        ("clients that train", str(federation.num_clients)),
        ("clients never trained on", str(federation.num_unseen)),
        ("train examples per client", f"{sizes.min()} to {sizes.max()}, median {np.median(sizes):g}"),
        ("partition", scheme),
        ("content hash", f"`{partition_hash}`"),
    ]
    picture = "\n\n![examples by label and client](partition.png)" if has_picture else ""
    return _table(("what", "value"), rows) + picture


def _method(config: Mapping[str, Any]) -> str:
    parts = {"method": {"name": config["method"], **config["settings"]}, **config.get("add", {})}
    parts |= {"model": config["model"], "train": config["train"]}
    rows = [(f"`{part}`", f"`{key}`", f"`{value}`") for part, values in parts.items() for key, value in flatten(values)]
    return _table(("part", "parameter", "value"), rows)


def _results(subject: Subject) -> str:
    head = ("in %, round chosen on validation", "this version", "mean over seeds", "its 95 % interval")
    return _table(head, _figures(subject)) + f"\n\nSeeds: {', '.join(str(run.seed) for run in subject.seeds)}."


def _figures(subject: Subject) -> list[tuple[str, str, str, str]]:
    view, rows = subject.view, []
    for figure in _FIGURES[view]:
        name = f"selected/{view}/{figure}"
        values = [as_number(run.metrics.get(name)) for run in subject.seeds]
        known = [value for value in values if value is not None and math.isfinite(value)]
        own = as_number(subject.run.metrics.get(name))
        if own is None or len(known) < len(values):
            continue
        found = summarise(known)
        interval = "one seed" if found.low is None else f"{_percent(found.low)} to {_percent(found.high or 0.0)}"
        rows.append((f"`{view}/{figure}`", _percent(own), _percent(found.mean), interval))
    return rows


def _worst(subject: Subject, federation: Federation) -> str:
    from fedcore.engine.export import load_predictor
    from tasks.validation import client_accuracies

    fallback = load_predictor(subject.fallback.folder) if subject.fallback else None
    predictor = load_predictor(subject.run.folder)
    found = client_accuracies(predictor, federation, subject.view, "test", fallback)
    tests, trains, counts = federation.sizes("test"), federation.sizes("train"), federation.class_counts
    order = [int(c) for c in np.argsort(np.where(np.isnan(found), np.inf, found), kind="stable") if tests[c] > 0]
    names, rows = federation.dataset.class_names, []
    for client in order[:WORST]:
        most = int(counts[client].argmax())
        share = counts[client][most] / max(counts[client].sum(), 1)
        cells = (
            client,
            trains[client],
            int((counts[client] > 0).sum()),
            f"{_literal(names[most])} ({share:.0%})",
            tests[client],
        )
        rows.append((*map(str, cells), _percent(found[client])))
    head = ("client", "train examples", "classes", "most frequent class", "test examples", "test accuracy")
    # No interval: the usual ones hold for a client named beforehand, not for the lowest of many.
    text = (
        f"The {len(rows)} clients with the lowest test accuracy of this version, of {len(order)} that have examples."
        " They were chosen by that accuracy: the more were left out, the larger is the part of chance, and the more"
        " is to be expected on other examples of theirs."
    )
    return f"{text}\n\n{_table(head, rows)}"


def _limits(subject: Subject, federation: Federation, lineage: Mapping[str, Any]) -> str:
    tests = federation.sizes("test")[: federation.num_clients]
    lines = [
        "It speaks about clients like these: another population, or other skew, was not measured.",
        f"A client's accuracy rests on few examples ({tests.min()} to {tests.max()} test examples per client).",
        "Confidences are softmax outputs, not calibrated.",
        "Training gives no privacy guarantee; weights may reveal training data.",
    ]
    if len(subject.seeds) < 3:
        lines.append(f"{len(subject.seeds)} seed(s): little is known about what another seed would give.")
    if subject.view == "personal":
        lines.append("It holds the weights of every client: whoever has the file has all of them.")
        source = f"`{subject.fallback.label}`, seed {subject.fallback.seed}" if subject.fallback else "the same run"
        lines.append(f"A client it does not know is answered by the global model of {source}.")
    if f"selected/{subject.view}/{_NATURAL}" in subject.run.metrics:
        lines.append(
            "It was trained with outputs for virtual classes. Results count those as wrong, but for `accuracy_natural`;"
            " the registered model and the table of clients leave them out."
        )
    if federation.num_unseen == 0:
        lines.append("No client was kept unseen: how it does for new clients is not known.")
    if lineage.get("git_dirty") is not False:
        lines.append("The code was not that of a commit, so this version cannot be reproduced from git.")
    if lineage.get("clean") is False:
        lines.append(f"The run is marked: {lineage.get('why')}.")
    return "\n".join(f"- {line}" for line in lines)


def _literal(name: str) -> str:
    """Return a name that came with the data as markdown that shows just that: no link, image, tag or emphasis."""
    return re.sub(r"[\\`*_\[\]<>&!~]", r"\\\g<0>", " ".join(name.split()))


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
