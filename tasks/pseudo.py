"""Make the pseudo data of FedBR: means of clients' training examples, with uniform soft labels."""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.files import atomic_folder, write_json
from tasks.parameters import read_config, run_step


def main() -> None:
    """Write the folder; without a section ``pseudo`` one that says so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the prepared data set")
    parser.add_argument("--partition", type=Path, required=True, help="partition file")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    section = read_config().pseudo
    with atomic_folder(arguments.out) as folder:
        if section is None:
            write_json(folder / "meta.json", {"generator": None})
            return
        from fedcore.data import dataset, partitions, pseudo, resources
        from fedcore.data.federation import Federation

        federation = Federation(dataset.load(arguments.dataset), partitions.load(arguments.partition))
        make = {"rsm": pseudo.rsm, "rsm_balanced": pseudo.rsm_balanced}[section.generator]
        inputs, targets = make(federation, section.rows, section.seed, section.examples)
        resources.save(folder, inputs, targets, section.model_dump())
    print(f"{section.generator}, seed {section.seed}: {len(inputs)} rows of pseudo data -> {arguments.out}")


if __name__ == "__main__":
    run_step(main)
