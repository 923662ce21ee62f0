"""Texts -> token ids: how a text is cut into tokens, and the vocabulary that numbers them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable

import numpy as np

# No token: fills short texts, and stands for a word that no train text has.
NOTHING = 0

_SEPARATE = re.compile(r"([.,()!?'])")
_DROPPED = str.maketrans({'"': "", ";": " ", ":": " "})
_LINE_BREAK = "<br />"


def tokens(text: str) -> list[str]:
    """Return the tokens of a text as torchtext's ``basic_english`` does.

    Lower case; the marks . , ( ) ! ? and the apostrophe are tokens, quotation marks vanish, and ; : <br /> separate.
    """
    lowered = text.lower().replace(_LINE_BREAK, " ").translate(_DROPPED)
    return _SEPARATE.sub(r" \1 ", lowered).split()


class Vocabulary:
    """The tokens of the train texts: id 1 is the most frequent, of equally frequent ones the first by name."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """Number of ids, with `NOTHING`."""
        return len(self._numbers) + 1

    def learn(self, texts: Iterable[str], length: int) -> np.ndarray:
        """Make the vocabulary of the train texts; return their ids [n, `length`] int32, cut or filled at the end."""
        numbers: dict[str, int] = {}
        flat, lengths = array("i"), array("q")
        for text in texts:
            found = tokens(text)
            flat.extend(numbers.setdefault(token, len(numbers)) for token in found)
            lengths.append(len(found))
        counts = np.bincount(np.asarray(flat, np.int64), minlength=len(numbers)).tolist()
        order = sorted(numbers, key=lambda token: (-counts[numbers[token]], token))
        self._numbers = {token: number for number, token in enumerate(order, 1)}
        renumbered = np.array([self._numbers[token] for token in numbers], np.int32)
        return filled(renumbered[np.asarray(flat, np.int64)], np.asarray(lengths, np.int64), length)

    def ids(self, texts: Iterable[str], length: int) -> np.ndarray:
        """Return the ids [n, `length`] int32 of other texts; a token that no train text has becomes `NOTHING`."""
        flat, lengths = array("i"), array("q")
        for text in texts:
            found = tokens(text)
            flat.extend(self._numbers.get(token, NOTHING) for token in found)
            lengths.append(len(found))
        return filled(np.asarray(flat, np.int32), np.asarray(lengths, np.int64), length)


def filled(flat: np.ndarray, lengths: np.ndarray, length: int) -> np.ndarray:
    """Return texts [n, `length`] int32 of their tokens one after the other and how many each has, [n]."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    position = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = position < length
    inputs = np.full((len(lengths), length), NOTHING, np.int32)
    inputs[rows[kept], position[kept]] = flat[kept]
    return inputs
