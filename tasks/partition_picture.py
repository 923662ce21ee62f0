"""A partition as a picture: client sizes, examples by label and client, and how far each client's labels are off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from fedcore.data.dataset import Dataset
    from fedcore.data.partitions import PartitionTable

# The picture shows an even sample of the clients beyond the first, and writes counts into cells up to the second.
MAX_COLUMNS = 200
MAX_ANNOTATED = 30
MAIN_KEYS = ("exponent", "sigma", "alpha", "shards", "classes", "share", "path")
_ROW = 0.36  # inches of a label's row
_BAND = 0.85  # inches of the bars above and below


def title(table: PartitionTable) -> str:
    """Return scheme, its main parameter, feature shift if any, seed and the first digits of the content hash."""
    scheme = json.loads(table.scheme)
    shown = [key for key in MAIN_KEYS if key in scheme]
    shown += [key for key in ("rotation", "unseen_rotation", "noise") if scheme.get(key)] + ["seed"]
    return ", ".join([scheme["scheme"], *(f"{key} {scheme[key]}" for key in shown)]) + f" ({table.content_hash[:12]})"


def draw(dataset: Dataset, table: PartitionTable, counts: np.ndarray, path: Path) -> None:
    """Draw sizes, a heat map of examples by label and client, and distances; same table, same bytes.

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
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    from fedcore.data import statistics

    shown = np.unique(np.linspace(0, table.num_total - 1, min(table.num_total, MAX_COLUMNS)).round().astype(int))
    distance = statistics.earth_movers_distance(counts)
    num_classes = counts.shape[1]
    rows = min(_ROW * num_classes, 18)
    width = min(4.6 + 0.42 * len(shown), 16)
    # A reader's own matplotlib settings must not change the picture.
    with mpl.rc_context(mpl.rcParamsDefault):
        height = rows + 2 * _BAND + 1.6
        below = 0.2 / height  # for the line of text at the bottom
        layout = ConstrainedLayoutEngine(rect=(0, below, 1, 1 - below))
        figure = Figure(figsize=(width, height), layout=layout)
        FigureCanvasAgg(figure)
        top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=[_BAND, rows, _BAND])
        _bars(top, counts[shown].sum(axis=1), "examples", "#5b6b7d")
        image = _heat_map(middle, counts[shown].T, dataset.class_names)
        _bars(bottom, np.nan_to_num(distance[shown]), "distance", "#b4552d")
        bottom.axhline(np.nanmean(distance), color="black", linewidth=0.8, linestyle=":")
        bottom.set_ylim(0, 2)
        first_unseen = int(np.searchsorted(shown, table.num_clients))
        if first_unseen < len(shown):
            for axes in (top, middle, bottom):
                axes.axvline(first_unseen - 0.5, color="black", linestyle="--", linewidth=1)
            top.text(first_unseen - 0.4, 1.02, "unseen", transform=top.get_xaxis_transform(), fontsize=8)
        sample = "" if len(shown) == table.num_total else f" ({len(shown)} of {table.num_total:,}, evenly spaced)"
        bottom.set_xlabel(f"client{sample}")
        if sample:
            bottom.set_xticks([0, len(shown) - 1], [str(shown[0]), str(shown[-1])])
        else:
            bottom.xaxis.set_major_locator(MaxNLocator(20, integer=True))
        figure.suptitle(f"{dataset.name}: {title(table)}", fontsize=10)
        figure.colorbar(image, ax=middle, label="examples")
        mean, most = np.nanmean(distance), np.nanmax(distance)
        note = f"earth mover's distance of a client's labels to all labels: mean {mean:.2f} (dotted), most {most:.2f}"
        figure.text(0.01, 0.005, note, fontsize=8, color="#444444", va="bottom")
        figure.savefig(path, format="png", dpi=120, metadata={"Software": None})


def _bars(axes: Any, values: np.ndarray, label: str, colour: str) -> None:
    axes.bar(range(len(values)), values, width=1.0 if len(values) > MAX_ANNOTATED else 0.85, color=colour)
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", bottom=False)


def _heat_map(axes: Any, cells: np.ndarray, class_names: tuple[str, ...]) -> Any:
    import numpy as np
    from matplotlib.colors import PowerNorm

    num_classes, columns = cells.shape
    top = max(int(cells.max()), 1)
    # Counts span orders of magnitude; the square root keeps small ones visible.
    image = axes.imshow(cells, cmap="Blues", norm=PowerNorm(0.5, 0, top), aspect="auto", interpolation="nearest")
    if columns <= MAX_ANNOTATED and num_classes <= MAX_ANNOTATED:
        for label, column in zip(*np.nonzero(cells), strict=True):
            value = int(cells[label, column])
            colour = "white" if value > 0.3 * top else "black"
            axes.text(column, label, str(value), ha="center", va="center", fontsize=7, color=colour)
    axes.set_ylabel("label")
    if num_classes <= MAX_ANNOTATED:
        axes.set_yticks(range(num_classes), class_names)
    axes.tick_params(axis="x", bottom=False)
    return image
