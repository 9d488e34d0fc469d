# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a compilation leaves for readers, with ``SHAPEJIT_DUMP_TO`` or the option `dump_to`.

Each compilation gets a new folder, named by the time and the model's arguments::

    20261129-204135-ids-mask/
        00-import.mlir, 01-canonicalize-shapes.mlir, ..     the IR after each stage
        kernels/gemm_0.ll, .opt.ll, .s, .o                  LLVM IR, the same after LLVM's passes,
                                                            assembly and object of each kernel
        kernels/gemm__small_m_..-1f60ab.mlir, .ptx, .sass, .cubin, .json
                                                            IR on the GPU dialects, PTX, SASS (where
                                                            nvdisasm is), machine code and interface
                                                            of each variant of a kernel for a GPU
        index.md, index.json                                kernels with their sizes and sources
        bind/..                                             the same of what is computed from
                                                            weights alone, from the stage on that
                                                            finds it
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlir.ir as ir
from mlir.dialects import llvm as llvm_dialect

from shapejit import logs
from shapejit.artefacts import KernelInfo, LaunchInfo, SymbolSpec
from shapejit.codegen import HostTarget, nvdisasm
from shapejit.codegen.llvm import list_llvm_ir

if TYPE_CHECKING:
    from shapejit.cache.cubins import CubinEntry

_LOG = logs.logger("codegen")

_SUFFIXES = {
    "llvm": ".ll",
    "optimized": ".opt.ll",
    "assembly": ".s",
    "object": ".o",
    "gpu": ".mlir",
    "ptx": ".ptx",
    "sass": ".sass",
    "cubin": ".cubin",
    "interface": ".json",
}

