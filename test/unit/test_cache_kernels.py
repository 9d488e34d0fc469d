# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels in the cache: equal kernels of any model have one key, and a hit lowers nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlir.ir as ir
import pytest
import torch

from shapejit import ir as sir
from shapejit import passes, threads
from shapejit.cache.disk import DiskTier
from shapejit.cache.kernels import Recipe, Unit, host_unit, kernel_unit, name_kernels, take_found
from shapejit.cache.objects import ObjectCache
from shapejit.codegen import HostTarget, JitLibrary, compile_object, to_llvm_dialect
from shapejit.pass_host import run_pipeline

passes.register_all()

HOST = HostTarget.host()
RECIPE = Recipe(HOST, 2, f"shapejit-lower-to-cpu{{vector-bytes={HOST.vector_bytes}}}")

VECTOR = "tensor<?xf32, #shapejit.shape<[s0]>>"
ID = "affine_map<(d0) -> (d0)>"


def pointwise(name: str, op: str, *, value: str = "x", line: int = 1) -> str:
    """A kernel of one symbol that applies a unary op of two equal operands."""
    return f"""
  shapejit.kernel @{name} symbols 1 (%{value}: {VECTOR}) {{
    %r = shapejit.loop over [s0] ins(%{value} at {ID} : {VECTOR}) outs({ID} : {VECTOR}) {{
    ^bb0(%a: f32):
      %b = {op} %a, %a : f32 loc("model.py":{line}:1)
      shapejit.yield %b : f32
    }}
    shapejit.yield %r : {VECTOR}
  }}"""


def program(kernels: list[str], launches: list[str]) -> str:
    """A module whose function applies kernels one after the other."""
    steps, value = [], "%x"
    for number, name in enumerate(launches):
        steps.append(
            f"  %{number} = shapejit.launch @{name} affine_map<()[s0] -> (s0)> ({value}) "
            f": ({VECTOR}) -> {VECTOR}"
        )
        value = f"%{number}"
    return "\n".join(
        [
            "shapejit.symbol @n {id = 0, min = 1, max = 64}",
            *kernels,
            f'func.func @main(%x: {VECTOR} {{shapejit.kind = "input"}}) -> {VECTOR} {{',
            *steps,
            f"  return {value} : {VECTOR}",
            "}",
        ]
    )


DOUBLE, SQUARE = "arith.addf", "arith.mulf"


@pytest.fixture(autouse=True)
def _context() -> Any:
    with ir.Context(), ir.Location.unknown():
        yield


def parse(text: str) -> Any:
    return ir.Module.parse(text)


def unit_of(text: str, recipe: Recipe = RECIPE) -> Unit:
    module = parse(text)
    (op,) = sir.kernels(module).values()
    return kernel_unit(op, recipe)


# Keys.


def test_names_and_locations_do_not_matter() -> None:
    unit = unit_of(pointwise("a", DOUBLE))
    assert unit_of(pointwise("other", DOUBLE, value="input", line=40)) == unit
    assert "model.py" not in unit.text and "@a" not in unit.text
    assert unit.symbol == f"sj_loop_{unit.key.digest[:32]}"


@pytest.mark.parametrize(
    "text",
    [
        pointwise("a", SQUARE),
        pointwise("a", DOUBLE).replace("f32", "f64"),
        pointwise("a", DOUBLE)
        .replace("shape<[s0]>", "shape<[s0 * 2]>")
        .replace("[s0]", "[s0 * 2]"),
        pointwise("a", DOUBLE).replace("addf %a, %a :", "addf %a, %a fastmath<fast> :"),
    ],
)
def test_what_the_kernel_does_matters(text: str) -> None:
    assert unit_of(text).key.digest != unit_of(pointwise("a", DOUBLE)).key.digest


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(HOST, 3, RECIPE.pipeline),
        Recipe(HOST, 2, RECIPE.pipeline + ",cse"),
        Recipe(HostTarget.from_name("x86-64"), 2, RECIPE.pipeline),
        Recipe(HostTarget(HOST.triple, HOST.cpu, HOST.features + ",-fma", 16), 2, RECIPE.pipeline),
    ],
)
def test_how_it_is_compiled_matters(recipe: Recipe) -> None:
    text = pointwise("a", DOUBLE)
    assert unit_of(text, recipe).key.digest != unit_of(text).key.digest


def test_the_record_is_readable() -> None:
    record = unit_of(GEMM).key.record()
    assert record["kind"] == "gemm"
    assert record["dtypes"] == ("f32", "f32", "f32")
    assert record["layouts"][1] == "(d0, d1, d2) -> (d1, d2)"
    assert record["epilogue"]
    assert record["target"]["cpu"] == HOST.cpu
    assert record["schedule"]["panel"] == HOST.panel
    assert not unit_of(GEMM.replace(EPILOGUE, "")).key.epilogue


EPILOGUE = """epilogue {
    ^bb0(%acc: f32):
      %e = math.absf %acc : f32
      shapejit.yield %e : f32
    }"""
A = "tensor<?x8xf32, #shapejit.shape<[s0, 8]>>"
W = "tensor<4x8xf32, #shapejit.shape<[4, 8]>>"
R = "tensor<?x4xf32, #shapejit.shape<[s0, 4]>>"
GEMM = f"""
  shapejit.kernel @g symbols 1 (%a: {A}, %w: {W}) {{
    %r = shapejit.gemm over [s0, 4, 8]
      lhs(%a at affine_map<(d0, d1, d2) -> (d0, d2)> : {A})
      rhs(%w at affine_map<(d0, d1, d2) -> (d1, d2)> : {W}) {EPILOGUE} -> {R}
    shapejit.yield %r : {R}
  }}"""


# Names.


