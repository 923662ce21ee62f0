"""Step `prepare`: the `dataset` section of params.yaml -> a data set folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.parameters import ParametersError, explain, read_config, run_step


def main() -> None:
    """Read the source that params.yaml names and write it as arrays."""
    parser = argparse.ArgumentParser(prog="python -m tasks.prepare", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="data set folder to write")
    arguments = parser.parse_args()

    from fedcore.config import ConfigError
    from fedcore.data import sources
    from fedcore.data.dataset import save
    from tasks.files import atomic_folder
    from tasks.progress import ProgressBar

    config = read_config()
    with atomic_folder(arguments.out) as folder:
        try:
            with ProgressBar() as show:
                dataset = sources.read(config.dataset, show, folder)
        except ConfigError as error:
            raise ParametersError(explain(error.problems)) from None
        save(dataset, folder)
    shape = " x ".join(map(str, dataset.input_shape))
    print(f"{dataset.name}: {len(dataset)} examples of shape {shape}, {dataset.num_classes} classes -> {arguments.out}")


if __name__ == "__main__":
    run_step(main)
