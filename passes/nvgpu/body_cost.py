# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a scalar body takes for an element, as the cost model counts it.

A multiprocessor issues an instruction for 128 elements each cycle, while its units for reciprocals,
powers and roots take 16 elements. The numbers are of the short forms for results of 16 bits, see
`elementary`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

ELEMENTS_PER_CYCLE: Final = 128
"""Elements for which a multiprocessor issues an instruction in a cycle."""

_SPECIAL_CYCLES = 8  # of those for which a special unit takes an instruction

# Instructions, and how many of them are for the special units. Others are one plain instruction.
_INSTRUCTIONS = {
    "arith.constant": (0, 0),
    "arith.bitcast": (0, 0),
    "arith.negf": (0, 0),
    "math.absf": (0, 0),
    "arith.truncf": (0.5, 0),
    "arith.divf": (2, 1),
    "math.erf": (9, 1),
    "math.exp": (2, 1),
    "math.exp2": (1, 1),
    "math.expm1": (12, 1),
    "math.log": (20, 0),
    "math.log1p": (22, 0),
    "math.log2": (21, 0),
    "math.rsqrt": (1, 1),
    "math.sqrt": (2, 1),
    "math.tanh": (4, 2),
}


def body_cycles(ops: Iterable[str]) -> float:
    """Cycles of a multiprocessor for `ELEMENTS_PER_CYCLE` elements.

    Args:
        ops: names of the body's ops of arith and math; others take nothing.
    """
    issued = special = 0.0
    for name, count in Counter(ops).items():
        if name.startswith(("arith.", "math.")):
            instructions, of_special = _INSTRUCTIONS.get(name, (1, 0))
            issued += count * instructions
            special += count * of_special
    return max(issued, _SPECIAL_CYCLES * special)
