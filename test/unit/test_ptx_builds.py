# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whole builds of kernels for GPUs, from IR to machine code, and what dumps show of them."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlir.ir as ir
import pytest

from reference import sass
from shapejit import ir as sir
from shapejit.artefacts import KernelInfo, LaunchInfo, SymbolSpec
from shapejit.cache.cubins import CubinRecipe, CubinUnit, cubin_unit
from shapejit.cache.objects import ObjectCache
from shapejit.codegen import nvdisasm
from shapejit.codegen.builder import CubinBuilder, dumping_builder
from shapejit.codegen.cubin import BuildError, build_cubin
from shapejit.codegen.cuda_tools import Tool
from shapejit.codegen.ptxas import AssemblyError, find_ptxas
from shapejit.codegen.workers import Workers
from shapejit.dump import Dump
from shapejit.knobs import knobs
from shapejit.pass_host import PipelineError
from shapejit.symbolic import Expr
from unit.cache_samples import sample_key
from unit.cubin_samples import sample_entry, sample_unit
from unit.gpu_modules import SCALE_INTERFACE, gemm, scale_module
from unit.ptx_samples import needs_ptxas

pytestmark = needs_ptxas


@pytest.fixture(autouse=True)
def _temporary_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failures leave goes with the files of the tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def unit_of(text: str, pipeline: str = "canonicalize") -> CubinUnit:
    """A unit whose kernel is lowered already."""
    key = sample_key(schedule=(("name", "by_hand"),), text=text)
    return CubinUnit(key, text, pipeline, "sm_90a", 3, find_ptxas())


def test_a_build() -> None:
    entry = build_cubin(unit_of(scale_module()))
    assert entry.name == "scale"
    assert entry.interface == SCALE_INTERFACE
    assert entry.cubin.startswith(b"\x7fELF")
    assert 0 < entry.resources.registers < 64


def test_equal_units_give_equal_bytes_in_any_thread() -> None:
    units = [unit_of(scale_module(f"k{number % 3}")) for number in range(9)]
    with ThreadPoolExecutor(4) as pool:
        entries = [entry.encode() for entry in pool.map(build_cubin, units)]
    assert entries[:3] * 3 == entries
    assert len(set(entries)) == 3


BUILD = """
import hashlib, sys
from unit.test_ptx_builds import gemm_unit
from shapejit.codegen.cubin import build_cubin
entry = build_cubin(gemm_unit("persistent_128x256x64_s4_w2"))
print(hashlib.sha256(entry.encode()).hexdigest())
"""


