# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Depthwise convolutions, whose groups have one channel and one filter: no product of matrices.

There are as many multiplications as elements are read, so tensor cores have nothing to do; what
counts is that every load is wide and few pixels are loaded twice. A thread has some neighbouring
channels, loaded at once, of a strip of pixels along the last spatial dim::

    for each tap along the other dims          (a row of the image)
      load the pixels that the strip sees, zeros off the image; load the row's taps
      for each pixel, for each tap: sum of the pixel += pixel * tap
    epilogue; store the strip

Neighbouring threads have neighbouring channels. Sums are f32. The schedule
``depthwise_v8_r4`` says how many channels and pixels a thread has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, llvm, math, nvvm

from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.bodies import emit_body
from shapejit.passes.nvgpu.builder import (
    Num,
    Value,
    add,
    compare,
    constant,
    f32,
    i32,
    i64,
    index,
    integer,
    loop,
    mul,
    struct_of,
    sub,
    udiv,
    value,
    when,
)
from shapejit.passes.nvgpu.conv.problem import ConvProblem
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction
from shapejit.passes.nvgpu.memory import IndexAlgebra, element_address, load_element
from shapejit.passes.nvgpu.problem import Access, is_half
from shapejit.passes.nvgpu.target import Architecture
from shapejit.symbolic import Expr, product
from shapejit.symbolic.expr import ONE, ZERO

#: Of a CTA, and CTAs of a multiprocessor, so that a thread can have 128 registers.
THREADS, CTAS = 128, 4

_NAME = re.compile(r"depthwise_v(?P<channels>[1248])_r(?P<pixels>\d+)")
_MOST_PIXELS = 8
_ELEMENT_BYTES = 2


@dataclass(frozen=True)
class DepthwiseSchedule:
    """How much a thread has.

    Attributes:
        channels: 1, 2, 4 or 8, which are loaded at once.
        pixels: of a strip.
    """

    channels: int
    pixels: int

    def __str__(self) -> str:
        return f"depthwise_v{self.channels}_r{self.pixels}"

    @staticmethod
    def parse(text: str) -> DepthwiseSchedule:
        """The schedule that a text names.

        Raises:
            ValueError: it names none.
        """
        match = _NAME.fullmatch(text)
        if match is None or not 1 <= int(match["pixels"]) <= _MOST_PIXELS:
            raise ValueError(f"{text!r} names no depthwise schedule; one is depthwise_v8_r4")
        return DepthwiseSchedule(int(match["channels"]), int(match["pixels"]))


def suits(conv: ConvProblem) -> bool:
    """Whether the family computes a convolution: channels last, no zeros between pixels."""
    accesses = (conv.input, conv.weight, conv.result)
    return (
        conv.is_depthwise
        and conv.groups.constant is not None
        and all(taps.constant is not None for taps in conv.taps)
        and all(spread == 1 for spread in conv.window.lhs_dilations)
        and all(access.is_linear for access in accesses)
        and is_half(conv.result.element)
        and all(_stride(access, 1) == ONE for access in (conv.input, conv.result))
    )


def most_channels(conv: ConvProblem) -> int:
    """How many channels can be loaded and stored at once."""
    assert conv.groups.constant is not None
    for count in (8, 4, 2):
        if conv.groups.constant % count == 0 and all(
            _is_multiple(access, (1, 2 + conv.rank), count) for access in (conv.input, conv.result)
        ):
            return count
    return 1


def emit(
    name: str,
    conv: ConvProblem,
    schedule: DepthwiseSchedule,
    architecture: Architecture,
    *,
    block: bool,
    programmatic: bool,
) -> KernelInterface:
    """Emits a kernel.

    Args:
        name: of the module and of the function in the machine code.
        conv: what it computes.
        schedule: how.
        architecture: what it runs on.
        block: whether its parameters lie in a parameter block.
        programmatic: whether it may start before the kernel ahead of it ends.

    Raises:
        LoweringError: the family does not compute it, or not so many channels at once.
    """
    if not suits(conv):
        raise LoweringError("is no depthwise convolution with its channels last")
    if schedule.channels > most_channels(conv):
        raise LoweringError(
            f"has {conv.groups} channels; {schedule.channels} of them are not known to lie side by "
            "side at a multiple of their size"
        )
    function = KernelFunction(
        name,
        architecture,
        threads=THREADS,
        block=block,
        ctas_per_sm=CTAS,
        programmatic=programmatic,
    )
    with function.body():
        kernel = _Kernel(function, conv, schedule)
        kernel.emit()
    return function.interface(Grid(((function.value_number(kernel.items), THREADS),), CTAS), 0)


