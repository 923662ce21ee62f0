"""What every section of ``params.yaml`` is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Base of every section: immutable, no unknown keys, no NaN, no silent conversion of text to numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
# Of a layer: more is a slip of the hand, and would end as a lack of memory that names no key.
Width = Annotated[int, Field(ge=1, le=1_000_000)]
# Single precision holds no product of a much larger one.
LearningRate = Annotated[float, Field(gt=0, le=1e6)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Label = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
