"""Drift: do the examples that arrived since the champion look like those it was trained on, client by client?

A difference counts when it is large (a distance over its threshold) and not chance (the p-value of a test of the counts
below `drift.p_value` divided by the number of tests).
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks import data_statistics
from tasks.data_statistics import Statistics
from tasks.files import write_json
from tasks.parameters import read_config, run_step

if TYPE_CHECKING:
    from fedcore import config as settings
    from fedcore.data.dataset import Dataset
    from fedcore.data.partitions import PartitionTable

EVERYBODY = "all clients"
_EXPECTED = 5  # the least expected count with which the chi-squared distribution is taken to hold (Cochran, 1954)


@dataclass(frozen=True)
class Change:
    """How far one client's new examples are from those it had, or all clients' together.

    Attributes
    ----------
    client : str
    before, new : int
        Examples on the champion's side and new ones.
    label_distance : float, 0 to 1
        Total variation between the shares of the classes.
    feature, stability_index : str, float >= 0
        The feature that changed most, and its population stability index; "" and 0 without features.
    drifted : list of str
        What changed by more than the thresholds and more than by chance: ``labels``, and names of features.
    judged : bool
        False when there are too few examples to say.
    """

    client: str
    before: int
    new: int
    label_distance: float
    feature: str
    stability_index: float
    drifted: list[str]
    judged: bool


@dataclass(frozen=True)
class Report:
    """The drift of a night.

    Attributes
    ----------
    note : str
        What was compared with what, or why nothing was.
    changes : list of Change
        All clients together first, then those with most drift; only clients with new examples.
    new_clients : list of str
        Those the champion's data did not have.
    """

    note: str
    changes: list[Change]
    new_clients: list[str]

    @property
    def drifted(self) -> list[str]:
        """One line for each client, or all together, whose data drifted."""
        return [f"{change.client}: {', '.join(change.drifted)}" for change in self.changes if change.drifted]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "drifted": self.drifted}


def measure(data: Dataset, table: PartitionTable, champion: Statistics, drift: settings.Drift) -> Report:
    """Compare the rows that came after the champion's with its own."""
    grown = data_statistics.prefix_digest(data, champion.rows) == champion.digest
    first = champion.rows if grown else 0
    rows = np.arange(first, len(data))
    names, _ = data_statistics.features(data, rows[:0])
    if names != champion.features or data.num_classes != champion.labels.shape[1]:
        return Report("the champion was trained on examples of another shape or other classes; not compared", [], [])
    new = data_statistics.count_rows(data, table, rows, champion.edges)
    if not new.labels.sum():
        return Report("no new examples since the champion's data", [], [])
    changes, new_clients = compare(champion, new, drift)
    what = f"{int(new.labels.sum()):,} new examples" if grown else "all examples (its own are not among them)"
    return Report(f"{what} against the champion's {int(champion.labels.sum()):,}", changes, new_clients)


def compare(old: Statistics, new: Statistics, drift: settings.Drift) -> tuple[list[Change], list[str]]:
    """Return what changed, for all clients together and for each, and the names of new clients."""
    place = {name: number for number, name in enumerate(old.clients)}
    held = [(name, number) for number, name in enumerate(new.clients) if new.labels[number].sum()]
    pairs = [(EVERYBODY, old.labels.sum(0), new.labels.sum(0), old.binned.sum(0), new.binned.sum(0))]
    for name, number in held:
        if name in place:
            was = place[name]
            pairs.append((name, old.labels[was], new.labels[number], old.binned[was], new.binned[number]))
    enough = [min(before.sum(), now.sum()) >= drift.min_examples for _, before, now, _, _ in pairs]
    tests = max(sum(enough) * (1 + len(old.features)), 1)
    changes = [
        _change(pair, old.features, drift, drift.p_value / tests, judged)
        for pair, judged in zip(pairs, enough, strict=True)
    ]
    ordered = sorted(changes[1:], key=lambda change: (-len(change.drifted), -change.label_distance, change.client))
    return [changes[0], *ordered], [name for name, _ in held if name not in place]


def _change(
    pair: tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    features: tuple[str, ...],
    drift: settings.Drift,
    p_value: float,
    judged: bool,
) -> Change:
    name, before, now, before_bins, now_bins = pair
    distance = label_distance(before, now)
    indices = [stability_index(*bins) for bins in zip(before_bins, now_bins, strict=True)]
    worst = int(np.argmax(indices)) if indices else -1
    drifted = []
    if judged and distance > drift.label_distance and chance(before, now) < p_value:
        drifted.append("labels")
    for number, index in enumerate(indices):
        if judged and index > drift.stability_index and chance(before_bins[number], now_bins[number]) < p_value:
            drifted.append(features[number])
    return Change(
        client=name,
        before=int(before.sum()),
        new=int(now.sum()),
        label_distance=round(distance, 6),
        feature=features[worst] if indices else "",
        stability_index=round(float(indices[worst]), 6) if indices else 0.0,
        drifted=drifted,
        judged=bool(judged),
    )