def test_equal_units_give_equal_bytes_in_any_process() -> None:
    """Also where sets have another order."""
    printed = []
    for seed in ("1", "2"):
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        run = subprocess.run(
            [sys.executable, "-c", BUILD],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stderr
        printed.append(run.stdout.strip())
    assert len(printed[0]) == 64
    assert printed[0] == printed[1]


FORKED = """
import os, threading
from unit.test_ptx_builds import gemm_unit
from shapejit import pass_host
from shapejit.codegen import cubin
real, begun, on = pass_host.run_pipeline, threading.Event(), threading.Event()
def slow(module, pipeline, **arguments):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        on.wait(60)
    real(module, pipeline, **arguments)
cubin.run_pipeline = slow
unit = gemm_unit("small_m_64x16x64_s4_w1")
thread = threading.Thread(target=cubin.build_cubin, args=(unit,))
thread.start()
begun.wait(60)
child = os.fork()
if not child:
    os._exit(0 if cubin.build_cubin(unit).cubin else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
on.set()
thread.join()
"""


def test_a_forked_child_builds_while_its_parent_emits() -> None:
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "0"


def test_builds_by_a_builder() -> None:
    cache = ObjectCache(1 << 20)
    builder = CubinBuilder(lambda: cache, workers=Workers(lambda: 2))
    units = [unit_of(scale_module(f"k{number}")) for number in range(5)]
    found = builder.build_all(units)
    assert [found[unit.key].name for unit in units] == [f"k{number}" for number in range(5)]
    assert builder.stats().built == 5
    assert builder.stats().build_seconds > 0
    assert builder.stats().most_running <= 2


def gemm_unit(schedule: str) -> CubinUnit:
    """The unit of a product with a bias."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(gemm())
        (kernel,) = sir.kernels(module).values()
        return cubin_unit(kernel, CubinRecipe(schedule), find_ptxas())


@sass.needs_nvdisasm
def test_a_gemm_from_its_kernel_to_machine_code() -> None:
    schedule = "persistent_128x256x64_s4_w2"
    entry = build_cubin(gemm_unit(schedule))
    assert entry.name == entry.interface.entry == f"gemm__{schedule}"
    assert entry.interface.threads == 384
    assert entry.resources.spill_store_bytes == entry.resources.spill_load_bytes == 0
    function = sass.disassemble(entry.cubin)[entry.name]
    assert function.count("HGMMA.64x256x16") > 0
    assert function.read_never_written == frozenset()


def test_a_pass_that_refuses() -> None:
    with pytest.raises(PipelineError, match="'nonsense' names no gemm schedule") as caught:
        build_cubin(gemm_unit("nonsense"))
    assert "shapejit-lower-gemm-to-nvgpu{schedule=nonsense" in caught.value.command
    assert caught.value.reproducer.exists()


@pytest.mark.parametrize(
    ("text", "left"),
    [("module {}", "but left none"), (scale_module("a") + scale_module("b"), "but left a, b")],
)
def test_passes_that_leave_no_kernel_or_several(text: str, left: str) -> None:
    with pytest.raises(BuildError, match=f"canonicalize must leave one gpu.module .*{left}"):
        build_cubin(unit_of(text))


def test_an_assembler_that_refuses(tmp_path: Path) -> None:
    path = tmp_path / "ptxas"
    path.write_text("#!/bin/sh\necho 'ptxas kernel.ptx, line 3; error : no'\nexit 1\n")
    path.chmod(0o755)
    unit = dataclasses.replace(unit_of(scale_module()), tool=Tool(path, "13.0.88"))
    with pytest.raises(AssemblyError, match="line 3; error : no"):
        build_cubin(unit)


def test_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="shapejit.codegen"):
        build_cubin(unit_of(scale_module()))
    assert re.fullmatch(
        r"scale: \d+ bytes, \d+ registers, PTX in \d\.\d{3} s, ptxas in \d\.\d{3} s",
        caplog.records[-1].getMessage(),
    )


# Dumps.


def dumped(tmp_path: Path, *texts: str) -> Path:
    builder = dumping_builder(str(tmp_path))
    builder.build_all(unit_of(text) for text in texts)
    (folder,) = tmp_path.iterdir()
    return folder


@sass.needs_nvdisasm
def test_a_dump_has_the_code_at_every_level(tmp_path: Path) -> None:
    folder = dumped(tmp_path, scale_module(), scale_module("other"))
    index = json.loads((folder / "index.json").read_text())
    assert [variant["name"] for variant in index["variants"]] == ["other", "scale"]
    files = index["variants"][1]["files"]
    digest = unit_of(scale_module()).key.digest[:8]
    assert files == {
        "gpu": f"kernels/scale-{digest}.mlir",
        "ptx": f"kernels/scale-{digest}.ptx",
        "sass": f"kernels/scale-{digest}.sass",
        "cubin": f"kernels/scale-{digest}.cubin",
        "interface": f"kernels/scale-{digest}.json",
    }
    texts = {kind: (folder / file).read_bytes() for kind, file in files.items()}
    assert b"gpu.module @scale" in texts["gpu"]
    assert b".entry scale(" in texts["ptx"]
    assert b"STG" in texts["sass"]
    entry = build_cubin(unit_of(scale_module()))
    assert texts["cubin"] == entry.cubin
    assert json.loads(texts["interface"]) == json.loads(entry.interface.to_json())
    assert index["variants"][1]["resources"] == dataclasses.asdict(entry.resources)


def test_the_page_leads_to_the_files(tmp_path: Path) -> None:
    folder = dumped(tmp_path, scale_module())
    page = (folder / "index.md").read_text()
    assert "## Kernels for GPUs" in page
    assert re.search(r"^\| scale \| \d+ \| 0 \| 0 \| \[gpu\]", page, re.MULTILINE)
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) >= 4
    assert all((folder / link).exists() for link in links)


def test_a_dump_without_nvdisasm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvdisasm, "find_tools", lambda _: list[Path]())
    folder = dumped(tmp_path, scale_module())
    (variant,) = json.loads((folder / "index.json").read_text())["variants"]
    assert list(variant["files"]) == ["gpu", "ptx", "cubin", "interface"]


def test_variants_stand_with_the_kernel_that_they_belong_to(tmp_path: Path) -> None:
    dump = Dump(str(tmp_path), "x")
    assert dump.folder is not None
    units = [sample_unit(number) for number in range(3)]
    for unit in units:
        dump.device_code(unit.key.digest, sample_entry(unit), "", "")
    digests = [unit.key.digest for unit in units]
    kernel = KernelInfo(
        "gemm_0",
        "gemm",
        "why",
        ("gemm",),
        (Expr.symbol(0),),
        (LaunchInfo((Expr.symbol(0),), ("model.py:1",)),),
    )
    symbols = (SymbolSpec("batch", 1, 64, None),)
    dump.index((kernel,), symbols, {"gemm_0": digests[:2]})
    index = json.loads((dump.folder / "index.json").read_text())

    def named(variants: list[Any]) -> list[str]:
        return [variant["files"]["ptx"] for variant in variants]

    files = [f"kernels/gemm-{digest[:8]}.ptx" for digest in digests]
    assert named(index["kernels"][0]["variants"]) == files[:2]
    assert named(index["variants"]) == files[2:]
    page = (dump.folder / "index.md").read_text()
    assert page.index("## gemm_0") < page.index(files[0]) < page.index("## Kernels for GPUs")


def test_the_cache_is_left_out_of_a_dump(tmp_path: Path) -> None:
    with knobs.scope(cache=True):
        first = dumping_builder(str(tmp_path)).build_all([unit_of(scale_module())])
        again = dumping_builder(str(tmp_path)).build_all([unit_of(scale_module())])
    assert [each.origin for found in (first, again) for each in found.values()] == ["built"] * 2
    assert len(list(tmp_path.iterdir())) == 2
