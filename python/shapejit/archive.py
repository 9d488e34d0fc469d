# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Saved programs: one zip file, nothing in it compressed or pickled.

======================  ==========================================================================
manifest.json           format version, target, signature, kernels, and the SHA-256 of all others
code/0000.o ..          native code
gpu/code.json           of a program for a GPU: its architecture, which kernel serves which sizes
gpu/0000.kernel ..      machine code of each kernel with the record of its call, in that order
gpu/head.kernel         of a program under constant graphs: the same of the head kernel
bind/..                 the same two folders for what is computed from weights alone, if anything is
constants.safetensors   tensors of the model that no state dict holds
weights.safetensors     the other weights, unless saved without
======================  ==========================================================================

Loading a program runs the native code in it: load only files that you trust. It needs neither
torch.export nor torch-mlir.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

import shapejit
from shapejit import manifest
from shapejit.artefacts import Artefacts
from shapejit.codegen import HostTarget, LLVMError
from shapejit.cpu_features import missing_features
from shapejit.errors import ErrorId, ShapeJitError, TargetError, join_names
from shapejit.execution import Execution, execution_for
from shapejit.gpu.program_code import GpuCode

if TYPE_CHECKING:
    from shapejit.program import Program

FORMAT_VERSION = 6
"""Version of the layout above, of the manifest and of the native code's entry points together."""

MANIFEST = "manifest.json"
GPU_CODE = "gpu/code.json"
GPU_HEAD = "gpu/head.kernel"
BIND = "bind/"
CONSTANTS = "constants.safetensors"
WEIGHTS = "weights.safetensors"

_PathLike = str | os.PathLike[str]

# What reading a damaged zip file can raise, whichever byte is wrong.
_ZIP_FAULTS = (
    zipfile.BadZipFile,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    struct.error,
    zlib.error,
)


def save(program: Program, path: _PathLike, *, weights: bool) -> None:
    """Write `program` to `path` in one step; an existing file is replaced only by a whole one.

    Raises:
        LoadError: it cannot be written or described (SJ-LOAD-012).
    """
    target = Path(path)
    aliases = _aliases(program)
    try:
        # What runs on a GPU has members of its own.
        artefacts = manifest.to_json(dataclasses.replace(program.artefacts, gpu=None))
    except (NotImplementedError, TypeError) as error:
        raise ErrorId.SJ_LOAD_012.error(
            path=path,
            reason=str(error).rstrip("."),
            remedy="Give the container type a serialized_type_name when registering it with torch",
        ) from error
    try:
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            members = _write_members(program, Path(folder), aliases, weights=weights)
            whole = Path(folder, "whole")
            _write_zip(whole, members, {"artefacts": artefacts, "aliases": aliases})
            os.replace(whole, target)
    except OSError as error:
        raise ErrorId.SJ_LOAD_012.error(
            path=path,
            reason=error.strerror or str(error),
            remedy="Create its folder, free space there, or give it another path",
        ) from error


def load(
    path: _PathLike, weights: nn.Module | Mapping[str, Tensor] | _PathLike | None = None
) -> Program:
    """The program saved at `path`, ready to call.

    Args:
        path: a file written by `Program.save`. Its native code runs in this process.
        weights: weights to use instead of the saved ones: the module (whose tensors are then
            shared, so that in-place updates are seen), a state dict, or a safetensors file.
            A program for a GPU is loaded onto the device of these tensors, else onto torch's
            current CUDA device.

    Raises:
        LoadError: the file is damaged or was built for another version, machine or GPU, or the
            weights do not fit; the message says which.
    """
    from shapejit.program import Program

    saved = _read(path)
    given = _given_weights(weights) if isinstance(weights, (nn.Module, Mapping)) else {}
    device = next((tensor.device for tensor in given.values() if tensor.is_cuda), None)
    execution = _execution(saved, device)
    tensors = _weight_tensors(saved, weights, execution.device)
    return Program(saved.artefacts, tensors, compiles=0, execution=execution, origin="file")


