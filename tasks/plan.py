"""Resolve every line of ``methods`` against the data, refuse what cannot work, and write one plan per method.

A plan holds the method's resolved settings and the hashes of the files it is written in: a method's training
stages depend on its plan alone, so a change to one method makes no other stale.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from tasks.files import atomic_folder, write_json
from tasks.parameters import ParametersError, explain, read_config, run_step


def main() -> None:
    """Write ``<out>/<label>.json`` for every method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--partition", type=Path, required=True, help="partition file")
    parser.add_argument("--virtual", type=Path, required=True, help="folder of the virtual data")
    parser.add_argument("--pseudo", type=Path, required=True, help="folder of the pseudo data")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameters other than params.yaml")
    arguments = parser.parse_args()
    config = read_config(arguments.params)
    import dataclasses

    from fedcore import discovery, models
    from fedcore.compose import build_all
    from fedcore.config import ConfigError
    from fedcore.data import dataset, partitions, resources
    from fedcore.data.federation import Federation
    from fedcore.engine.checks import check_training

    try:
        built = build_all(config)
    except ConfigError as error:
        raise ParametersError(explain(error.problems, arguments.params)) from None
    data, table = dataset.load(arguments.dataset), partitions.load(arguments.partition)
    federation = Federation(data, table)
    folders = {"virtual": arguments.virtual, "pseudo": arguments.pseudo}
    hashes = {name: found for name, path in folders.items() if (found := resources.content_hash(path))}
    with atomic_folder(arguments.out) as folder:
        for label, (composition, train) in built.items():
            net = models.build(config.model, data.input_shape, composition.num_outputs(data.num_classes), seed=0)
            check_training(label, composition, net, train, federation, frozenset(hashes))
            held = {name: resources.load_targets(folders[name]) for name in composition.needs}
            try:
                composition.check_resources(held, data.num_classes)
            except ValueError as error:
                raise ValueError(f"methods.{label}: {error}") from None
            parts = [composition.method, *composition.addons.values()]
            files = sorted({discovery.source_file(type(part)) for part in parts})
            plan = {
                "experiment": config.experiment,
                "label": label,
                "method": composition.name,
                "settings": dataclasses.asdict(composition.method),
                "add": {name: dataclasses.asdict(addon) for name, addon in composition.addons.items()},
                "presets": dict(composition.presets),
                "train": train.model_dump(),
                "model": config.model.model_dump(),
                "resources": {
                    name: {"folder": folders[name].as_posix(), "hash": hashes[name]}
                    for name in sorted(composition.needs)
                },
                # With the partition's scheme and the seed, all it takes to write this run's params.yaml again.
                "params": {
                    "dataset": config.dataset.model_dump(mode="json"),
                    "method": config.methods[label].model_dump(mode="json", exclude_unset=True),
                    **{
                        name: section.model_dump(mode="json")
                        for name in sorted(composition.needs)
                        if (section := getattr(config, name)) is not None
                    },
                },
                "sources": {f"{f.parent.name}/{f.name}": hashlib.sha256(f.read_bytes()).hexdigest() for f in files},
            }
            write_json(folder / f"{label}.json", plan)


if __name__ == "__main__":
    run_step(main)
