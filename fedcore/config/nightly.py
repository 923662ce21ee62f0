"""The sections of the nightly run: ``incoming`` data, their ``drift``, and whom to ``notify``."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedcore.config.sections import Count, NonNegative, Positive, Section

# The name of an environment variable or of a Prefect Secret block, never the secret itself.
SecretName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
# What the project keeps itself, from its root; a file that arrives is moved, so none of these may be taken for one.
_OWN = (
    *(f"data/{name}" for name in ("accepted", "datasets", "partitions", "plans", "pseudo", "raw")),
    *("data/statistics", "data/virtual", "mlruns", "reports", "runs"),
    *("benchmarks", "docs", "experiments", "fedcore", "flows", "tasks", "tests"),
    *(".cache", ".checkpoints", ".dvc", ".experiments", ".git", ".prefect", ".venv"),
)


class Incoming(Section):
    """Where new examples arrive, and what becomes of them."""

    folder: str = "data/incoming"  # files of the data set's own kind are put here, by whoever has them
    archive: str = "data/archive"  # an accepted file is moved here, as it came
    rejected: str = "data/rejected"  # a file that is wrong is set aside here, with a line that says why
    duplicates: Literal["leave_out", "keep"] = "leave_out"  # examples that are there already
    quiet_seconds: NonNegative = 60.0  # a file that changed later than this may still be being written: it waits
    # A folder that is tracked with `dvc add` and grows elsewhere: it is pulled, and what is new in it taken in.
    pull: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = {key: getattr(self, key) for key in ("folder", "archive", "rejected", "pull")}
        places = {key: Path(os.path.realpath(value)) for key, value in given.items() if value is not None}
        for one, other in combinations(places, 2):
            if places[one].is_relative_to(places[other]) or places[other].is_relative_to(places[one]):
                raise ValueError(
                    f"{one} '{given[one]}' and {other} '{given[other]}' are one folder, or one lies in the other;"
                    " expected folders apart, such as data/incoming, data/archive and data/rejected"
                )
        for key in ("folder", "archive", "rejected"):
            for own in _OWN:
                kept = Path(os.path.realpath(own))
                if kept.is_relative_to(places[key]) or places[key].is_relative_to(kept):
                    raise ValueError(
                        f"{key} '{given[key]}' is, holds or lies in {own}, which the project keeps itself;"
                        f" expected a folder for this alone, such as {type(self).model_fields[key].default}"
                    )
        return self

    def holds(self, path: str) -> bool:
        """Return whether `path` lies in the folder from which everything is moved away."""
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.folder))


class Drift(Section):
    """When new examples count as different from those that the champion was trained on."""

    label_distance: Annotated[float, Field(ge=0, le=1)] = 0.2  # total variation between the shares of the classes
    stability_index: Positive = 0.25  # population stability index of a feature over its bins
    p_value: Annotated[float, Field(gt=0, lt=1)] = 0.01  # of the test for chance, divided by the number of tests
    min_examples: Count = 20  # a client with fewer new examples is not judged by itself
    bins: Annotated[int, Field(ge=2, le=100)] = 10  # per feature, equally full on the champion's data
    on_drift: Literal["warn", "stop"] = "warn"  # stop: train nothing that night


class Notify(Section):
    """Who hears of a night; the log and the report always do."""

    when: Literal["always", "problems"] = "problems"
    webhook: SecretName | None = None  # names where the URL is that gets the night as JSON
    email: SecretName | None = None  # names where smtp://user:password@host:port?from=a@x&to=b@x is
