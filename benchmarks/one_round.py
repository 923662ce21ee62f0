"""The steps from a prepared data set to a trained round, in one process: starting each anew would cost more.

Run by `benchmarks.sources` in a folder with ``params.yaml`` and the data set in ``set``.
"""

from __future__ import annotations

import sys

from tasks import partition, plan, pseudo, train, virtual

SET, TABLE = ("--dataset", "set"), ("--partition", "table.npz")
STEPS = (
    (partition.main, (*SET, "--out", "table.npz", "--picture", "table.png")),
    (virtual.main, (*SET, "--out", "virtual")),
    (pseudo.main, (*SET, *TABLE, "--out", "pseudo")),
    (plan.main, (*SET, *TABLE, "--virtual", "virtual", "--pseudo", "pseudo", "--out", "plans")),
    (train.main, ("--plan", "plans/trial.json", "--seed", "0", *SET, *TABLE, "--out", "run", "--no-tracking")),
)


def main() -> None:
    """Run the steps one after the other."""
    for step, arguments in STEPS:
        sys.argv = [step.__module__, *arguments]
        step()


if __name__ == "__main__":
    main()
