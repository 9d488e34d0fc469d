# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The words of a program under constant graphs: all that a call brings to its kernels.

A word is an integer of 64 bits: the value of a size, or the address of an input, a weight, a copy
of weights, an output or a slot of the arena. Launches name their operands and values by the numbers
of words, so what is written once serves all of them. First come the words of a *call*, which may be
others next time; after them the *fixed* ones, which stay as long as the weights stay where they
are: constants and addresses of weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from shapejit.symbolic import Expr

Place: TypeAlias = Literal["input", "weight", "copy", "output", "arena"]

_FIXED: frozenset[Place] = frozenset(("weight", "copy"))


@dataclass(frozen=True)
class Address:
    """A buffer of a program.

    Attributes:
        place: what kind of buffer.
        number: among those of its kind.
    """

    place: Place
    number: int

    def __str__(self) -> str:
        return f"{self.place} {self.number}"


Word: TypeAlias = Expr | Address


def is_fixed(word: Word) -> bool:
    """Whether a word is the same for all calls with the same weights."""
    if isinstance(word, Address):
        return word.place in _FIXED
    return word.constant is not None


class WordTable:
    """The words of a program by number.

    Args:
        needed: in the order in which they are to come, but for fixed ones, which come last; what is
            needed again is the same word.

    Attributes:
        words: all of them, those of a call first.
        call_words: how many are of a call.
    """

    def __init__(self, needed: Iterable[Word]) -> None:
        distinct = list(dict.fromkeys(needed))
        call = [word for word in distinct if not is_fixed(word)]
        self.words: list[Word] = [*call, *(word for word in distinct if is_fixed(word))]
        self.call_words = len(call)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def number(self, word: Word) -> int:
        """The number of a word that is needed."""
        return self._numbers[word]