def launched(module: Any) -> list[str]:
    return [
        ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
        for op in sir.walk(module.operation)
        if op.name == "shapejit.launch"
    ]


def test_kernels_are_named_by_their_keys_and_merged() -> None:
    kernels = [pointwise("a", DOUBLE), pointwise("b", SQUARE), pointwise("c", DOUBLE, line=9)]
    module = parse(program(kernels, ["a", "b", "c", "b"]))
    units = name_kernels(module, RECIPE)
    double, square = units
    assert launched(module) == [double, square, double, square]
    assert list(sir.kernels(module)) == [double, square]
    assert [unit.symbol for unit in units.values()] == [double, square]
    assert module.operation.verify()


def test_two_models_that_name_and_number_differently_share_kernels() -> None:
    one = parse(program([pointwise("a", DOUBLE), pointwise("b", SQUARE)], ["a", "b"]))
    other = parse(program([pointwise("p", SQUARE), pointwise("q", DOUBLE)], ["p", "q", "p"]))
    assert set(name_kernels(one, RECIPE)) == set(name_kernels(other, RECIPE))


def test_the_names_of_kernels_may_cross() -> None:
    """A kernel may bear, before, the very name that another gets."""
    double = unit_of(pointwise("a", DOUBLE)).symbol
    module = parse(
        program([pointwise(double, SQUARE), pointwise("a", DOUBLE)], [double, "a", double])
    )
    square = unit_of(pointwise("a", SQUARE)).symbol
    assert list(name_kernels(module, RECIPE)) == [square, double]
    assert launched(module) == [square, double, square]
    assert module.operation.verify()


# From IR to running code, through the cache.


class Built:
    """A module compiled through a cache, as the pipeline does it.

    Attributes:
        lowered: names of the parts that were lowered to the LLVM dialect.
        origins: where the code of each part came from.
    """

    def __init__(self, text: str, cache: ObjectCache) -> None:
        module = parse(text)
        units = name_kernels(module, RECIPE)
        found = take_found(module, units, cache)
        assert module.operation.verify()
        for pipeline in (RECIPE.pipeline, "shapejit-plan-memory", "shapejit-lower-to-host"):
            run_pipeline(module, pipeline, stage="test")
        self.lowered: list[str] = []
        fetched = list(found.values())
        for part in sir.operations(sir.module_block(module)):
            if part.name != "builtin.module":
                continue
            name = ir.StringAttr(part.attributes["sym_name"]).value
            if name in found:
                continue
            unit = units.get(name) or host_unit(part, RECIPE)
            hit = cache.get(unit.key)
            fetched.append(hit or cache.get_or_build(unit.key, self._builder(name, part)))
        self.origins = sorted(each.origin for each in fetched)
        self._leases = [each.lease for each in fetched]
        self._library = JitLibrary([each.data for each in fetched], threads.symbols())
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
            self._library.lookup("shapejit_run")
        )

    def _builder(self, name: str, part: Any) -> Callable[[], bytes]:
        def build() -> bytes:
            self.lowered.append(name)
            to_llvm_dialect(part)
            return compile_object(part, HOST, RECIPE.opt_level)

        return build

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.empty_like(x)
        arena = torch.empty(4096, dtype=torch.uint8)
        symbols = (ctypes.c_int64 * 1)(x.numel())
        buffers = (ctypes.c_void_p * 2)(x.data_ptr(), result.data_ptr())
        self._run(symbols, buffers, arena.data_ptr() + -arena.data_ptr() % 64)
        return result


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(1 << 20, DiskTier(tmp_path / "cache", 1 << 30))


X = torch.linspace(-3, 5, 13)


def test_code_from_the_cache_runs_and_nothing_is_lowered(
    cache: ObjectCache, tmp_path: Path
) -> None:
    text = program([pointwise("a", DOUBLE), pointwise("b", SQUARE)], ["a", "b", "a"])
    expected = (X + X) * (X + X) * 2
    built = Built(text, cache)
    assert built.origins == ["built"] * 3
    assert len(built.lowered) == 3
    torch.testing.assert_close(built(X), expected)
    again = Built(text, cache)
    assert (again.origins, again.lowered) == (["memory"] * 3, [])
    torch.testing.assert_close(again(X), expected)
    new_process = ObjectCache(1 << 20, DiskTier(tmp_path / "cache", 1 << 30))
    from_disk = Built(text, new_process)
    assert (from_disk.origins, from_disk.lowered) == (["disk"] * 3, [])
    torch.testing.assert_close(from_disk(X), expected)


def test_another_model_takes_the_kernels_that_it_shares(cache: ObjectCache) -> None:
    Built(program([pointwise("a", DOUBLE), pointwise("b", SQUARE)], ["a", "b"]), cache)
    cube = pointwise("z", SQUARE).replace("mulf %a, %a", "divf %a, %a")
    other = Built(program([pointwise("k", SQUARE), cube], ["k", "z", "k"]), cache)
    assert other.origins == ["built", "built", "memory"]
    assert [name.split("_")[1] for name in other.lowered] == ["loop", "host"]
    torch.testing.assert_close(other(X), torch.ones_like(X))


def test_a_damaged_entry_is_never_run(cache: ObjectCache, tmp_path: Path) -> None:
    text = program([pointwise("a", DOUBLE)], ["a"])
    Built(text, cache)
    for path in (tmp_path / "cache" / "objects").iterdir():
        data = bytearray(path.read_bytes())
        data[-200] ^= 0x10
        path.write_bytes(data)
    new_process = ObjectCache(1 << 20, DiskTier(tmp_path / "cache", 1 << 30))
    with pytest.warns(UserWarning, match="is built again: its payload does not have the checksum"):
        rebuilt = Built(text, new_process)
    assert rebuilt.origins == ["built", "built"]
    torch.testing.assert_close(rebuilt(X), X + X)
