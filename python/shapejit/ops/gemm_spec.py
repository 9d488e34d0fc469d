# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kinds of matrix products, and their IR.

All sizes and strides of a product are symbols of its kernel, so one kernel serves every product of
its kind. What is part of the kind is what the code depends on: element types, along which dim each
operand has neighbouring elements, what is broadcast, and the epilogue. Operands are flat tensors
read at ``sum of index * stride``, which says transposes, batches and padded rows alike::

    shapejit.gemm over [s0, s1, s2]                      // m, n, k
        lhs(%a at (d0, d1, d2) -> (d0 * s4 + d2) : tensor<?xbf16, #shapejit.shape<[s3]>>)
        rhs(%b at (d0, d1, d2) -> (d1 * s6 + d2) : tensor<?xbf16, #shapejit.shape<[s5]>>) ..
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")

#: Elements of 16 bits in 16 bytes, which rows of a result that TMA stores are multiples of.
_ROW_MULTIPLE = 8

_OP = re.compile(r"= ([a-z]+\.\w+)")

# Bodies of the activations over %x, in f32; {i} makes names unique.
_ACTIVATION_BODIES: dict[str, str] = {
    "relu": """
      %zero = arith.constant 0.0 : f32
      %act = arith.maximumf %x, %zero : f32""",
    "gelu": """
      %half = arith.constant 0.5 : f32
      %one = arith.constant 1.0 : f32
      %root = arith.constant 0.7071067811865476 : f32
      %scaled = arith.mulf %x, %root : f32
      %erf = math.erf %scaled : f32
      %above = arith.addf %erf, %one : f32
      %halved = arith.mulf %x, %half : f32
      %act = arith.mulf %halved, %above : f32""",
    "gelu_tanh": """
      %half = arith.constant 0.5 : f32
      %one = arith.constant 1.0 : f32
      %c0 = arith.constant 0.7978845608028654 : f32
      %c1 = arith.constant 0.044715 : f32
      %square = arith.mulf %x, %x : f32
      %cube = arith.mulf %square, %x : f32
      %small = arith.mulf %cube, %c1 : f32
      %inner = arith.addf %x, %small : f32
      %scaled = arith.mulf %inner, %c0 : f32
      %tanh = math.tanh %scaled : f32
      %above = arith.addf %tanh, %one : f32
      %halved = arith.mulf %x, %half : f32
      %act = arith.mulf %halved, %above : f32""",
    "silu": """
      %one = arith.constant 1.0 : f32
      %minus = arith.negf %x : f32
      %exp = math.exp %minus : f32
      %below = arith.addf %exp, %one : f32
      %act = arith.divf %x, %below : f32""",
    "tanh": """
      %act = math.tanh %x : f32""",
    "sigmoid": """
      %one = arith.constant 1.0 : f32
      %minus = arith.negf %x : f32
      %exp = math.exp %minus : f32
      %below = arith.addf %exp, %one : f32
      %act = arith.divf %one, %below : f32""",
}


@dataclass(frozen=True)
class OperandKind:
    """What the code depends on of an operand.

    Attributes:
        element: ``bf16``, ``f16`` or ``f32``.
        moves: for every dim of the operand's space, whether the operand moves along it; it is
            broadcast along the others.
        unit: the dim with neighbouring elements, -1 if there is none.
        dense: whether its rows follow each other, ``n`` elements apart, from an address on that
            is a multiple of 16 bytes (extras only).
        even: whether all its strides are multiples of 2 (extras only).
    """

    element: str
    moves: tuple[bool, ...]
    unit: int
    dense: bool = False
    even: bool = False


@dataclass(frozen=True)
class GemmKind:
    """A kind of products: ``residual + activation(a @ b + bias) * (a @ gate)``.

    Attributes:
        batch_dims: dims of the result before m and n.
        lhs: over the batch dims, m, n and k.
        weights: the same; the second one is the gate.
        bias: over the batch dims, m and n.
        activation: one of `ACTIVATIONS`.
        residual: over the batch dims, m and n.
        result: its element type.
        row_remainder: of a result's row of 16-bit elements over 8; rows that are no multiple of
            16 bytes are stored without TMA.
        aligned: whether the strides and addresses of the factors are multiples of 16 bytes.
        tf32: whether factors of float32 may be rounded to tf32.
    """

    batch_dims: int
    lhs: OperandKind
    weights: tuple[OperandKind, ...]
    bias: OperandKind | None
    activation: str | None
    residual: OperandKind | None
    result: str
    row_remainder: int
    aligned: bool
    tf32: bool = False

    @property
    def operands(self) -> tuple[OperandKind, ...]:
        """The operands in the order of the kernel's arguments."""
        extras = (extra for extra in (self.bias, self.residual) if extra is not None)
        return (self.lhs, *self.weights, *extras)

    @property
    def is_float(self) -> bool:
        """Whether the factors are float32."""
        return self.lhs.element == "f32"

    @property
    def extra_bytes(self) -> int:
        """Bytes of extras that are read for each element of the result."""
        bytes_ = {"f32": 4}
        extras = (extra for extra in (self.bias, self.residual) if extra is not None)
        return sum(bytes_.get(e.element, 2) for e in extras if e.moves[-2] and e.moves[-1])


def symbol_values(
    kind: GemmKind, sizes: Sequence[int], operands: Sequence[tuple[int, Sequence[int]]]
) -> list[int]:
    """The values of the symbols of `kernel_text`'s kernel.

    Args:
        kind: of the product.
        sizes: of the batch dims, m, n and k.
        operands: number of elements that an operand's memory spans, and its stride along every dim
            of its space, in the kernel's order.
    """
    n = len(sizes) - 2
    values = [
        size // _ROW_MULTIPLE if i == n and kind.row_remainder else size
        for i, size in enumerate(sizes)
    ]
    for operand, (span, strides) in zip(kind.operands, operands, strict=True):
        values.append(span)
        values += [
            stride // (2 if operand.even else 1)
            for dim, stride in enumerate(strides)
            if _has_symbol(operand, dim, n)
        ]
    return values


def span_symbols(kind: GemmKind) -> list[int]:
    """Numbers of the symbols that say how far operands reach in memory."""
    found = []
    n = kind.batch_dims + 1
    number = kind.batch_dims + 3
    for operand in kind.operands:
        found.append(number)
        number += 1 + sum(_has_symbol(operand, dim, n) for dim in range(len(operand.moves)))
    return found


def _has_symbol(operand: OperandKind, dim: int, n: int) -> bool:
    """Whether an operand's stride along a dim is a symbol."""
    is_row = operand.dense and dim == n - 1
    return operand.moves[dim] and dim != operand.unit and not is_row


class KernelText:
    """Writes the ``shapejit.kernel`` of a kind of products."""

    def __init__(self, kind: GemmKind) -> None:
        self._kind = kind
        self._dims = kind.batch_dims + 3
        self._n = kind.batch_dims + 1
        self._symbols = self._dims
        sizes = [f"s{i}" for i in range(self._dims)]
        if kind.row_remainder:
            sizes[self._n] = f"s{self._n} * {_ROW_MULTIPLE} + {kind.row_remainder}"
        self._sizes = sizes
        self._spans: list[str] = []
        self._indices: list[str] = []
        for operand in kind.operands:
            self._add(operand)

    def _new(self) -> str:
        self._symbols += 1
        return f"s{self._symbols - 1}"

    def _add(self, operand: OperandKind) -> None:
        self._spans.append(self._new())
        terms = []
        for dim, moves in enumerate(operand.moves):
            if not moves:
                continue
            if dim == operand.unit:
                terms.append(f"d{dim}")
            elif _has_symbol(operand, dim, self._n):
                stride = self._new()
                terms.append(f"d{dim} * {f'({stride} * 2)' if operand.even else stride}")
            else:
                terms.append(f"d{dim} * ({self._sizes[self._n]})")
        self._indices.append(" + ".join(terms) or "0")

    def map(self, number: int) -> str:
        """The index map of an operand."""
        operand = self._kind.operands[number]
        dims = ", ".join(f"d{i}" for i in range(len(operand.moves)))
        symbols = ", ".join(f"s{i}" for i in range(self._symbols))
        return f"affine_map<({dims})[{symbols}] -> ({self._indices[number]})>"

    def _operand(self, number: int) -> str:
        return f"%a{number} at {self.map(number)} : {self._type(number)}"

    def _type(self, number: int) -> str:
        element, span = self._kind.operands[number].element, self._spans[number]
        return f"tensor<?x{element}, #shapejit.shape<[{span}]>>"

    def text(self, name: str) -> str:
        """The kernel under a name."""
        kind = self._kind
        count = len(kind.operands)
        arguments = ", ".join(f"%a{i}: {self._type(i)}" for i in range(count))
        first_extra = 1 + len(kind.weights)
        weights = ", ".join(map(self._operand, range(1, first_extra)))
        extras = ", ".join(map(self._operand, range(first_extra, count)))
        shape = ", ".join(self._sizes[:-1])
        marks = "x".join("?" * (self._dims - 1))
        result = f"tensor<{marks}x{kind.result}, #shapejit.shape<[{shape}]>>"
        return f"""shapejit.kernel @{name} symbols {self._symbols} ({arguments}) {{
    %y = shapejit.gemm over [{", ".join(self._sizes)}]
      lhs({self._operand(0)})
      rhs({weights})
      {f"extras({extras})" if extras else ""}
      epilogue {{
{self.body()}
    }} -> {result}
    shapejit.yield %y : {result}
  }}"""

    def body_ops(self) -> list[str]:
        """The names of the epilogue's ops; without MLIR, whose import takes longer."""
        return _OP.findall(self.body())

    def body(self) -> str:
        """The block of the epilogue."""
        kind = self._kind
        arguments = [f"%sum{i}: f32" for i in range(len(kind.weights))]
        lines = []
        for name, extra in (("bias", kind.bias), ("residual", kind.residual)):
            if extra is None:
                continue
            arguments.append(f"%{name}_: {extra.element}")
            lines.append(_widened(f"%{name}", f"%{name}_", extra.element))
        lines.append(
            "      %x = arith.addf %sum0, %bias : f32" if kind.bias else _same("%x", "%sum0")
        )
        lines.append(
            _ACTIVATION_BODIES[kind.activation].lstrip("\n")
            if kind.activation
            else _same("%act", "%x")
        )
        gated = len(kind.weights) == 2
        lines.append(
            "      %gated = arith.mulf %act, %sum1 : f32" if gated else _same("%gated", "%act")
        )
        lines.append(
            "      %out = arith.addf %gated, %residual : f32"
            if kind.residual
            else _same("%out", "%gated")
        )
        lines.append(_narrowed("%stored", "%out", kind.result))
        lines.append(f"      shapejit.yield %stored : {kind.result}")
        return f"    ^bb0({', '.join(arguments)}):\n" + "\n".join(lines)


def _same(result: str, value: str) -> str:
    # Folded away by the canonicalizer; it keeps the steps of the body independent of each other.
    return f"      {result} = arith.bitcast {value} : f32 to f32"


def _widened(result: str, value: str, element: str) -> str:
    if element == "f32":
        return _same(result, value)
    return f"      {result} = arith.extf {value} : {element} to f32"


def _narrowed(result: str, value: str, element: str) -> str:
    if element == "f32":
        return _same(result, value)
    return f"      {result} = arith.truncf {value} : f32 to {element}"


def kernel_text(kind: GemmKind, name: str = "gemm") -> str:
    """The ``shapejit.kernel`` of a kind of products."""
    return KernelText(kind).text(name)
