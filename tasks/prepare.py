"""Step `prepare`: the `dataset` section of params.yaml, and what was taken in since, -> a data set folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.parameters import ParametersError, explain, read_config, run_step


def main() -> None:
    """Read the source that params.yaml names, add the accepted batches, and write all as arrays."""
    parser = argparse.ArgumentParser(prog="python -m tasks.prepare", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="data set folder to write")
    arguments = parser.parse_args()

    from fedcore.config import ConfigError
    from fedcore.data import accumulated, sources
    from fedcore.data.dataset import save
    from tasks.accepted import Ledger
    from tasks.files import atomic_folder
    from tasks.progress import ProgressBar

    config = read_config()
    with atomic_folder(arguments.out) as folder:
        try:
            with ProgressBar() as show:
                dataset = sources.read(config.dataset, show, folder)
        except ConfigError as error:
            raise ParametersError(explain(error.problems)) from None
        ledger = Ledger(config.dataset)
        ledger.check_base(dataset)
        batches = ledger.read()
        dataset = accumulated.append(dataset, batches)
        save(dataset, folder)
    shape = " x ".join(map(str, dataset.input_shape))
    grown = f" ({len(batches)} batches taken in)" if batches else ""
    print(
        f"{dataset.name}: {len(dataset)} examples{grown} of shape {shape}, {dataset.num_classes} classes"
        f" -> {arguments.out}"
    )


if __name__ == "__main__":
    run_step(main)
