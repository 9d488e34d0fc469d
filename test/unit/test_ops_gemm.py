# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""`shapejit.ops.gemm` up to the launch: what its kernels compute, on a simulated GPU."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import mlir.ir as ir
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from reference.hopper.launch import kernel_function, simulate
from shapejit import ir as sir
from shapejit import ops, passes
from shapejit.errors import ShapeJitError
from shapejit.gpu.interface import KernelInterface, TensorMap
from shapejit.ops.gemm_layout import GemmLayout, gemm_layout
from shapejit.ops.gemm_operands import (
    Operands,
    check,
    check_out,
    product,
    result_shape,
)
from shapejit.ops.gemm_plan import Prepared, UnevenValueError
from shapejit.ops.gemm_spec import ACTIVATIONS, GemmKind, kernel_text
from shapejit.ops.tensors import Rules, reach
from shapejit.pass_host import run_pipeline
from shapejit.symbolic import Expr
from unit.tensors_without_memory import KINDS

ALIGNED, UNALIGNED = "persistent_64x64x64_s3_w1", "unaligned_128x128x64_s3_w2"

ACTIVATION = {
    None: lambda x: x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@functools.lru_cache(maxsize=256)
def lowered(kind: GemmKind) -> tuple[Any, KernelInterface]:
    """The function of a kind's kernel, and its interface."""
    passes.register_all()
    schedule = ALIGNED if kind.aligned else UNALIGNED
    with ir.Context(), ir.Location.unknown():
        text = f'module attributes {{shapejit.target = "cuda:sm_90a"}} {{\n{kernel_text(kind)}\n}}'
        module = ir.Module.parse(text)
        run_pipeline(module, "shapejit-verify-shapes", stage="test")
        run_pipeline(module, f"shapejit-lower-gemm-to-nvgpu{{schedule={schedule}}}", stage="test")
        [code] = [op for op in sir.operations(sir.module_block(module)) if op.name == "gpu.module"]
        interface = KernelInterface.from_json(
            ir.StringAttr(code.attributes["shapejit.interface"]).value
        )
        _kept.append(module)
        return kernel_function(code), interface


_kept: list[Any] = []  # a function lives as long as its module


def layout_of(operands: Operands) -> GemmLayout:
    return gemm_layout(product(operands, result_shape(operands), 0))


def memory_of(tensor: Tensor) -> Tensor:
    """What a tensor spans in memory, flat."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,))


def reference(operands: Operands) -> Tensor:
    """In float64."""
    a, b, bias, gate, residual = (
        None if tensor is None else tensor.double() for tensor in operands[:5]
    )
    result: Tensor = a @ b
    if bias is not None:
        result = result + bias
    result = ACTIVATION[operands.activation](result)
    if gate is not None:
        result = result * (a @ gate)
    return result if residual is None else result + residual


def run(operands: Operands, seed: int = 0) -> Tensor:
    layout = layout_of(operands)
    function, interface = lowered(layout.kind)
    shape = result_shape(operands)
    shifts = [tensor.data_ptr() % 256 for tensor in operands.tensors]
    return simulate(
        function,
        interface,
        [memory_of(tensor) for tensor in operands.tensors],
        torch.empty(shape, dtype=operands.result_dtype),
        layout.symbols,
        shifts=[*shifts, 0],
        seed=seed,
    )


def assert_right(operands: Operands, result: Tensor) -> None:
    """Rounding of the result, and of sums in float32."""
    expected = reference(operands)
    assert result.shape == expected.shape
    if expected.numel():
        unit = torch.finfo(result.dtype).eps
        scale = expected.abs().max().clamp(min=1.0)
        assert (result.double() - expected).abs().max() <= (unit + 1e-4) * scale


# Operands of all kinds ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelling:
    """How a tensor lies in memory.

    Attributes:
        transposed: the last two dims are exchanged in memory.
        padding: elements between the end of a row and the next row.
        shift: elements before the first one.
        step: elements from one to the next of a row.
    """

    transposed: bool = False
    padding: int = 0
    shift: int = 0
    step: int = 1

    def make(self, shape: tuple[int, ...], dtype: torch.dtype, generator: Any) -> Tensor:
        *batch, rows, columns = shape
        if self.transposed:
            rows, columns = columns, rows
        width = columns * self.step + self.padding
        count = functools.reduce(lambda x, y: x * y, batch, 1) * rows * width
        memory = torch.randn(count + self.shift, generator=generator).to(dtype)[self.shift :]
        full = memory.view(*batch, rows, width)[..., : columns * self.step : self.step]
        return full.transpose(-1, -2) if self.transposed else full


spellings = st.builds(
    Spelling,
    transposed=st.booleans(),
    padding=st.sampled_from([0, 0, 8, 24, 1]),
    shift=st.sampled_from([0, 0, 0, 1, 8]),
    step=st.sampled_from([1, 1, 1, 2]),
)
sizes = st.sampled_from([1, 2, 3, 7, 8, 16, 24, 33, 64, 65, 72])


@st.composite
def calls(draw: Any) -> Operands:
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16]))
    m, n, k = draw(sizes), draw(sizes), draw(st.sampled_from([0, 1, 5, 8, 16, 64, 72, 130]))
    batch = draw(st.sampled_from([(), (), (2,), (1,), (2, 3), (3, 1)]))
    shared = draw(st.booleans())
    some = st.none() | st.just(True)
    extra_types = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])

    def factor(rows: int, columns: int, dims: tuple[int, ...]) -> Tensor:
        return draw(spellings).make((*dims, rows, columns), dtype, generator)

    def extra(shape: tuple[int, ...]) -> Tensor:
        return draw(spellings).make(shape, draw(extra_types), generator)

    gated = draw(some) is not None
    rows = draw(st.sampled_from([m, 1]))
    return Operands(
        a=factor(m, k, batch),
        b=factor(k, n, () if shared else batch),
        bias=draw(extra_types.map(lambda t: torch.randn(n, generator=generator).to(t)) | st.none()),
        gate=factor(k, n, ()) if gated else None,
        residual=extra((*batch, rows, n)) if draw(some) else None,
        activation=draw(st.sampled_from([None, *ACTIVATIONS])),
        out_dtype=draw(st.none() | extra_types),
    )


@settings(
    max_examples=16,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(calls())
def test_products_of_all_kinds(operands: Operands) -> None:
    assert_right(operands, run(operands))


def plain(m: int, n: int, k: int, **changes: Any) -> Operands:
    """``x @ w.mT`` of contiguous tensors."""
    generator = torch.Generator().manual_seed(m * n + k)
    x = torch.randn(m, k, generator=generator).bfloat16()
    w = torch.randn(n, k, generator=generator).bfloat16()
    values = {"a": x, "b": w.mT, "bias": None, "gate": None, "residual": None}
    return Operands(**{**values, "activation": None, "out_dtype": None, **changes})


@pytest.mark.parametrize("n", [7, 9, 70])
def test_rows_that_are_no_multiple_of_16_bytes(n: int) -> None:
    operands = plain(66, n, 64, residual=torch.randn(66, n).bfloat16())
    kind = layout_of(operands).kind
    assert kind.aligned
    assert kind.row_remainder == n % 8
    assert_right(operands, run(operands))


@pytest.mark.parametrize("shift", [0, 2, 8])
def test_a_residual_in_a_tensor_map(shift: int) -> None:
    """It is read by TMA at the addresses that TMA takes, and only there."""
    residual = torch.empty(66 * 64 + shift).bfloat16()[shift:].view(66, 64)
    operands = plain(66, 64, 64, residual=residual.copy_(torch.randn(66, 64)))
    kind = layout_of(operands).kind
    assert kind.residual is not None
    assert kind.residual.dense == (residual.data_ptr() % 16 == 0) == (shift != 2)
    _, interface = lowered(kind)
    maps = [each.operand for each in interface.parameters if isinstance(each, TensorMap)]
    assert (2 in maps) == kind.residual.dense
    assert_right(operands, run(operands))


def test_kinds_do_not_depend_on_sizes() -> None:
    kinds = {layout_of(plain(m, n, k)).kind for m in (1, 2, 77) for n in (8, 64) for k in (8, 256)}
    assert len(kinds) == 1


def test_batch_dims_join_the_rows() -> None:
    w = torch.randn(16, 64).bfloat16()
    x = torch.randn(3, 5, 64).bfloat16()
    layout = layout_of(Operands(x, w.mT, torch.randn(16), None, None, None, None))
    assert (layout.kind.batch_dims, layout.m, layout.batch) == (0, 15, 1)
    # Heads of [batch, tokens, heads, width], read as [batch, heads, tokens, width].
    heads = torch.randn(2, 5, 4, 64).bfloat16().transpose(1, 2)
    layout = layout_of(Operands(heads, heads.mT, None, None, None, None, None))
    assert (layout.kind.batch_dims, layout.m, layout.batch) == (2, 5, 8)
    assert layout.kind.aligned


@pytest.mark.parametrize("n", [64, 70])
@pytest.mark.parametrize("shift", [0, 1])
def test_values_at_other_numbers_of_rows(n: int, shift: int) -> None:
    """A plan made for one number of rows gives what a layout of another one gives."""

    def call(m: int) -> Operands:
        a = torch.randn(m * 96 + shift)[shift:].view(m, 96).bfloat16()
        if shift:
            a = torch.empty(m * 96 + 1).bfloat16()[1:].view(m, 96).copy_(a)
        return plain(m, n, 96, a=a, residual=torch.randn(m, n).bfloat16(), bias=torch.randn(n))

    first = layout_of(call(5))
    _, interface = lowered(first.kind)
    loaded: Any = SimpleNamespace(values=[Expr.parse(text) for text in interface.values])
    prepared = Prepared.of(loaded, first)
    for m in (2, 5, 77, 8191):
        other = layout_of(call(m))
        assert other.kind == first.kind
        assert prepared.at(m) == [value.evaluate(other.symbols) for value in loaded.values]


@pytest.mark.parametrize("n", [64, 70, 1])
@pytest.mark.parametrize("broadcast", [False, True])
def test_one_row_is_of_the_kind_of_more(n: int, broadcast: bool) -> None:
    """So that what is compiled for any number of rows serves it, too."""

    def kind(m: int) -> GemmKind:
        residual = torch.randn(n) if broadcast else torch.randn(m, n)
        return layout_of(plain(m, n, 96, residual=residual, bias=torch.randn(n))).kind

    assert kind(1) == kind(2) == kind(77)


def test_values_with_the_rows_as_a_factor() -> None:
    layout = layout_of(plain(5, 64, 96))
    loaded: Any = SimpleNamespace(values=[Expr.parse("s0 * s1 * 3 + s2")])
    assert Prepared.of(loaded, layout).at(7) == [7 * 64 * 3 + 96]


def test_values_that_are_no_straight_line() -> None:
    layout = layout_of(plain(5, 64, 96))
    span = next(iter(layout.row_symbols - {layout.row_symbol}))
    wrong = {
        "s0 * s0": "straight line",
        "s1 * (s0 floordiv 2)": "straight line",
        f"s{span}": "reaches",
    }
    for text, words in wrong.items():
        loaded: Any = SimpleNamespace(values=[Expr.parse(text)])
        with pytest.raises(UnevenValueError, match=words):
            Prepared.of(loaded, layout)


# Rejected calls -----------------------------------------------------------------------------------


def rejected(operands: Operands) -> str:
    with pytest.raises(ShapeJitError) as info:
        result_shape(operands)
    return str(info.value)


def test_shapes_that_do_not_fit() -> None:
    a, b = torch.zeros(4, 8), torch.zeros(8, 6)
    call = Operands(a, b, None, None, None, None, None)
    assert "its dim -2 must be the last size" in rejected(call._replace(b=torch.zeros(6, 8)))
    assert "at least two dims" in rejected(call._replace(a=torch.zeros(8)))
    assert '"gate"' in rejected(call._replace(gate=torch.zeros(8, 5)))
    assert "broadcast" in rejected(call._replace(bias=torch.zeros(4)))
    assert "broadcast" in rejected(call._replace(residual=torch.zeros(2, 4, 6)))
    batched = call._replace(a=torch.zeros(2, 4, 8), b=torch.zeros(3, 8, 6))
    assert "batch dims" in rejected(batched)


def test_tensors_on_the_cpu() -> None:
    with pytest.raises(ShapeJitError, match=r"SJ-DEVICE-003.*on cpu.*torch\.matmul"):
        check(plain(2, 8, 8))


class Odd:
    """A tensor of another library that DLPack cannot hand over."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("no such memory.")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


Q = torch.zeros(1, 1, 8, 8).bfloat16()


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "check_device", lambda *_: None)
    call = plain(2, 8, 8, bias=torch.zeros(8))
    check(call)
    for name, tensor in call.named():
        changed = call._replace(**{name: KINDS[kind](tensor)})
        with pytest.raises(ShapeJitError, match=f'SJ-ARG-012 "{name}" is a .*to_local'):
            check(changed)
    with pytest.raises(ShapeJitError, match='SJ-ARG-012 "out"'):
        check_out(KINDS[kind](torch.zeros(2, 8).bfloat16()), call, (2, 8))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "None, but it must be a tensor"),
        ([1.0], "a list, but it must be a tensor"),
        (Odd(), "a Odd, but DLPack does not hand it over: no such memory. Pass one of torch"),
    ],
)
def test_operands_that_are_no_tensors(wrong: Any, message: str) -> None:
    for multiply in (ops.gemm, ops.compile_gemm):
        with pytest.raises(ShapeJitError, match=rf'SJ-ARG-009 "b" of gemm\(\) is {message}'):
            multiply(Q, wrong)
    for attend in (ops.attention, ops.compile_attention):
        with pytest.raises(ShapeJitError, match=rf'"k" of attention\(\) is {message}'):
            attend(Q, wrong, Q)


