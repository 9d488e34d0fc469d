# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The head kernel of programs under constant graphs.

Kernels in block form read their parameters from a block in device memory, and what they find there
differs from call to call. The head kernel runs before them: it gets the *words* of a call (sizes,
addresses) by value and follows a table, made by the runtime from the kernels' interfaces, in which
every parameter that depends on words has a record. A warp does what one record says: it writes a
word, or replaces address, sizes and strides of a tensor map in place, each lane one of them, so
that every latency is paid once. One kernel serves every program; there are several only by how many
words they take.

A change of the records, or of which warp follows which, is another version: `RECORDS`.

The records are ``PatchRecord`` of ``runtime/lib/cuda/Patch.h``, the parameters those of
``HeadCall``::

    bytes 0..3    offset of the parameter in the block
    byte  4       kind: 0 a word of 4 bytes, 1 one of 8, 2 a tensor map, 3 an encoded map
    byte  5       rank of the map
    byte  6       logarithm of an element's bytes
    byte  7       bit i: the stride of dim i + 1 is to be replaced
    bytes 8..11   bit i: slot i holds a value, else the number of a word
    bytes 16..95  slots: the word; or address, 5 sizes, 4 strides in elements; or the number of
                  the first of an encoded map's 16 words

Tensor maps in im2col mode cannot be changed in place. The runtime encodes them for each call and
hands them over as words, which are copied.

What calls the runtime lets pass has two exceptions to the rules of tensor maps. An empty tensor is
described as one element of zeros of the runtime's own, since a map cannot be empty. A stride that
no map can have belongs to a dim of size 1, and may be any.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, llvm, nvvm, vector

from shapejit.cache import fingerprint
from shapejit.cache.cubins import TRIPLE, CubinUnit
from shapejit.cache.key import TargetKey, VariantKey, sorted_items, text_digest
from shapejit.codegen.cuda_tools import Tool
from shapejit.gpu.graph import RECORDS
from shapejit.gpu.interface import Grid, KernelInterface
from shapejit.passes.nvgpu import ptx
from shapejit.passes.nvgpu.builder import (
    Branches,
    Num,
    Type,
    Value,
    add,
    and_,
    compare,
    constant,
    i32,
    i64,
    integer,
    mul,
    or_,
    pointer,
    select,
    shl,
    shr,
    sub,
    umin,
    value,
    when,
    wide,
)
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.function import KernelFunction, Threads
from shapejit.passes.nvgpu.target import Architecture

#: Words that head kernels take. A launch may have 32764 bytes of parameters.
CAPACITIES = (32, 128, 512, 2048, 4080)

#: Of a CTA, a warp for each record. Few, so that they spread over many multiprocessors.
THREADS = 128

RECORD_BYTES = 96
TENSOR_MAP, ENCODED_MAP = 2, 3
#: Words of an encoded map.
MAP_WORDS = 16
_SLOTS_AT = 16
_ADDRESS, _DIMS, _STRIDES, _SLOTS = 0, 1, 6, 10
_MOST_RANK = 5

_LANES = 32

# Of a tensor map: what addresses and strides are multiples of, and the bound of strides.
_GRANULE = 16
_PITCH_BITS = 40


def capacity(words: int) -> int:
    """How many words the head kernel of a program takes.

    Raises:
        ValueError: there is none for so many.
    """
    for most in CAPACITIES:
        if words <= most:
            return most
    raise ValueError(
        f"a program has {words} words that differ from call to call, sizes and addresses of its "
        f"tensors; there can be {CAPACITIES[-1]}. Divide the model into several programs"
    )


