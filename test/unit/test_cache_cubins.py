# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Kernels for GPUs in the cache: their keys and their entries."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlir.ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit import ir as sir
from shapejit.cache import fingerprint
from shapejit.cache.cubins import (
    CubinEntry,
    CubinEntryError,
    CubinRecipe,
    CubinUnit,
    cubin_unit,
)
from shapejit.codegen.cuda_tools import Tool
from shapejit.codegen.ptxas import Resources
from unit.cache_samples import examples
from unit.cubin_samples import RESOURCES, TOOL
from unit.gpu_modules import SCALE_INTERFACE, gemm

RECIPE = CubinRecipe("persistent_128x256x64_s4_w2")


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with ir.Context(), ir.Location.unknown():
        yield


def unit_of(text: str, recipe: CubinRecipe = RECIPE, tool: Tool = TOOL) -> CubinUnit:
    module = ir.Module.parse(text)
    before = str(module)
    (kernel,) = sir.kernels(module).values()
    unit = cubin_unit(kernel, recipe, tool)
    assert str(module) == before
    return unit


# Keys.


def test_names_and_locations_do_not_matter() -> None:
    unit = unit_of(gemm())
    assert unit_of(gemm("other", value="input")) == unit
    assert unit_of(gemm().replace("bf16\n", 'bf16 loc("model.py":3:1)\n')) == unit
    assert unit.name == "gemm persistent_128x256x64_s4_w2"


@pytest.mark.parametrize(
    "text",
    [
        gemm(epilogue="addf"),
        gemm(n=72),
        gemm().replace("bf16", "f16"),
        gemm().replace("(d2, d1)", "(d1, d2)"),
        gemm().replace("maximumf %acc, %1 :", "maximumf %acc, %1 fastmath<nnan> :"),
    ],
)
def test_what_the_kernel_does_matters(text: str) -> None:
    assert unit_of(text).key.digest != unit_of(gemm()).key.digest


def test_a_record_names_all_that_determines_the_code() -> None:
    recipe = CubinRecipe("small_m_64x16x64_s9_w1", parameters="block", programmatic=True)
    record = unit_of(gemm(), recipe).key.record()
    assert record["kind"] == "gemm"
    assert record["dtypes"] == ("bf16",) * 4
    assert record["layouts"][1] == "(d0, d1, d2) -> (d2, d1)"
    assert record["schedule"]["name"] == "small_m_64x16x64_s9_w1"
    assert record["schedule"]["programmatic"] is True
    assert record["schedule"]["multiprocessors"] == 0
    assert record["parameters"] == "block"
    assert record["alignment"] == 16
    assert record["target"]["triple"] == "nvptx64-nvidia-cuda"
    assert record["target"]["cpu"] == "sm_90a"
    assert record["toolchain"] == {**dict(fingerprint.toolchain()), "ptxas": "13.0.88"}
    assert record["passes"] == fingerprint.pass_digest()
    assert record["epilogue"] == unit_of(gemm(n=72)).key.epilogue != ""


recipes = st.builds(
    CubinRecipe,
    schedule=st.sampled_from(["persistent_128x256x64_s4_w2", "small_m_64x16x64_s9_w1_k2"]),
    arch=st.sampled_from(["sm_90", "sm_90a", "sm_100a"]),
    parameters=st.sampled_from(["by-value", "block"]),
    alignment=st.sampled_from([1, 2, 16]),
    programmatic=st.booleans(),
    constant_weights=st.booleans(),
    multiprocessors=st.sampled_from([0, 114, 132]),
    math_mode=st.sampled_from(["ieee", "tf32"]),
    opt_level=st.integers(0, 3),
)
tools = st.builds(
    Tool,
    st.sampled_from([Path("/a/ptxas"), Path("/b/ptxas")]),
    st.sampled_from(["13.0.88", "13.1"]),
)


@examples(60)
@given(recipes, recipes, tools, tools)
def test_keys_are_equal_only_for_equal_recipes_and_assemblers(
    one: CubinRecipe, other: CubinRecipe, tool: Tool, other_tool: Tool
) -> None:
    with ir.Context(), ir.Location.unknown():
        same = one == other and tool.version == other_tool.version
        a, b = unit_of(gemm(), one, tool).key, unit_of(gemm(), other, other_tool).key
    assert (a.digest == b.digest) == (a == b) == same