def _execution(saved: _Saved, device: torch.device | None) -> Execution:
    from shapejit.gpu.errors import CudaError

    try:
        return execution_for(saved.artefacts, device)
    except TargetError as error:
        arch, reason = saved.artefacts.target.arch, error.fields["reason"]
        raise ErrorId.SJ_LOAD_014.error(path=saved.path, arch=arch, reason=reason) from error
    except (LLVMError, CudaError) as error:
        reason = error.fields["reason"] if isinstance(error, CudaError) else str(error).rstrip(".")
        raise ErrorId.SJ_LOAD_010.error(path=saved.path, reason=reason) from error


# Writing.


def _write_members(
    program: Program, folder: Path, aliases: Mapping[str, str], *, weights: bool
) -> dict[str, Path]:
    """Write every member but the manifest into `folder`: their files by name."""
    members: dict[str, Path] = {}
    members |= _write_code_members(program.artefacts, folder)
    if program.artefacts.bind is not None:
        (folder / BIND).mkdir()
        bound = _write_code_members(program.artefacts.bind.program, folder / BIND)
        members |= {f"{BIND}{name}": file for name, file in bound.items()}
    contents: dict[str, dict[str, Tensor]] = {CONSTANTS: {}, WEIGHTS: {}}
    for spec, tensor in zip(program.artefacts.tensors, program.all_weights(), strict=True):
        if aliases[spec.name] == spec.name:
            contents[CONSTANTS if spec.constant else WEIGHTS][spec.name] = _own_storage(tensor)
    if not weights:
        del contents[WEIGHTS]
    for member, tensors in contents.items():
        members[member] = folder / member
        safetensors.torch.save_file(tensors, members[member])
    return members


def _write_code_members(artefacts: Artefacts, folder: Path) -> dict[str, Path]:
    """Write all code of a program: the files by the names of their members."""
    members: dict[str, Path] = {}
    for number, code in enumerate(artefacts.objects):
        members[f"code/{number:04}.o"] = folder / f"{number:04}.o"
        members[f"code/{number:04}.o"].write_bytes(code)
    return members | _write_gpu_members(artefacts.gpu, folder)


def _write_gpu_members(code: GpuCode | None, folder: Path) -> dict[str, Path]:
    """Write what runs on a GPU: the files by the names of their members."""
    if code is None:
        return {}
    members = {GPU_CODE: folder / "gpu.json"}
    members[GPU_CODE].write_text(json.dumps(code.to_json(), indent=1))
    for number, variant in enumerate(code.variants):
        file = folder / f"{number:04}.kernel"
        file.write_bytes(variant.data)
        members[f"gpu/{file.name}"] = file
    if code.graph is not None:
        members[GPU_HEAD] = folder / "head.kernel"
        members[GPU_HEAD].write_bytes(code.graph.head)
    return members


def _aliases(program: Program) -> dict[str, str]:
    """The name under which each weight is stored: of tied weights, the first one's."""
    stored: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    for spec, tensor in zip(program.artefacts.tensors, program.all_weights(), strict=True):
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, spec.constant)
        identity = place if tensor.numel() else spec.name
        aliases[spec.name] = stored.setdefault(identity, spec.name)
    return aliases


def _own_storage(tensor: Tensor) -> Tensor:
    """`tensor`, contiguous and sharing memory with no other, as safetensors wants it."""
    plain = tensor.detach().resolve_neg()
    if plain.is_contiguous() and plain.untyped_storage().nbytes() == plain.nbytes:
        return plain
    return plain.clone(memory_format=torch.contiguous_format)


def _write_zip(path: Path, members: Mapping[str, Path], contents: Mapping[str, Any]) -> None:
    document = {
        "format": FORMAT_VERSION,
        "shapejit": shapejit.__version__,
        "torch": torch.__version__,
        "members": {name: _file_digest(file) for name, file in members.items()},
        **contents,
    }
    with path.open("wb") as out:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(MANIFEST, json.dumps(document, indent=1))
            for name, file in members.items():
                archive.write(file, name)
        out.flush()
        os.fsync(out.fileno())


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Reading.


