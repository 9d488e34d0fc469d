# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a compilation leaves for readers, with ``SHAPEJIT_DUMP_TO`` or the option `dump_to`.

Each compilation gets a new folder, named by the time and the model's arguments::

    20261129-204135-ids-mask/
        00-import.mlir, 01-canonicalize-shapes.mlir, ..     the IR after each stage
        kernels/gemm_0.ll, .opt.ll, .s, .o                  LLVM IR, the same after LLVM's passes,
                                                            assembly and object of each kernel
        index.md, index.json                                kernels with their sizes and sources
"""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import mlir.ir as ir
from mlir.dialects import llvm as llvm_dialect

from shapejit.artefacts import KernelInfo, LaunchInfo, SymbolSpec
from shapejit.codegen import HostTarget, LLVMError
from shapejit.codegen._libllvm import library, take_message
from shapejit.codegen.llvm import _llvm_context, _optimize, _parsed, _target_machine

_ASSEMBLY_FILE = 0  # LLVMCodeGenFileType

_SUFFIXES = {"llvm": ".ll", "optimized": ".opt.ll", "assembly": ".s", "object": ".o"}


class Dump:
    """Writes into a new folder under `root`; does nothing if that is None.

    Args:
        root: where the new folder is made, or None.
        name: what tells this compilation from others, for the folder's name.
    """

    def __init__(self, root: str | None, name: str) -> None:
        self.folder = None if root is None else _new_folder(Path(root), name)
        self._stages: list[str] = []
        self._files: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def stage(self, name: str, module: Any) -> None:
        """Write the IR after a stage."""
        if self.folder is None:
            return
        file = f"{len(self._stages):02d}-{name}.mlir"
        text = module.operation.get_asm(enable_debug_info=True, pretty_debug_info=True)
        (self.folder / file).write_text(text)
        self._stages.append(file)

    def code(self, module: Any, data: bytes, target: HostTarget, opt_level: int) -> None:
        """Write what becomes of a kernel's module of the LLVM dialect. Thread-safe.

        Args:
            module: the module's operation; its name is the kernel's.
            data: the object file that was made from it.
            target, opt_level: what it was made for.
        """
        if self.folder is None:
            return
        text = llvm_dialect.translate_module_to_llvmir(module.operation)
        optimized, assembly = _compiled_texts(text, target, opt_level)
        contents: dict[str, bytes] = {
            "llvm": text.encode(),
            "optimized": optimized.encode(),
            "assembly": assembly,
            "object": data,
        }
        kernel = ir.StringAttr(module.operation.attributes["sym_name"]).value
        files = {}
        for kind, content in contents.items():
            files[kind] = f"kernels/{_file_name(kernel)}{_SUFFIXES[kind]}"
            (self.folder / files[kind]).write_bytes(content)
        with self._lock:
            self._files[kernel] = files

    def index(self, kernels: Sequence[KernelInfo], symbols: Sequence[SymbolSpec]) -> None:
        """Write the index from kernels to sizes, sources and files."""
        if self.folder is None:
            return
        document = {
            "symbols": [_symbol_entry(spec) for spec in symbols],
            "stages": self._stages,
            "kernels": [
                _kernel_entry(kernel, symbols, self._files.get(kernel.name, {}))
                for kernel in kernels
            ],
            "host": self._host_files(kernels),
        }
        (self.folder / "index.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.folder / "index.md").write_text(_page(document))

    def _host_files(self, kernels: Sequence[KernelInfo]) -> dict[str, str]:
        names = {kernel.name for kernel in kernels}
        return next((files for name, files in self._files.items() if name not in names), {})


def _new_folder(root: Path, name: str) -> Path:
    """A folder that did not exist; its name sorts by time."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{_file_name(name)[:48] or 'model'}"
    for number in itertools.count(1):
        folder = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            (folder / "kernels").mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("itertools.count ends")


def _file_name(name: str) -> str:
    return re.sub(r"[^-.\w]+", "_", name)