def test_fake_tensors_of_a_gpu_are_refused() -> None:
    """Before a driver is looked for."""
    with FakeTensorMode():
        a, b = (torch.empty(8, 8, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    with pytest.raises(ShapeJitError, match='SJ-ARG-012 "a" is a FakeTensor'):
        ops.gemm(a, b)
    with pytest.raises(ShapeJitError, match='SJ-ARG-012 "q" is a FakeTensor'):
        ops.attention(*[a.view(1, 1, 8, 8)] * 3)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (torch.zeros(2, 9).bfloat16(), "shape"),
        (torch.zeros(2, 8), "torch.float32"),
        (torch.zeros(8, 2).bfloat16().mT, "contiguous"),
        ([0.0], "a list, but results are written to a tensor"),
    ],
)
def test_results_that_do_not_fit(out: Tensor, words: str) -> None:
    with pytest.raises(ShapeJitError, match=words):
        check_out(out, plain(2, 8, 8), (2, 8))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=3))
def test_how_far_tensors_reach(dims: list[tuple[int, int]]) -> None:
    """Against the indices of all their elements, also with other numbers of rows."""

    def span(sizes: list[int], strides: list[int]) -> int:
        indices = torch.zeros(sizes, dtype=torch.int64)
        for dim, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
            shape = [size if each == dim else 1 for each in range(len(sizes))]
            indices = indices + torch.arange(size).view(shape) * stride
        return 2 * (int(indices.max()) + 1) if indices.numel() else 0

    sizes, strides = [size for size, _ in dims], [stride for _, stride in dims]
    memory = torch.zeros(200).bfloat16()
    tensor = memory.as_strided(sizes, strides)
    assert reach(tensor, free_rows=False) == (span(sizes, strides), 0)
    if sizes[0]:
        constant, factor = reach(tensor, free_rows=True)
        for rows in range(1, 9):
            assert constant + factor * rows == span([rows, *sizes[1:]], strides)