def emit_head(words: int, architecture: Architecture) -> KernelInterface:
    """Emits a head kernel at the current point, as ``gpu.module @head_<records>_<words>``.

    Args:
        words: how many it takes.
        architecture: what it runs on.

    Raises:
        LoweringError: it is not one of `CAPACITIES`.
    """
    if words not in CAPACITIES:
        raise LoweringError(
            f"has {words} words; head kernels have {', '.join(map(str, CAPACITIES))}"
        )
    function = KernelFunction(f"head_{RECORDS}_{words}", architecture, threads=THREADS)
    call = _Call(function, words)
    with function.body():
        first = mul(nvvm.read_ptx_sreg_ctaid_x(i32()), THREADS // _LANES)
        threads = Threads.read()
        number = add(first, threads.warp)
        with when(compare("ult", number, call.count)):
            _follow(call, _Record(call, number, threads.lane))
    return function.interface(Grid((), 0), shared_bytes=0)


def head_unit(words: int, arch: str, tool: Tool) -> CubinUnit:
    """What is built for a program: the head kernel for so many words or more.

    Args:
        words: of a call of the program.
        arch: ``sm_90a``.
        tool: the assembler.

    Raises:
        ValueError: no head kernel takes so many words.
    """
    taken = capacity(words)
    pipeline = f"shapejit-add-gpu-head{{words={taken}}}"
    text = f'module attributes {{shapejit.target = "cuda:{arch}"}} {{\n}}\n'
    key = VariantKey(
        kind="head",
        dtypes=(),
        layouts=(),
        math_mode="ieee",
        epilogue="",
        text=text_digest(text),
        schedule=sorted_items({"name": f"head_{RECORDS}_{taken}", "pipeline": pipeline}),
        alignment=_GRANULE,
        parameters="by-value",
        index_bits=64,
        target=TargetKey(TRIPLE, arch, (), _GRANULE),
        opt_level=3,
        toolchain=sorted_items({**dict(fingerprint.toolchain()), "ptxas": tool.version}),
        passes=fingerprint.pass_digest(),
    )
    return CubinUnit(key, text, pipeline, arch, key.opt_level, tool)


class _Call:
    """The parameters of the kernel."""

    def __init__(self, function: KernelFunction, words: int) -> None:
        self.table = function.unlisted(pointer(1))
        self.block = function.unlisted(i64())
        self.nothing = function.unlisted(i64())
        self.count = function.unlisted(i32())
        by_value = f"llvm.byval = !llvm.array<{words} x i64>, llvm.align = 8 : i64"
        self._words = function.unlisted(pointer(), f"{{{by_value}, nvvm.grid_constant}}")

    def word(self, number: Value) -> Value:
        """The word of that number, i64."""
        return llvm.load(i64(), _element(self._words, number, i64()))


class _Record:
    """A record of the table in registers: what all lanes know of it, and each lane's slot."""

    def __init__(self, call: _Call, number: Value, lane: Value) -> None:
        self.lane = lane
        start = add(llvm.ptrtoint(i64(), call.table), mul(wide(number), RECORD_BYTES))
        header = llvm.load(
            ir.VectorType.get([4], i32()), llvm.inttoptr(pointer(1), start), alignment=16
        )
        offset, kinds, known = (vector.extract(header, [], [i]) for i in range(3))
        self.target = add(call.block, wide(offset))
        self.kind = and_(kinds, 0xFF)
        self.rank = and_(shr(kinds, 8), 0xFF)
        self.element_shift = and_(shr(kinds, 16), 0xFF)
        self.strides = shr(kinds, 24)
        self.value = self._value(call, start, known)

    def _value(self, call: _Call, start: Value, known: Value) -> Value:
        """What the lane's slot stands for, i64; of lanes beyond the slots, what the last does."""
        slot = umin(self.lane, _SLOTS - 1)
        place = add(start, add(wide(mul(slot, 8)), _SLOTS_AT))
        held = llvm.load(i64(), llvm.inttoptr(pointer(1), place))
        # Of an encoded map all lanes take the first slot; each has a word from there on.
        is_encoded = compare("eq", self.kind, ENCODED_MAP)
        first = llvm.load(i64(), llvm.inttoptr(pointer(1), add(start, _SLOTS_AT)))
        held = select(is_encoded, add(first, wide(umin(self.lane, MAP_WORDS - 1))), held)
        is_known = compare("ne", and_(shr(known, slot), 1), 0)
        number = select(is_known, 0, arith.trunci(i32(), held))
        return select(is_known, held, call.word(number))

    def has(self, slot: int) -> Value:
        """Whether this is the lane of a slot."""
        return compare("eq", self.lane, slot)


def _follow(call: _Call, record: _Record) -> None:
    """Does what a record says."""
    sides = Branches(compare("uge", record.kind, TENSOR_MAP))
    with sides.then():
        maps = Branches(compare("eq", record.kind, TENSOR_MAP))
        with maps.then():
            _replace_map(call, record)
        with maps.otherwise(), when(compare("ult", record.lane, MAP_WORDS)):
            place = add(record.target, wide(mul(record.lane, 8)))
            llvm.store(record.value, llvm.inttoptr(pointer(1), place), alignment=8)
        # Those who acquire the map, in the kernels to come, see it whole.
        nvvm.fence_proxy_release(ir.Attribute.parse("#nvvm.mem_scope<gpu>"))
    with sides.otherwise(), when(record.has(0)):
        target = llvm.inttoptr(pointer(1), record.target)
        sizes = Branches(compare("eq", record.kind, 0))
        with sizes.then():
            llvm.store(arith.trunci(i32(), record.value), target)
        with sizes.otherwise():
            llvm.store(record.value, target, alignment=8)


def _replace_map(call: _Call, record: _Record) -> None:
    is_size = compare("ult", sub(record.lane, _DIMS), record.rank)
    nothing_there = and_(is_size, compare("eq", record.value, 0))
    vote = ir.Attribute.parse("#nvvm<vote_sync_kind any>")
    empty = nvvm.vote_sync(integer(1), constant(-1), nothing_there, vote)
    address = select(empty, call.nothing, record.value)
    ptx.replace_map_address(record.target, address, record.has(_ADDRESS))
    size = select(empty, 1, arith.trunci(i32(), record.value))
    for dim in range(_MOST_RANK):
        ptx.replace_map_dim(record.target, dim, size, and_(is_size, record.has(_DIMS + dim)))
    with when(compare("ne", record.strides, 0)):
        pitch = _pitch(record.value, wide(record.element_shift))
        for dim in range(_MOST_RANK - 1):
            wanted = compare("ne", and_(record.strides, 1 << dim), 0)
            own = and_(wanted, record.has(_STRIDES + dim))
            ptx.replace_map_stride(record.target, dim, pitch, own)
            # The next lane reads what this one wrote.
            nvvm.bar_warp_sync(constant(-1))


def _pitch(stride: Value, element_shift: Num) -> Value:
    """A stride in bytes, as a map can have it."""
    pitch = shl(stride, element_shift)
    odd = compare("ne", and_(pitch, _GRANULE - 1), 0)
    huge = compare("ne", shr(pitch, _PITCH_BITS), 0)
    return select(or_(odd, huge), value(_GRANULE, i64()), pitch)


def _element(base: Value, index: Value, type_: Type) -> Value:
    """The address of an element of an array in generic memory."""
    dynamic = -(1 << 31)  # says that the index is an operand
    flags = llvm.GEPNoWrapFlags.none
    return llvm.getelementptr(pointer(), base, [index], [dynamic], type_, flags)


__all__ = ["CAPACITIES", "RECORD_BYTES", "THREADS", "capacity", "emit_head", "head_unit"]