@dataclass(frozen=True)
class _Saved:
    """What a file holds. `tensors` are by name, constants and saved weights together."""

    path: _PathLike
    artefacts: Artefacts
    tensors: dict[str, Tensor]
    aliases: dict[str, str]
    has_weights: bool


def _read(path: _PathLike) -> _Saved:
    if not Path(path).is_file():
        raise ErrorId.SJ_LOAD_001.error(path=path)
    with _open_zip(path) as archive:
        document = _read_manifest(path, archive)
        _check_version(path, document)
        digests = document["members"]
        members = {name: _read_member(path, archive, name, digests[name]) for name in digests}
    artefacts = _read_artefacts(path, document, _objects(members))
    artefacts = dataclasses.replace(artefacts, gpu=_read_gpu_code(path, artefacts, members))
    if artefacts.bind is not None:
        bound = {n.removeprefix(BIND): data for n, data in members.items() if n.startswith(BIND)}
        gpu = _read_gpu_code(path, artefacts.bind.program, bound)
        artefacts = manifest.with_bind_code(artefacts, _objects(bound), gpu)
    _check_machine(path, artefacts)
    tensors: dict[str, Tensor] = {}
    for name in (CONSTANTS, WEIGHTS):
        if name in members:
            tensors |= safetensors.torch.load(members[name])
    return _Saved(path, artefacts, tensors, document["aliases"], WEIGHTS in members)


@contextmanager
def _open_zip(path: _PathLike) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except PermissionError as error:
        raise _not_a_program(path, "it cannot be read: permission denied") from error
    except _ZIP_FAULTS as error:
        raise _not_a_program(path, "it is not a zip file, or it is cut short") from error
    with archive:
        yield archive


