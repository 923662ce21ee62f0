"""A number that remembers what was asked of it while a function was traced."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_Operator = Callable[[Any, Any], Any]


def _compared(function: _Operator) -> _Operator:
    """Return a comparison's method: its answer is remembered."""

    def answer(self: Observed, other: Any) -> Any:
        return function(self._number(), other) if isinstance(other, Tensor) else self._answer(function, other)

    return answer


def _computed(function: _Operator) -> _Operator:
    """Return an arithmetic operator's method: the result remembers in turn what is asked of it."""

    def answer(self: Observed, other: Any) -> Any:
        return function(self._number(), other) if isinstance(other, Tensor) else self._then(function, other)

    return answer


def _swapped(function: _Operator) -> _Operator:
    """Return the method of an arithmetic operator with the number on its right."""

    def swapped(first: Any, second: Any) -> Any:
        return function(second, first)

    return _computed(swapped)


def _itself(value: Any, _: None) -> Any:
    return value


def _truth(value: Any, _: None) -> bool:
    return bool(value)


class Observed:
    """The number of a round that remembers what was asked of it while a function was traced.

    What is computed from it remembers the same way. Only where that is compared, or taken as a plain number, does the
    function depend on the round. Where it meets a tensor, and in powers, as of a weight that decays, it is computed in
    the function, which serves every round.

    Attributes
    ----------
    traced : Tensor []
        The number of the round as an argument of the function, once that is traced.
    """

    traced: Tensor

    def __init__(self, value: int):
        self._round = self
        self._value = value
        self._steps: tuple[tuple[_Operator, Any], ...] = ()  # from the round's number to this one
        self._answers: dict[tuple[tuple[_Operator, Any], ...], Any] = {}

    def looks_like(self, round: int) -> bool:
        """Return whether this round would have given the same answers."""
        return all(_after(steps, round) == answer for steps, answer in self._answers.items())

    def _then(self, function: _Operator, other: Any) -> Observed:
        number = copy.copy(self)
        number._steps = (*self._steps, (function, _plain(other)))
        return number

    def _answer(self, function: _Operator, other: Any) -> Any:
        steps = (*self._steps, (function, _plain(other)))
        answer = _after(steps, self._value)
        self._answers[steps] = answer
        return answer

    def _number(self) -> Tensor:
        return torch.as_tensor(_after(self._steps, self._round.traced.long()))

    __lt__ = _compared(operator.lt)
    __le__ = _compared(operator.le)
    __gt__ = _compared(operator.gt)
    __ge__ = _compared(operator.ge)
    __eq__ = _compared(operator.eq)
    __ne__ = _compared(operator.ne)
    __hash__ = object.__hash__
    __add__ = _computed(operator.add)
    __sub__ = _computed(operator.sub)
    __mul__ = _computed(operator.mul)
    __mod__ = _computed(operator.mod)
    __floordiv__ = _computed(operator.floordiv)
    __truediv__ = _computed(operator.truediv)
    __radd__ = _swapped(operator.add)
    __rsub__ = _swapped(operator.sub)
    __rmul__ = _swapped(operator.mul)
    __rmod__ = _swapped(operator.mod)
    __rfloordiv__ = _swapped(operator.floordiv)
    __rtruediv__ = _swapped(operator.truediv)

    def __rpow__(self, base: float | Tensor) -> Any:
        return base ** self._number().to(self._round.traced.dtype)

    def __index__(self) -> int:
        return operator.index(self._answer(_itself, None))

    def __int__(self) -> int:
        return int(self._answer(_itself, None))

    def __float__(self) -> float:
        return float(self._answer(_itself, None))

    def __bool__(self) -> bool:
        return bool(self._answer(_truth, None))


def _after(steps: tuple[tuple[_Operator, Any], ...], number: Any) -> Any:
    for function, other in steps:
        number = function(number, other)
    return number


def _plain(other: Any) -> Any:
    """Return a number that two memories would meet in as the plain number it is."""
    return other._answer(_itself, None) if isinstance(other, Observed) else other
