"""Step `partition`: a data set folder and the `partition` section of params.yaml -> client and split of every row."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.parameters import explained, read_config, run_step

if TYPE_CHECKING:
    import numpy as np

    from fedcore.data.partitions import PartitionTable


def main() -> None:
    """Make the partition that params.yaml asks for; write it, its picture and its statistics."""
    parser = argparse.ArgumentParser(prog="python -m tasks.partition", description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, metavar="DIR", help="data set folder")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npz", help="partition to write")
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE.png", help="sizes, heat map, distances")
    parser.add_argument("--statistics", type=Path, metavar="FILE.json", help="the partition in a few figures")
    parser.add_argument("--clients", type=Path, metavar="FILE.csv", help="sizes, classes, distance of every client")
    arguments = parser.parse_args()

    from fedcore.data import dataset as datasets
    from fedcore.data import partitions, statistics
    from tasks.files import atomic_path, to_json
    from tasks.partition_picture import draw, title

    config = read_config()
    dataset = datasets.load(arguments.dataset)
    with explained():
        table = partitions.make(config.partition, dataset)
    counts = statistics.label_counts(table, dataset.labels, dataset.num_classes)
    facts = statistics.summary(table, counts)
    # All are written before any replaces what was there.
    with ExitStack() as stack:
        draw(dataset, table, counts, stack.enter_context(atomic_path(arguments.picture)))
        partitions.save(table, stack.enter_context(atomic_path(arguments.out)))
        if arguments.statistics:
            text = to_json({"content_hash": table.content_hash, **facts})
            stack.enter_context(atomic_path(arguments.statistics)).write_text(text)
        if arguments.clients:
            write_clients(table, counts, stack.enter_context(atomic_path(arguments.clients)))
    sizes, distance = facts["client_examples"], facts["earth_movers_distance"]
    print(
        f"{title(table)}: {table.num_clients:,} clients, {table.num_unseen:,} unseen, {sizes['min']:,} to"
        f" {sizes['max']:,} examples, earth mover's distance {distance['mean']:.2f} -> {arguments.out}"
    )


def write_clients(table: PartitionTable, counts: np.ndarray, path: Path) -> None:
    """Write a row per client: id, whether it is unseen, examples by split, classes, earth mover's distance.

    Parameters
    ----------
    counts : array [num_total, K] int
        Examples of each client by class.
    path : Path
        CSV file to write.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    from fedcore.data import statistics

    train, validation, test = statistics.split_sizes(table).T
    client = np.arange(table.num_total)
    columns = {
        "client": client,
        "unseen": (client >= table.num_clients).astype(np.int64),
        "train": train,
        "validation": validation,
        "test": test,
        "classes": np.count_nonzero(counts, axis=1),
        "earth_movers_distance": statistics.earth_movers_distance(counts).round(6),
    }
    csv.write_csv(pa.table(columns), path)


if __name__ == "__main__":
    run_step(main)