def _read_manifest(path: _PathLike, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        document = json.loads(archive.read(MANIFEST))
    except _ZIP_FAULTS as error:
        raise _not_a_program(path, f"its {MANIFEST} is missing or damaged") from error
    if not isinstance(document, dict) or "format" not in document:
        raise _not_a_program(path, f"its {MANIFEST} states no format version")
    return document


def _check_version(path: _PathLike, document: Mapping[str, Any]) -> None:
    if document["format"] != FORMAT_VERSION:
        raise ErrorId.SJ_LOAD_003.error(
            path=path,
            version=document["format"],
            shapejit=shapejit.__version__,
            supported=FORMAT_VERSION,
            writer=document.get("shapejit", "of that version"),
        )
    lacking = {"members", "artefacts", "aliases"} - document.keys()
    if lacking or not all(isinstance(document[key], dict) for key in ("members", "aliases")):
        raise _not_a_program(path, f"its {MANIFEST} is incomplete")


def _read_member(path: _PathLike, archive: zipfile.ZipFile, name: str, digest: str) -> bytes:
    try:
        data = archive.read(name)
    except KeyError as error:
        raise ErrorId.SJ_LOAD_005.error(path=path, member=name, reason="is missing") from error
    except _ZIP_FAULTS as error:
        raise ErrorId.SJ_LOAD_005.error(
            path=path, member=name, reason=f"cannot be read ({error})"
        ) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise ErrorId.SJ_LOAD_005.error(
            path=path,
            member=name,
            reason="does not have the SHA-256 that the manifest states",
        )
    return data


def _objects(members: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """The native code of a program."""
    return tuple(members[name] for name in sorted(members) if name.startswith("code/"))


def _read_artefacts(
    path: _PathLike, document: Mapping[str, Any], code: tuple[bytes, ...]
) -> Artefacts:
    try:
        return manifest.from_json(document["artefacts"], code)
    except manifest.UnregisteredTypeError as error:
        raise ErrorId.SJ_LOAD_009.error(
            path=path, type=error.name, module=error.name.rpartition(".")[0] or error.name
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _not_a_program(path, f"its {MANIFEST} cannot be understood ({error!r})") from error


def _read_gpu_code(
    path: _PathLike, artefacts: Artefacts, members: Mapping[str, bytes]
) -> GpuCode | None:
    """What runs on a GPU; None for a program for the CPU."""
    if artefacts.target.kind == "cpu":
        return None
    if GPU_CODE not in members:
        raise ErrorId.SJ_LOAD_005.error(path=path, member=GPU_CODE, reason="is missing")
    head = members.get(GPU_HEAD)
    kernels = sorted(
        name
        for name in members
        if name.startswith("gpu/") and name.endswith(".kernel") and name != GPU_HEAD
    )
    try:
        code = GpuCode.from_json(members[GPU_CODE], [members[name] for name in kernels], head)
        for variant in code.variants:
            _ = variant.entry  # damaged data is noticed here, and nothing of it runs
        if code.graph is not None:
            _ = code.graph.head_entry
    except ValueError as error:
        raise _not_a_program(path, f"its {GPU_CODE} cannot be understood ({error})") from error
    return code


def _check_machine(path: _PathLike, artefacts: Artefacts) -> None:
    target, host = artefacts.target, HostTarget.host()
    if target.triple != host.triple:
        raise ErrorId.SJ_LOAD_013.error(path=path, triple=target.triple, host=host.triple)
    missing = missing_features(target)
    if missing:
        raise ErrorId.SJ_LOAD_004.error(
            path=path, cpu=target.cpu, features=", ".join(missing), host=host.cpu
        )


def _not_a_program(path: _PathLike, reason: str) -> ShapeJitError:
    return ErrorId.SJ_LOAD_002.error(path=path, reason=reason)


# Weights.


def _weight_tensors(
    saved: _Saved,
    weights: nn.Module | Mapping[str, Tensor] | _PathLike | None,
    device: torch.device,
) -> list[Tensor]:
    """The tensor of every weight of the program, in order.

    What comes from a file is put on the device; tensors that are given stay where they are.
    """
    needed = not all(spec.constant for spec in saved.artefacts.tensors)
    if needed and weights is None and not saved.has_weights:
        raise ErrorId.SJ_LOAD_006.error(path=saved.path)
    given = None if weights is None else _given_weights(weights)
    from_file = not isinstance(weights, (nn.Module, Mapping))
    tensors: list[Tensor] = []
    missing: list[str] = []
    for spec in saved.artefacts.tensors:
        source = saved.tensors if spec.constant or given is None else given
        tensor = _find(spec.name, source, saved.aliases)
        if tensor is None:
            missing.append(spec.name)
        else:
            tensors.append(tensor.to(device) if source is not given or from_file else tensor)
    if missing:
        raise ErrorId.SJ_LOAD_007.error(missing=_some_names(missing))
    return tensors


def _find(name: str, source: Mapping[str, Tensor], aliases: Mapping[str, str]) -> Tensor | None:
    """The tensor `name`, or one tied to it: files often hold one of several tied names."""
    if name in source:
        return source[name]
    entry = aliases.get(name, name)
    tied = [other for other, stored in aliases.items() if stored == entry and other in source]
    return source[tied[0]] if tied else None


def _given_weights(weights: nn.Module | Mapping[str, Tensor] | _PathLike) -> Mapping[str, Tensor]:
    if isinstance(weights, nn.Module):
        named: dict[str, Tensor] = weights.state_dict(keep_vars=True)
        return named
    if isinstance(weights, Mapping):
        return weights
    if not Path(weights).is_file():
        raise ErrorId.SJ_LOAD_001.error(path=weights)
    try:
        loaded: dict[str, Tensor] = safetensors.torch.load_file(weights)
    except (SafetensorError, OSError, ValueError) as error:
        raise ErrorId.SJ_LOAD_011.error(path=weights, reason=str(error).rstrip(".")) from error
    return loaded


def _some_names(names: Sequence[str]) -> str:
    shown = names[:4]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return (", ".join(f'"{name}"' for name in shown) + more) if more else join_names(shown)