@pytest.mark.parametrize("field", dataclasses.fields(CubinRecipe), ids=lambda field: field.name)
def test_every_field_of_a_recipe_matters(field: Any) -> None:
    others = {
        "schedule": "persistent_128x256x64_s4_w2_stream",
        "arch": "sm_100a",
        "parameters": "block",
        "alignment": 1,
        "programmatic": True,
        "constant_weights": True,
        "multiprocessors": 132,
        "math_mode": "tf32",
        "opt_level": 2,
    }
    changed = dataclasses.replace(RECIPE, **{field.name: others[field.name]})
    assert unit_of(gemm(), changed).key.digest != unit_of(gemm()).key.digest


def test_the_passes_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    before = unit_of(gemm())
    monkeypatch.setattr(fingerprint, "pass_digest", lambda: "another")
    assert unit_of(gemm()).key.digest != before.key.digest


def test_what_is_built_follows_from_the_key_alone() -> None:
    """The text of the unit is a module that parses and holds the kernel, whatever it was called."""
    unit = unit_of(gemm("anything"), CubinRecipe("swapped_256x112x64_s4_w2", programmatic=True))
    module = ir.Module.parse(unit.text)
    assert ir.StringAttr(module.operation.attributes["shapejit.target"]).value == "cuda:sm_90a"
    assert list(sir.kernels(module)) == ["gemm"]
    assert unit.pipeline == (
        "shapejit-lower-gemm-to-nvgpu{schedule=swapped_256x112x64_s4_w2 parameters=by-value "
        "programmatic=true}"
    )
    assert dict(unit.key.schedule)["pipeline"] == unit.pipeline


def test_a_kind_without_kernels_for_gpus() -> None:
    pack = """
!weight = tensor<16x8xf32, #shapejit.shape<[16, 8]>>
!packed = tensor<1x8x32xf32, #shapejit.shape<[1, 8, 32]>>
shapejit.kernel @packing symbols 0 (%w: !weight) {
  %0 = shapejit.pack %w {dim = 0, panel = 32} : !weight -> !packed
  shapejit.yield %0 : !packed
}
"""
    with pytest.raises(ValueError, match="no pass makes a GPU kernel of a pack; kinds are gemm"):
        unit_of(pack)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parameters": "register"}, "must be by-value or block, got 'register'"),
        ({"schedule": "a} , canonicalize{"}, "a schedule is letters, digits and _"),
        ({"schedule": ""}, "a schedule is letters, digits and _"),
    ],
)
def test_recipes_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RECIPE, **changes)


# Entries.

entries = st.builds(
    CubinEntry,
    name=st.text(max_size=8),
    interface=st.builds(
        dataclasses.replace,
        st.just(SCALE_INTERFACE),
        entry=st.text(max_size=8),
        threads=st.integers(32, 1024),
        values=st.lists(st.text(max_size=4), max_size=3).map(tuple),
        programmatic=st.booleans(),
    ),
    resources=st.builds(Resources, *(st.integers(0, 2**31) for _ in range(6))),
    cubin=st.binary(max_size=64),
)


@examples(100)
@given(entries)
def test_an_entry_survives(entry: CubinEntry) -> None:
    assert CubinEntry.decode(entry.encode()) == entry


def test_an_entry_is_readable() -> None:
    entry = CubinEntry("gemm__x", SCALE_INTERFACE, RESOURCES, b"\x7fELF\n\n")
    line, text, cubin = entry.encode().split(b"\n", 2)
    assert line == b"shapejit-cubin 1 %d" % len(text)
    fields = json.loads(text)
    assert fields["interface"]["entry"] == "scale"
    assert fields["resources"]["registers"] == 168
    assert cubin == entry.cubin


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "does not begin"),
        (b"\x7fELF", "does not begin"),
        (b"shapejit-cubin 2 2\n{}\n", "does not begin"),
        (b"shapejit-cubin 1 x\n{}\n", "does not begin"),
        (b"shapejit-cubin 1 2\n{}\n", "cannot be read: 'interface'"),
        (b"shapejit-cubin 1 9\n{}\n", "cannot be read"),
        (b'shapejit-cubin 1 16\n{"interface": 1}\n', "cannot be read"),
    ],
)
def test_what_is_no_entry(data: bytes, reason: str) -> None:
    with pytest.raises(CubinEntryError, match=reason):
        CubinEntry.decode(data)


def test_an_entry_cut_short() -> None:
    data = CubinEntry("gemm", SCALE_INTERFACE, RESOURCES, b"code").encode()
    for end in range(len(data) - len(b"\ncode")):
        with pytest.raises(CubinEntryError):
            CubinEntry.decode(data[:end])