class _Kernel:
    def __init__(
        self, function: KernelFunction, conv: ConvProblem, schedule: DepthwiseSchedule
    ) -> None:
        self._function, self._conv = function, conv
        self._channels, self._pixels = schedule.channels, schedule.pixels
        *outer, last = conv.pixels
        chunks = conv.groups // schedule.channels
        self._sizes = (conv.images, *outer, last.ceildiv(schedule.pixels), chunks)
        #: What a thread has at a time.
        self.items: Expr = product(self._sizes)

    def emit(self) -> None:
        """Emits all of the kernel."""
        function = self._function
        function.launch_dependents()
        function.await_predecessors()
        ctas, cta = nvvm.read_ptx_sreg_nctaid_x(i32()), nvvm.read_ptx_sreg_ctaid_x(i32())
        first = add(mul(cta, THREADS), nvvm.read_ptx_sreg_tid_x(i32()))
        with loop(first, function.size(self.items), mul(ctas, THREADS)) as each:
            assert each.index is not None
            self._strip(each.index)

    def _strip(self, item: Num) -> None:
        places: list[Num] = []
        for size in reversed(self._sizes[1:]):
            length = self._function.size(size)
            rest = udiv(item, length)
            places.append(sub(item, mul(rest, length)))
            item = rest
        image, *outer, strip, chunk = (item, *reversed(places))
        channel, first = mul(chunk, self._channels), mul(strip, self._pixels)
        sums = self._sums(image, outer, first, channel)
        for number in range(self._pixels):
            pixel = add(first, number)
            inside = compare("ult", pixel, self._function.size(self._conv.pixels[-1]))
            with when(inside):
                dims = [image, channel, *outer, pixel, 0]
                own = sums[number * self._channels : (number + 1) * self._channels]
                self._store(own, dict(enumerate(dims)))

    # Sums -----------------------------------------------------------------------------------------

    def _sums(self, image: Num, outer: Sequence[Num], first: Num, channel: Num) -> list[Value]:
        """Of every pixel of a strip, of every channel."""
        conv, size = self._conv, self._function.size
        window = conv.window
        start = size(conv.input.start, 8)
        start = add(mul(_wide(image), size(_stride(conv.input, 0), 8)), start)
        start = add(_wide(channel), start)
        corner = sub(mul(first, window.strides[-1]), window.padding[-1][0])
        pitch = size(_stride(conv.input, 1 + conv.rank), 8)
        zeros = [constant(0.0, f32())] * (self._pixels * self._channels)
        rows = _count(product(conv.taps[:-1]))
        with loop(0, rows, 1, zeros) as each:
            taps = self._outer_taps(each.index)
            exists: Value = constant(1, integer(1))
            row = start
            for dim, (pixel, tap) in enumerate(zip(outer, taps, strict=True)):
                at = sub(
                    add(mul(pixel, window.strides[dim]), mul(tap, window.dilations[dim])),
                    window.padding[dim][0],
                )
                exists = arith.andi(exists, compare("ult", at, size(conv.image[dim])))
                row = add(mul(_wide(at), size(_stride(conv.input, 2 + dim), 8)), row)
            columns = self._columns(row, corner, pitch, exists)
            filters = self._filters(taps, channel)
            each.next = self._multiplied(each.carried, columns, filters)
        return each.results

    def _outer_taps(self, number: Num) -> list[Num]:
        """A row's tap along every spatial dim but the last."""
        taps: list[Num] = []
        for size in reversed(self._conv.taps[:-1]):
            rest = udiv(number, _count(size))
            taps.append(sub(number, mul(rest, _count(size))))
            number = rest
        return list(reversed(taps))

    @property
    def _offsets(self) -> dict[int, list[tuple[int, int]]]:
        """Pixels that a strip sees, from its corner, with the pixels and taps that see them."""
        found: dict[int, list[tuple[int, int]]] = {}
        window = self._conv.window
        for pixel in range(self._pixels):
            for tap in range(_count(self._conv.taps[-1])):
                offset = pixel * window.strides[-1] + tap * window.dilations[-1]
                found.setdefault(offset, []).append((pixel, tap))
        return found

    def _columns(self, row: Num, corner: Num, pitch: Num, exists: Value) -> dict[int, list[Value]]:
        """The channels of the pixels of a row that a strip sees, as words."""
        columns = {}
        width = self._function.size(self._conv.image[-1])
        for offset in self._offsets:
            at = add(corner, offset)
            inside = arith.andi(exists, compare("ult", at, width))
            address = self._address(self._conv.input, add(row, mul(_wide(at), pitch)))
            columns[offset] = load_words(inside, address, self._channels)
        return columns

    def _filters(self, taps: Sequence[Num], channel: Num) -> list[list[Value]]:
        """The channels of the taps of a row."""
        weight, size = self._conv.weight, self._function.size
        row = add(mul(_wide(channel), size(_stride(weight, 0), 8)), size(weight.start, 8))
        for dim, tap in enumerate(taps):
            row = add(mul(_wide(tap), size(_stride(weight, 3 + dim), 8)), row)
        last = size(_stride(weight, 2 + self._conv.rank), 8)
        starts = [add(row, mul(last, tap)) for tap in range(_count(self._conv.taps[-1]))]
        return [self._filter(start) for start in starts]

    def _filter(self, start: Num) -> list[Value]:
        """The channels of a tap, at once where they lie side by side."""
        weight, always = self._conv.weight, constant(1, integer(1))
        if _stride(weight, 0) == ONE and _is_multiple(weight, (0, 1, 2), self._channels):
            return self._numbers(load_words(always, self._address(weight, start), self._channels))
        step = self._function.size(_stride(weight, 0), 8)
        return [
            self._numbers(
                load_words(always, self._address(weight, add(start, mul(step, number))), 1)
            )[0]
            for number in range(self._channels)
        ]

    def _multiplied(
        self,
        sums: Sequence[Value],
        columns: Mapping[int, Sequence[Value]],
        filters: Sequence[Sequence[Value]],
    ) -> list[Value]:
        totals = list(sums)
        for offset, readers in self._offsets.items():
            numbers = self._numbers(columns[offset])
            for pixel, tap in readers:
                for channel, (number, factor) in enumerate(zip(numbers, filters[tap], strict=True)):
                    place = pixel * self._channels + channel
                    totals[place] = math.fma(number, factor, totals[place])
        return totals

    # Results --------------------------------------------------------------------------------------

    def _store(self, sums: Sequence[Value], dims: Mapping[int, Num]) -> None:
        """The epilogue of some channels of a pixel, and its store."""
        conv = self._conv
        extras = [self._extra(access, dims) for access in conv.extras]
        results = [
            self._element(total, [extra[number] for extra in extras])
            for number, total in enumerate(sums)
        ]
        element = conv.result.element
        offset = conv.result.offset.build(IndexAlgebra(self._function, dims))
        base = self._function.address(conv.result.operand)
        address = element_address(base, offset, element)
        if self._channels == 1:
            packed = ptx.pack_halves(results[0], results[0], element)
            llvm.StoreOp(arith.trunci(integer(16), packed), address, alignment=_ELEMENT_BYTES)
            return
        words = [
            ptx.pack_halves(results[number], results[number + 1], element)
            for number in range(0, self._channels, 2)
        ]
        vector: Value = llvm.mlir_undef(ir.VectorType.get([len(words)], i32()))
        for number, word in enumerate(words):
            vector = llvm.insertelement(vector, word, value(number))
        llvm.StoreOp(vector, address, alignment=self._channels * _ELEMENT_BYTES)

    def _element(self, total: Value, extras: Sequence[Value]) -> Value:
        if self._conv.epilogue is None:
            return total

        def size(expr: Expr) -> Value:
            return index(self._function.size(expr))

        return emit_body(self._conv.epilogue, [total, *extras], size, short=True)

    def _extra(self, access: Access, dims: Mapping[int, Num]) -> list[Value]:
        """An extra operand of every channel, at once where its elements lie side by side."""
        base = self._function.address(access.operand)
        if 1 not in access.offset.dims():
            offset = access.offset.build(IndexAlgebra(self._function, dims))
            return [load_element(base, offset, access.element)] * self._channels
        wide = (
            is_half(access.element)
            and access.is_linear
            and _stride(access, 1) == ONE
            and _is_multiple(access, (1, 2 + self._conv.rank), self._channels)
        )
        if wide:
            offset = access.offset.build(IndexAlgebra(self._function, dims))
            address = self._address(access, offset)
            words = load_words(constant(1, integer(1)), address, self._channels)
            return self._numbers(words, access)
        found = []
        for number in range(self._channels):
            here = {**dims, 1: add(dims[1], number)}
            offset = access.offset.build(IndexAlgebra(self._function, here))
            found.append(load_element(base, offset, access.element))
        return found

    # Elements -------------------------------------------------------------------------------------

    def _address(self, access: Access, offset: Num) -> Value:
        base = llvm.ptrtoint(i64(), self._function.address(access.operand))
        return add(base, mul(value(offset, i64()), _ELEMENT_BYTES))

    def _numbers(self, words: Sequence[Value], access: Access | None = None) -> list[Value]:
        """The elements in words, in f32."""
        element = (access or self._conv.input).element
        numbers = [each for word in words for each in ptx.unpack_halves(word, element)]
        return numbers[: self._channels]  # a single element is a whole word