def _compiled_texts(text: str, target: HostTarget, opt_level: int) -> tuple[str, bytes]:
    """The LLVM IR after LLVM's passes, and the assembly that the object file holds.

    A module is compiled afresh: emitting code changes it, so that a second file made from the same
    one would differ.
    """
    lib = library()
    with (
        _llvm_context() as (context, errors),
        _target_machine(target, opt_level) as machine,
        _parsed(context, text) as module,
    ):
        layout = lib.LLVMCreateTargetDataLayout(machine)
        lib.LLVMSetModuleDataLayout(module, layout)
        lib.LLVMDisposeTargetData(layout)
        lib.LLVMSetTarget(module, target.triple.encode())
        _optimize(module, machine, opt_level)
        optimized = take_message(lib.LLVMPrintModuleToString(module))
        assembly = _assembly(module, machine)
        if errors:
            raise LLVMError("\n".join(errors))
        return optimized, assembly


def _assembly(module: int, machine: int) -> bytes:
    lib = library()
    buffer, message = c_void_p(), c_void_p()
    if lib.LLVMTargetMachineEmitToMemoryBuffer(
        machine, module, _ASSEMBLY_FILE, byref(message), byref(buffer)
    ):
        raise LLVMError(take_message(message.value))
    try:
        return ctypes.string_at(lib.LLVMGetBufferStart(buffer), lib.LLVMGetBufferSize(buffer))
    finally:
        lib.LLVMDisposeMemoryBuffer(buffer)


# The index.


def _symbol_entry(spec: SymbolSpec) -> dict[str, Any]:
    return {"name": spec.name, "min": spec.min, "max": spec.max, "opt": spec.opt}


def _kernel_entry(
    kernel: KernelInfo, symbols: Sequence[SymbolSpec], files: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "kind": kernel.kind,
        "fuses": list(kernel.fuses),
        "why": kernel.why,
        "launches": [
            {"sizes": _launch_sizes(kernel, launch, symbols), "sources": list(launch.sources)}
            for launch in kernel.launches
        ],
        "files": dict(files),
    }


def _launch_sizes(
    kernel: KernelInfo, launch: LaunchInfo, symbols: Sequence[SymbolSpec]
) -> list[str]:
    """The iteration space of a launch in the user's names of the dims."""
    from shapejit.diagnosis import named

    local = dict(enumerate(launch.symbols))
    return [named(size.substitute(symbols=local), symbols) for size in kernel.sizes]


def _page(document: Mapping[str, Any]) -> str:
    """The index for people."""
    lines = ["# Kernels", ""]
    ranges = [
        f"{entry['name']} = {entry['min']}..{'' if entry['max'] is None else entry['max']}"
        for entry in document["symbols"]
    ]
    lines += [f"Sizes: {', '.join(ranges) or 'all static'}.", ""]
    for kernel in document["kernels"]:
        lines += [f"## {kernel['name']}", "", f"A {kernel['kind']}: {kernel['why']}.", ""]
        lines += [", ".join(f"[{kind}]({file})" for kind, file in kernel["files"].items()), ""]
        lines += ["| sizes | launches | operators |", "|---|---|---|"]
        by_sizes: dict[str, list[list[str]]] = {}
        for launch in kernel["launches"]:
            by_sizes.setdefault(" x ".join(launch["sizes"]), []).append(launch["sources"])
        for sizes, sources in by_sizes.items():
            names = dict.fromkeys(itertools.chain.from_iterable(sources))
            lines.append(f"| {sizes or 'scalar'} | {len(sources)} | {'<br>'.join(names)} |")
        lines.append("")
    links = ", ".join(f"[{kind}]({file})" for kind, file in document["host"].items())
    lines += ["## The host program", "", links, "", "## IR by stage", ""]
    lines += [f"- [{stage}]({stage})" for stage in document["stages"]]
    return "\n".join(lines) + "\n"


__all__ = ["Dump"]