_DIGEST_DIGITS = 8  # of a variant's key in file names


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
        self._variants: dict[str, dict[str, Any]] = {}  # by digest of the key
        self._described: tuple[
            tuple[KernelInfo, ...], tuple[SymbolSpec, ...], dict[str, Sequence[str]]
        ] = ((), (), {})
        self._lock = threading.Lock()

    def part(self, name: str) -> Dump:
        """The dump of a part of the program that is compiled apart, in a folder within this one."""
        made = Dump(None, name)
        if self.folder is not None:
            made.folder = self.folder / name
            (made.folder / "kernels").mkdir(parents=True)
        return made

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
        listing = list_llvm_ir(text, target, opt_level)
        contents: dict[str, bytes] = {
            "llvm": text.encode(),
            "optimized": listing.optimized.encode(),
            "assembly": listing.assembly.encode(),
            "object": data,
        }
        kernel = ir.StringAttr(module.operation.attributes["sym_name"]).value
        files = self._write(kernel, contents)
        with self._lock:
            self._files[kernel] = files

    def device_code(self, digest: str, entry: CubinEntry, lowered: str, ptx: str) -> None:
        """Write what becomes of a variant of a kernel for a GPU, and the index as far as it goes.

        Thread-safe.

        Args:
            digest: of the variant's key, by which `index` names it.
            entry: what was built.
            lowered: its IR on the GPU dialects.
            ptx: its PTX.
        """
        if self.folder is None:
            return
        contents: dict[str, bytes | None] = {
            "gpu": lowered.encode(),
            "ptx": ptx.encode(),
            "sass": _sass(entry),
            "cubin": entry.cubin,
            "interface": entry.interface.to_json().encode() + b"\n",
        }
        found = {kind: content for kind, content in contents.items() if content is not None}
        files = self._write(f"{entry.name}-{digest[:_DIGEST_DIGITS]}", found)
        with self._lock:
            self._variants[digest] = {
                "name": entry.name,
                "resources": asdict(entry.resources),
                "files": files,
            }
            self._write_index()

    def index(
        self,
        kernels: Sequence[KernelInfo],
        symbols: Sequence[SymbolSpec],
        variants: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Write the index from kernels to sizes, sources and files.

        Args:
            kernels: the kernels of the model.
            symbols: its sizes.
            variants: digests of the keys of each kernel's variants for a GPU, by the kernel's name.
        """
        if self.folder is None:
            return
        with self._lock:
            self._described = (tuple(kernels), tuple(symbols), dict(variants or {}))
            self._write_index()

    def _write(self, stem: str, contents: Mapping[str, bytes]) -> dict[str, str]:
        """Files of a kernel, by kind, relative to the folder."""
        assert self.folder is not None
        files = {}
        for kind, content in contents.items():
            files[kind] = f"kernels/{_file_name(stem)}{_SUFFIXES[kind]}"
            (self.folder / files[kind]).write_bytes(content)
        return files

    def _write_index(self) -> None:
        """Called with the lock held."""
        assert self.folder is not None
        kernels, symbols, variants = self._described
        document: dict[str, Any] = {
            "symbols": [_symbol_entry(spec) for spec in symbols],
            "stages": self._stages,
            "kernels": [
                {
                    **_kernel_entry(kernel, symbols, self._files.get(kernel.name, {})),
                    "variants": self._listed(variants.get(kernel.name, ())),
                }
                for kernel in kernels
            ],
            "host": self._host_files(kernels),
        }
        named = set(itertools.chain.from_iterable(variants.values()))
        document["variants"] = self._listed(d for d in self._variants if d not in named)
        (self.folder / "index.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.folder / "index.md").write_text(_page(document))

    def _listed(self, digests: Iterable[str]) -> list[dict[str, Any]]:
        """The entries of variants by name, without those that were not built."""
        found = [self._variants[digest] for digest in digests if digest in self._variants]
        return sorted(found, key=lambda entry: str(entry["name"]))

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


def _sass(entry: CubinEntry) -> bytes | None:
    """The disassembly of a kernel, if there is a disassembler."""
    try:
        return nvdisasm.disassemble(entry.cubin).encode()
    except FileNotFoundError:
        return None
    except nvdisasm.DisassemblyError as error:
        _LOG.warning("%s has no SASS in its dump: %s", entry.name, error)
        return None


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
    if document["kernels"]:
        lines += [f"Sizes: {', '.join(ranges) or 'all static'}.", ""]
    for kernel in document["kernels"]:
        lines += [f"## {kernel['name']}", "", f"A {kernel['kind']}: {kernel['why']}.", ""]
        if kernel["files"]:
            lines += [_links(kernel["files"]), ""]
        lines += ["| sizes | launches | operators |", "|---|---|---|"]
        by_sizes: dict[str, list[list[str]]] = {}
        for launch in kernel["launches"]:
            by_sizes.setdefault(" x ".join(launch["sizes"]), []).append(launch["sources"])
        for sizes, sources in by_sizes.items():
            names = dict.fromkeys(itertools.chain.from_iterable(sources))
            lines.append(f"| {sizes or 'scalar'} | {len(sources)} | {'<br>'.join(names)} |")
        lines.append("")
        lines += _variant_table(kernel["variants"])
    if document["variants"]:
        lines += ["## Kernels for GPUs", "", *_variant_table(document["variants"])]
    if document["host"]:
        lines += ["## The host program", "", _links(document["host"]), ""]
    if document["stages"]:
        lines += ["## IR by stage", ""]
        lines += [f"- [{stage}]({stage})" for stage in document["stages"]]
    return "\n".join(lines) + "\n"


def _links(files: Mapping[str, str]) -> str:
    return ", ".join(f"[{kind}]({file})" for kind, file in files.items())


def _variant_table(variants: Sequence[Mapping[str, Any]]) -> list[str]:
    """What variants for a GPU take of it, and their files; nothing if there are none."""
    if not variants:
        return []
    lines = [
        "| variant | registers | shared bytes | spilled bytes | files |",
        "|---|---|---|---|---|",
    ]
    for variant in variants:
        takes = variant["resources"]
        spilled = takes["spill_store_bytes"] + takes["spill_load_bytes"]
        lines.append(
            f"| {variant['name']} | {takes['registers']} | {takes['shared_bytes']} | {spilled} "
            f"| {_links(variant['files'])} |"
        )
    return [*lines, ""]


__all__ = ["Dump"]
