"""A number that remembers what was asked of it while a function was traced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor


def _itself(value: Any, _: None) -> Any:
    return value


def _truth(value: Any, _: None) -> bool:
    return bool(value)


def _asked(function: Callable[[Any, Any], Any]) -> Callable[[Observed, Any], Any]:
    """Return an operator's method: the answer of `function`, remembered."""

    def answer(self: Observed, other: Any) -> Any:
        return self._see(function, other)

    return answer


class Observed:
    """The number of a round that remembers what was asked of it while a function was traced.

    Attributes
    ----------
    traced : Tensor []
        The number as an argument of the function, once that is traced. A power of it, as a weight that decays, is
        computed from this, and nothing is remembered: the function serves every round.
    """

    traced: Tensor

    def __init__(self, value: int):
        self._value = value
        self._seen: dict[tuple[Callable[[Any, Any], Any], Any], Any] = {}

    def looks_like(self, round: int) -> bool:
        """Return whether this round would have given the same answers."""
        return all(function(round, other) == answer for (function, other), answer in self._seen.items())

    def _see(self, function: Callable[[Any, Any], Any], other: Any) -> Any:
        answer = function(self._value, other)
        self._seen[function, other] = answer
        return answer

    __lt__ = _asked(operator.lt)
    __le__ = _asked(operator.le)
    __gt__ = _asked(operator.gt)
    __ge__ = _asked(operator.ge)
    __eq__ = _asked(operator.eq)
    __ne__ = _asked(operator.ne)
    __hash__ = object.__hash__
    __mod__ = _asked(operator.mod)
    __floordiv__ = _asked(operator.floordiv)
    __add__ = _asked(operator.add)
    __sub__ = _asked(operator.sub)
    __mul__ = _asked(operator.mul)

    def __rpow__(self, base: float) -> Tensor:
        return base**self.traced

    def __index__(self) -> int:
        return int(self._see(_itself, None))

    def __int__(self) -> int:
        return int(self._see(_itself, None))

    def __float__(self) -> float:
        return float(self._see(_itself, None))

    def __bool__(self) -> bool:
        return bool(self._see(_truth, None))
