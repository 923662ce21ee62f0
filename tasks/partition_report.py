"""Compare partitions side by side on one page that loads nothing: sizes, labels of every client, distances."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.page_template import page_template
from tasks.parameters import ParametersError, explain, read_config, run_step

if TYPE_CHECKING:
    import numpy as np

    from fedcore import config as settings
    from fedcore.data.dataset import Dataset
    from fedcore.data.partitions import PartitionTable

CLIENTS_SHOWN = 40  # columns of a heat map; more clients than these are an even sample


@dataclass(frozen=True)
class Column:
    """One partition of the page.

    Attributes
    ----------
    label : str
        Where it comes from: the experiment of a file, or the text of ``--partition``.
    counts : array [num_total, K] int
        Examples of each client by class.
    """

    label: str
    dataset: Dataset
    table: PartitionTable
    counts: np.ndarray


def main() -> None:
    """Command line: make every partition and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tasks.partition_report", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[Path("params.yaml")], metavar="PARAMS.yaml")
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        metavar="'{alpha: 1.0}'",
        help="another partition of each file's data: keys to change in its section, or a section with a scheme",
    )
    parser.add_argument("--out", type=Path, default=Path("reports/partitions.html"))
    arguments = parser.parse_args()
    from tasks.files import atomic_write_text

    columns = list(make(arguments.files, arguments.partition))
    if len(columns) == 1:
        print("one partition; compare it with others: --partition '{scheme: iid}', or more parameter files")
    page = render(columns)
    atomic_write_text(arguments.out, page)
    for column in columns:
        print(f"{column.label}: {_facts_line(column)}")
    print(f"-> {arguments.out} ({len(columns)} partitions, {len(page) / 1e6:.1f} MB, opens offline)")


def make(files: Sequence[Path], changes: Sequence[str]) -> Iterator[Column]:
    """Make the partition of every file and, of each, the changed ones; a data set is read once.

    Parameters
    ----------
    files : paths of parameter files
    changes : YAML mappings, as ``--partition`` takes them

    Raises
    ------
    ParametersError
        One line with file, key and what is valid.
    """
    from fedcore.config import ConfigError
    from fedcore.data import sources

    read: dict[str, Dataset] = {}
    for path in files:
        config = read_config(path)
        source = config.dataset.model_dump_json()
        try:
            if source not in read:
                read[source] = sources.read(config.dataset, _show)
            yield _column(config.experiment, config.partition, read[source])
        except ConfigError as error:
            raise ParametersError(explain(error.problems, path)) from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        for text in changes:
            label = f"{config.experiment} {text}" if len(files) > 1 else text
            yield _changed(label, text, config, read[source])


def _changed(label: str, text: str, config: settings.Config, dataset: Dataset) -> Column:
    """Return the partition of `config` with the keys that `text` sets."""
    from fedcore.config import ConfigError, validate
    from tasks.parameters import parse

    keys = parse(text, f"--partition {text!r}")
    if not isinstance(keys, dict):
        raise ParametersError(f"--partition {text!r}: expected a mapping such as '{{alpha: 1.0}}'")
    before = config.partition.model_dump()
    if "scheme" in keys:
        # Another scheme: what all schemes have stays, the keys of the old one go.
        kept = set(type(config.partition).model_fields) & _keys_of(str(keys["scheme"]))
        before = {key: value for key, value in before.items() if key in kept}
    try:
        changed = validate({**config.model_dump(exclude_unset=True), "partition": {**before, **keys}})
        return _column(label, changed.partition, dataset)
    except ConfigError as error:
        lines = [f"--partition {text!r}: {problem}" for problem in error.problems]
        raise ParametersError("\n".join(lines)) from None


def _keys_of(scheme: str) -> set[str]:
    """Return the keys of a scheme; none of one that does not exist, which the validation then names."""
    import typing

    from fedcore.config import Partition

    for section in typing.get_args(typing.get_args(Partition)[0]):
        if scheme in typing.get_args(section.model_fields["scheme"].annotation):
            return set(section.model_fields)
    return set()


def _column(label: str, section: settings.Partition, dataset: Dataset) -> Column:
    from fedcore.data import partitions, statistics

    table = partitions.make(section, dataset)
    return Column(label, dataset, table, statistics.label_counts(table, dataset.labels, dataset.num_classes))


def render(columns: Sequence[Column]) -> str:
    """Return the page: a table of all partitions, then a card for each."""
    from markupsafe import Markup

    cards = [{**_card(column), "figure": Markup(_figure(column))} for column in columns]
    return page_template("partition_report.html.jinja").render(cards=cards)


def _card(column: Column) -> dict[str, Any]:
    from fedcore.data import statistics
    from tasks.partition_picture import MAIN_KEYS

    scheme = json.loads(column.table.scheme)
    # The keys that make a scheme what it is first, then what differs from doing nothing.
    shown = [key for key in (*MAIN_KEYS, "prior") if key in scheme]
    shown += [key for key in ("rotation", "unseen_rotation", "noise") if scheme.get(key)]
    shown += ["keep"] if scheme.get("keep", 1) != 1 else []
    shown += ["seed"] if scheme["seed"] else []
    return {
        "label": column.label,
        "dataset": column.dataset.name,
        "scheme": scheme["scheme"],
        "settings": ", ".join(f"{key} {scheme[key]}" for key in shown),
        "classes": column.dataset.num_classes,
        "hash": column.table.content_hash[:12],
        "hidden": max(0, column.table.num_total - len(_shown(column.table))),
        **statistics.summary(column.table, column.counts),
    }


def _shown(table: PartitionTable) -> list[int]:
    import numpy as np

    number = min(table.num_total, CLIENTS_SHOWN)
    return [int(c) for c in np.unique(np.linspace(0, table.num_total - 1, number).round())]


def _figure(column: Column) -> str:
    from fedcore.data import statistics
    from tasks.heat_map import heat_map

    clients = _shown(column.table)
    distances = statistics.earth_movers_distance(column.counts)[clients].tolist()
    title = f"{column.label}: examples by label and client"
    return heat_map(column.counts[clients].T.tolist(), column.dataset.class_names, clients, title, distances)


def _facts_line(column: Column) -> str:
    from fedcore.data import statistics

    facts = statistics.summary(column.table, column.counts)
    sizes, classes, distance = (facts[key] for key in ("client_examples", "client_classes", "earth_movers_distance"))
    return (
        f"{json.loads(column.table.scheme)['scheme']}, {column.table.num_total:,} clients, {sizes['min']:,} to"
        f" {sizes['max']:,} examples, {classes['mean']:.1f} of {column.dataset.num_classes} classes,"
        f" distance {distance['mean']:.2f}"
    )


def _show(done: int, total: int) -> None:
    print(f"decoded {done:,} of {total:,} images", flush=True)


if __name__ == "__main__":
    run_step(main)
