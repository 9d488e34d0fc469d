# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The native launch runtime: its C++ tests, and what it takes the driver's interface to be."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu.runtime_kernels import (
    CHAIN,
    CLUSTER,
    COPY,
    COPY_BLOCK,
    DUMP_BLOCK,
    PAIRS,
    PICKY,
    PTX,
    SPIN,
    SUM,
)
from shapejit.codegen.ptxas import PtxasError, assemble, find_ptxas
from shapejit.gpu import bindings
from shapejit.gpu.interface import Size, TensorMap
from shapejit.gpu.launch import _ELEMENTS
from shapejit.passes.nvgpu import head
from unit.fake_cuda import PROGRAMS, need_compiler, run_program
from unit.native_runtime import RUNTIME


@pytest.mark.parametrize("name", PROGRAMS)
def test_native(name: str) -> None:
    run_program(name)


@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_under_sanitizers(name: str, sanitizers: str) -> None:
    run_program(name, sanitizers)


def _cuda_headers() -> Path:
    compiler = shutil.which("nvcc")
    roots = [Path(compiler).resolve().parents[1]] if compiler else []
    for root in (*roots, *sorted(Path("/usr/local").glob("cuda*"))):
        if (root / "include" / "cudaTypedefs.h").exists():
            return root / "include"
    pytest.skip("needs CUDA's headers")


def test_declarations_are_those_of_cuda() -> None:
    need_compiler()
    command = ["g++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra"]
    command += [f"-I{RUNTIME / 'include'}", f"-isystem{_cuda_headers()}"]
    source = str(RUNTIME / "test" / "cuda_abi.cpp")
    done = subprocess.run([*command, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


KERNELS = (CHAIN, CLUSTER, COPY, COPY_BLOCK, DUMP_BLOCK, PAIRS, PICKY, SPIN, SUM)

_STRUCTURES = {
    "ShapejitRtCudaDeviceInfo": bindings.DeviceInfo,
    "ShapejitRtCudaParameter": bindings.NativeParameter,
    "ShapejitRtCudaTile": bindings.NativeTile,
    "ShapejitRtCudaInterface": bindings.NativeInterface,
    "ShapejitRtCudaKernelInfo": bindings.KernelInfo,
    "ShapejitRtCudaWorkspaceUse": bindings.WorkspaceUse,
    "ShapejitRtCudaProgramDescription": bindings.NativeProgram,
    "ShapejitRtCudaProgramLaunch": bindings.NativeProgramLaunch,
    "ShapejitRtCudaProgramUse": bindings.ProgramUse,
}


def test_structures_are_those_of_the_header(tmp_path: Path) -> None:
    need_compiler()
    lines = ['#include "shapejit_rt/graph.h"']
    for name, structure in _STRUCTURES.items():
        size = bindings.ctypes.sizeof(structure)
        lines.append(f'static_assert(sizeof({name}) == {size}, "{name}");')
        for field, *_ in structure._fields_:
            native = re.sub(r"_(.)", lambda match: match[1].upper(), field)
            offset = getattr(structure, field).offset
            check = f"offsetof({name}, {native}) == {offset}"
            lines.append(f'static_assert({check}, "{name}::{native}");')
    source = tmp_path / "structures.cpp"
    source.write_text("\n".join(lines))
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{RUNTIME / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_records_are_those_that_the_head_kernel_reads(tmp_path: Path) -> None:
    need_compiler()
    slots = f"{head._SLOTS_AT} == offsetof(PatchRecord, slots)"
    checks = {
        "size": f"{head.RECORD_BYTES} == sizeof(PatchRecord)",
        "slots": f"{slots} && {head._SLOTS} == PatchRecord::kSlots",
        "dims": f"{head._DIMS} == PatchRecord::kDims && {head._ADDRESS} == PatchRecord::kAddress",
        "strides": f"{head._STRIDES} == PatchRecord::kStrides",
        "kind": f"{head.TENSOR_MAP} == PatchRecord::kTensorMap && offsetof(PatchRecord, kind) == 4",
        "encoded": f"{head.ENCODED_MAP} == PatchRecord::kEncodedMap",
        "map": f"{head.MAP_WORDS} == PatchTable::kMapWords",
        "words": "PatchRecord::kWord4 == 0 && PatchRecord::kWord8 == 1",
        "rank": "offsetof(PatchRecord, rank) == 5 && offsetof(PatchRecord, elementShift) == 6",
        "bits": "offsetof(PatchRecord, strides) == 7 && offsetof(PatchRecord, known) == 8",
        "offset": "offsetof(PatchRecord, offset) == 0",
        "capacity": f"{head.CAPACITIES[-1]} <= Head::kMostWords",
        "pitch": f"{head._PITCH_BITS} == 40 && {head._GRANULE} == TensorMapPlan::kLeastPitch",
        "bound": "TensorMapPlan::kPitchBound == int64_t{1} << 40",
    }
    lines = [
        f'#include "{RUNTIME}/lib/cuda/Head.h"',
        "using namespace shapejit::rt::cuda;",
        *(f'static_assert({check}, "{name}");' for name, check in checks.items()),
    ]
    source = tmp_path / "records.cpp"
    source.write_text("\n".join(lines))
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{RUNTIME / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_of_elements_are_those_of_the_header() -> None:
    header = (RUNTIME / "include" / "shapejit_rt" / "cuda.h").read_text()
    elements = re.search(r"enum ShapejitRtCudaElement \{(.*?)\}", header, re.DOTALL)
    assert elements
    numbers = dict(re.findall(r"ShapejitRtCuda(\w+) = (\d+)", elements[1]))
    native = {name.lower(): int(number) for name, number in numbers.items()}
    assert {name: number for name, number in _ELEMENTS.items() if name in native} == native
    assert {name[1:] for name in _ELEMENTS.keys() - native.keys()} == {"8", "16"}


def test_kernels_of_the_tests_on_a_gpu_assemble() -> None:
    try:
        find_ptxas()
    except PtxasError as error:
        pytest.skip(str(error))
    assembled = assemble(PTX.read_text(), "sm_90a")
    assert {kernel.entry for kernel in KERNELS} == assembled.resources.keys()


def test_their_interfaces_fit() -> None:
    """Parameters have the sizes that the machine code wants, as a launch checks on a GPU."""
    pointer, tensor_map = 8, 128
    text = PTX.read_text()
    for kernel in KERNELS:
        entry = re.search(rf"\.entry {kernel.entry}\((.*?)\)", text, re.DOTALL)
        assert entry
        declared = re.findall(r"\.(?:u(32|64)|b8) \w+(?:\[(\d+)\])?", entry[1])
        sizes = [int(count) if count else int(bits) // 8 for bits, count in declared]
        by_value = [
            tensor_map if isinstance(p, TensorMap) else p.bytes if isinstance(p, Size) else pointer
            for p in kernel.parameters
        ]
        assert sizes == ([pointer] if kernel.block else by_value)