def label_distance(before: np.ndarray, now: np.ndarray) -> float:
    """Return the total variation between two distributions given as counts [K]; 0 if one of them is empty."""
    if not before.sum() or not now.sum():
        return 0.0
    return float(0.5 * np.abs(before / before.sum() - now / now.sum()).sum())


def stability_index(before: np.ndarray, now: np.ndarray) -> float:
    """Return the population stability index of two histograms [B], sum of (q - p) log(q / p).

    Half an example is added to every bin, so that an empty one does not make it infinite.
    """
    p, q = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts)) for counts in (before, now))
    return float(((q - p) * np.log(q / p)).sum())


def chance(before: np.ndarray, now: np.ndarray) -> float:
    """Return the p-value of a test that two rows of counts [K] come from one distribution.

    Where every count is expected to be 5 or more that is Pearson's chi-squared test. Rare classes and thin bins would
    make its p-values far too small. With such columns two tests are made, and the smaller p-value counts twice:
    Pearson's after the rarest columns were merged into one, which sees a change of many columns, and, as a merged
    column may hide a change within, Fisher's exact test of the column that changed most against all others (twice the
    smaller tail, times the number of columns).
    """
    from scipy.stats import chi2_contingency, hypergeom  # type: ignore[import-untyped]

    table = np.stack([before, now])
    table = table[:, table.sum(axis=0) > 0]
    if table.shape[1] < 2 or (table.sum(axis=1) == 0).any():
        return 1.0
    merged = _merged(table)
    together = float(chi2_contingency(merged, correction=False).pvalue) if merged.shape[1] > 1 else 1.0
    if merged.shape == table.shape:
        return together
    columns, drawn, count = table.sum(axis=0), table[1], int(table[1].sum())
    tails = [
        hypergeom.cdf(drawn, table.sum(), columns, count),
        hypergeom.sf(drawn - 1, table.sum(), columns, count),
    ]
    return float(min(1.0, 2 * together, 2 * 2 * np.min(tails) * len(columns)))


def _merged(table: np.ndarray) -> np.ndarray:
    """Return a table [2, K] with its rarest columns as one, as few of them as let every count be expected often enough.

    Only sums decide, not how they are divided between the rows, so the choice favours no result of the test.
    """
    table = table[:, np.argsort(table.sum(axis=0), kind="stable")]
    expected = table.sum(axis=0) * table.sum(axis=1).min() / table.sum()
    thin = int((expected < _EXPECTED).sum())
    if not thin:
        return table
    rare = max(thin, int((expected.cumsum() < _EXPECTED).sum()) + 1)
    return np.column_stack([table[:, :rare].sum(axis=1), table[:, rare:]])


def champion_files(root: Path, experiment: str) -> list[Path]:
    """Return where the statistics of the champions' data are kept, those of the personal model first."""
    from mlflow.exceptions import MlflowException

    from tasks.tracking_store import open_client

    client, found = open_client(root), []
    for kind in ("personal", "global"):
        try:
            tags = client.get_model_version_by_alias(f"{experiment}-{kind}", "champion").tags
        except MlflowException:
            continue
        path = data_statistics.file_of(tags.get("lineage.dataset_hash", ""), tags.get("lineage.partition_hash", ""))
        if path not in found:
            found.append(path)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tasks.data_drift", description=__doc__.split("\n\n")[0])
    parser.add_argument("--dataset", type=Path, help="folder of the prepared data set; default: data/datasets/<name>")
    parser.add_argument("--partition", type=Path, help="partition file; default: data/partitions/<experiment>.npz")
    parser.add_argument("--out", type=Path, default=Path("reports/drift.json"))
    arguments = parser.parse_args()
    from fedcore.data import dataset, partitions
    from tasks.tracking_store import readable_errors

    config = read_config()
    data = dataset.load(arguments.dataset or Path("data/datasets") / config.dataset.name)
    table = partitions.load(arguments.partition or Path("data/partitions") / f"{config.experiment}.npz")
    # Today's are kept for the nights on which today's version is champion.
    own = data_statistics.file_of(data.content_hash, table.content_hash)
    if not own.exists():
        data_statistics.save(data_statistics.count(data, table, config.drift.bins), own)
    with readable_errors():
        paths = champion_files(Path.cwd(), config.experiment)
    there = [path for path in paths if path.exists()]
    if there:
        report = measure(data, table, data_statistics.load(there[0]), config.drift)
    elif paths:
        report = Report(f"there are no statistics of the champion's data ({paths[0]}); not compared", [], [])
    else:
        report = Report("there is no champion to compare with", [], [])
    write_json(arguments.out, report.as_dict())
    print(report.note)
    for line in report.drifted:
        print(f"drifted  {line}")


if __name__ == "__main__":
    run_step(main)
