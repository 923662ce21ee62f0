"""A number that remembers what was asked of it while a function was traced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class Observed:
    """The number of a round that remembers what was asked of it while a function was traced."""

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

    def __lt__(self, other: Any) -> Any:
        return self._see(operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._see(operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._see(operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._see(operator.ge, other)

    def __eq__(self, other: object) -> Any:
        return self._see(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._see(operator.ne, other)

    __hash__ = object.__hash__

    def __mod__(self, other: Any) -> Any:
        return self._see(operator.mod, other)

    def __floordiv__(self, other: Any) -> Any:
        return self._see(operator.floordiv, other)

    def __add__(self, other: Any) -> Any:
        return self._see(operator.add, other)

    def __sub__(self, other: Any) -> Any:
        return self._see(operator.sub, other)

    def __mul__(self, other: Any) -> Any:
        return self._see(operator.mul, other)

    def __rpow__(self, other: Any) -> Any:
        return self._see(_reversed_power, other)

    def __index__(self) -> int:
        return int(self._see(_itself, None))

    def __int__(self) -> int:
        return int(self._see(_itself, None))

    def __float__(self) -> float:
        return float(self._see(_itself, None))

    def __bool__(self) -> bool:
        return bool(self._see(_truth, None))


def _reversed_power(exponent: Any, base: Any) -> Any:
    return base**exponent


def _itself(value: Any, _: None) -> Any:
    return value


def _truth(value: Any, _: None) -> bool:
    return bool(value)
