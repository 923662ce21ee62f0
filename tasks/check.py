"""Check ``params.yaml`` as a whole before any stage touches anything."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tasks.files import write_json
from tasks.parameters import ParametersError, explain, read_config, run_step

if TYPE_CHECKING:
    from fedcore.compose import Composition
    from fedcore.config import Config


def main() -> None:
    """Exit with one line per mistake, or write a file that says the parameters are fine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="file to write when all is well")
    arguments = parser.parse_args()
    config = read_config()
    from fedcore.compose import build_all
    from fedcore.config import ConfigError

    try:
        built = build_all(config)
    except ConfigError as error:
        raise ParametersError(explain(error.problems)) from None
    for label, (composition, _) in built.items():
        for line in overruled(config, label, composition):
            print(f"note: {line}", file=sys.stderr)
    # The same bytes for every valid file, so that passing the check makes no later stage stale.
    write_json(arguments.out, {"params": "valid"})


def overruled(config: Config, label: str, composition: Composition) -> list[str]:
    """Return what a line of ``methods`` does not take from the section ``train``, since its preset says otherwise."""
    lines = []
    for key, value in composition.preset_train.items():
        said = getattr(config.train, key)
        if key in config.train.model_fields_set and said != value and key not in config.methods[label].train:
            line = f"methods.{label}: its preset sets train.{key} to {value}, not {said}"
            lines.append(f"{line}; methods.{label}.train.{key} would win")
    return lines


if __name__ == "__main__":
    run_step(main)
