"""The ``gate`` section: what a challenger must show before it becomes champion."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedcore.config.sections import Count, Fraction, Section

Difference = Annotated[float, Field(gt=-1, lt=1)]
Metric = Literal["accuracy", "client_mean"]


class Gate(Section):
    """The rule of promotion. All of it looks at the validation split alone, at the same examples for both versions.

    Differences are challenger minus champion, in accuracy (0 to 1), paired by client and by seed.
    """

    # How clients count in the accuracy of a kind of model: by their examples, or all alike.
    global_metric: Metric = "accuracy"
    personal_metric: Metric = "client_mean"
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95  # of the two-sided interval over clients
    least_difference: Difference = 0.0  # the mean difference reaches this
    lowest_difference: Difference = -0.02  # and so does the interval's lower end; 0: the challenger is surely better
    worst_decile_margin: Fraction = 0.05  # the worst decile of clients does not fall by more
    min_seeds: Count = 1  # seeds that both versions' methods were trained with
    no_champion: Literal["promote", "keep"] = "promote"  # what a challenger becomes where there is no champion