def load_words(condition: Value, address: Value, elements: int) -> list[Value]:
    """1, 2, 4 or 8 elements of 16 bits of global memory, as i32; or zeros.

    Not by ``ld.global.nc``: a kernel that starts early runs while what it will read is written.
    """
    if elements == 1:
        text = "mov.b16 $0, 0; @$2 ld.global.b16 $0, [$1];"
        word = ptx.assembly(integer(16), text, "=&h,l,b", [address, condition], pure=False)
        return [arith.extui(i32(), word)]
    count = elements // 2
    outs = [f"${number}" for number in range(count)]
    zeros = " ".join(f"mov.b32 {out}, 0;" for out in outs)
    target = outs[0] if count == 1 else f"{{{', '.join(outs)}}}"
    vector = f".v{count}" if count > 1 else ""
    text = f"{zeros} @${count + 1} ld.global{vector}.b32 {target}, [${count}];"
    constraints = ",".join([*["=&r"] * count, "l", "b"])
    if count == 1:
        return [ptx.assembly(i32(), text, constraints, [address, condition], pure=False)]
    made = ptx.assembly(
        struct_of(i32(), count), text, constraints, [address, condition], pure=False
    )
    return [llvm.extractvalue(i32(), made, [number]) for number in range(count)]


def _stride(access: Access, dim: int) -> Expr:
    return access.stride(dim) or ZERO


def _is_multiple(access: Access, dims: Sequence[int], count: int) -> bool:
    """Whether elements along the first of some dims, of which the others have size 1, start at
    multiples of ``count`` wherever else they are."""
    rest = access.offset.dims() - set(dims)
    others = [access.start, *(_stride(access, each) for each in rest)]
    return all(coefficient % count == 0 for stride in others for _, coefficient in stride.terms)


def _count(size: Expr) -> int:
    assert size.constant is not None, "checked"
    return size.constant


def _wide(number: Num) -> Num:
    """A number, which may be negative, as i64."""
    return number if isinstance(number, int) else arith.extsi(i64(), number)
