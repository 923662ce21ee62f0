"""Step `partition`: a data set folder and the `partition` section of params.yaml -> client and split of every row."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.parameters import ParametersError, explain, read_config, run_step

if TYPE_CHECKING:
    import numpy as np

    from fedcore.data.dataset import Dataset
    from fedcore.data.partitions import PartitionTable

# The picture shows an even sample of the clients beyond the first, and writes counts into cells up to the second.
MAX_COLUMNS = 200
MAX_ANNOTATED = 30


def main() -> None:
    """Make the partition that params.yaml asks for, write it and its picture."""
    parser = argparse.ArgumentParser(prog="python -m tasks.partition", description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, metavar="DIR", help="data set folder")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npz", help="partition to write")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE.png", help="label-by-client heat map")
    arguments = parser.parse_args()

    from fedcore.config import ConfigError
    from fedcore.data import dataset as datasets
    from fedcore.data import partitions, statistics
    from tasks.files import atomic_path

    config = read_config()
    dataset = datasets.load(arguments.dataset)
    try:
        table = partitions.make(config.partition, dataset)
    except ConfigError as error:
        raise ParametersError(explain(error.problems)) from None
    counts = statistics.label_counts(table, dataset.labels, dataset.num_classes)
    # Both are written before either replaces what was there.
    with atomic_path(arguments.picture) as picture, atomic_path(arguments.out) as out:
        draw(dataset, table, counts, picture)
        partitions.save(table, out)
    sizes, distance = counts.sum(axis=1), statistics.label_distance(counts).mean()
    print(
        f"{title(table)}: {table.num_clients} clients, {table.num_unseen} unseen, {sizes.min()} to {sizes.max()}"
        f" examples, mean label distance {distance:.2f} -> {arguments.out}"
    )


def title(table: PartitionTable) -> str:
    """Return scheme, its main parameter, feature shift if any, seed and the first digits of the content hash."""
    scheme = json.loads(table.scheme)
    shown = [key for key in ("exponent", "sigma", "alpha", "shards", "classes", "share", "path") if key in scheme]
    shown += [key for key in ("rotation", "unseen_rotation", "noise") if scheme.get(key)] + ["seed"]
    return ", ".join([scheme["scheme"], *(f"{key} {scheme[key]}" for key in shown)]) + f" ({table.content_hash[:12]})"


def draw(dataset: Dataset, table: PartitionTable, counts: np.ndarray, path: Path) -> None:
    """Draw examples by label and client as a heat map; same table, same bytes.

    Parameters
    ----------
    counts : array [num_total, K] int
        Examples of each client by class.
    path : Path
        PNG file to write.
    """
    import matplotlib as mpl
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    shown = np.unique(np.linspace(0, table.num_total - 1, min(table.num_total, MAX_COLUMNS)).round().astype(int))
    cells = counts[shown].T
    num_classes = len(cells)
    # A reader's own matplotlib settings must not change the picture.
    with mpl.rc_context(mpl.rcParamsDefault):
        figure = Figure(figsize=(min(4 + 0.42 * len(shown), 16), min(2 + 0.36 * num_classes, 20)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        top = max(int(cells.max()), 1)
        # Counts span orders of magnitude; the square root keeps small ones visible.
        image = axes.imshow(cells, cmap="Blues", norm=PowerNorm(0.5, 0, top), aspect="auto", interpolation="nearest")
        if len(shown) <= MAX_ANNOTATED and num_classes <= MAX_ANNOTATED:
            for label, column in zip(*np.nonzero(cells), strict=True):
                value = int(cells[label, column])
                colour = "white" if value > 0.3 * top else "black"
                axes.text(column, label, str(value), ha="center", va="center", fontsize=7, color=colour)
        first_unseen = int(np.searchsorted(shown, table.num_clients))
        if first_unseen < len(shown):
            axes.axvline(first_unseen - 0.5, color="black", linestyle="--", linewidth=1)
            axes.text(first_unseen - 0.4, -0.6, "unseen", ha="left", va="bottom", fontsize=8)
        sample = "" if len(shown) == table.num_total else f" ({len(shown)} of {table.num_total}, evenly spaced)"
        axes.set_xlabel(f"client{sample}")
        axes.set_ylabel("label")
        if sample:
            axes.set_xticks([0, len(shown) - 1], [str(shown[0]), str(shown[-1])])
        else:
            axes.xaxis.set_major_locator(MaxNLocator(20, integer=True))
        if num_classes <= MAX_ANNOTATED:
            axes.set_yticks(range(num_classes), dataset.class_names)
        axes.set_title(f"{dataset.name}: {title(table)}", fontsize=10, pad=16)
        figure.colorbar(image, ax=axes, label="examples")
        figure.savefig(path, format="png", dpi=120, metadata={"Software": None})


if __name__ == "__main__":
    run_step(main)
