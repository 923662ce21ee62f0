"""Check ``params.yaml`` as a whole before any stage touches anything."""

from __future__ import annotations

import argparse

from tasks.files import write_json
from tasks.parameters import ParametersError, explain, read_config, run_step


def main() -> None:
    """Exit with one line per mistake, or write a file that says the parameters are fine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="file to write when all is well")
    arguments = parser.parse_args()
    config = read_config()
    from fedcore.compose import build_all
    from fedcore.config import ConfigError

    try:
        build_all(config)
    except ConfigError as error:
        raise ParametersError(explain(error.problems)) from None
    # The same bytes for every valid file, so that passing the check makes no later stage stale.
    write_json(arguments.out, {"params": "valid"})


if __name__ == "__main__":
    run_step(main)
