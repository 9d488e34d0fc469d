# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""``shapejit doctor``: what it looks at, and what it says of what is missing."""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shapejit import doctor
from shapejit.doctor import Finding, Requirement, examine
from shapejit.gpu import driver
from shapejit.gpu.errors import NoDriverError
from unit.cli_commands import output, shapejit


def named(findings: list[Finding], name: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.name == name)
    return finding


def test_this_installation() -> None:
    findings = examine()
    for name in ("torch", "mlir", "llvm", "torch-mlir", "numpy"):
        assert named(findings, name).state == "ok"
    assert named(findings, "torch").value == metadata.version("torch")
    assert named(findings, "python").value.startswith(platform.python_version())
    assert named(findings, "vector width").value.split()[0] in ("16", "32", "64")
    assert "sse2" in named(findings, "features").value.split()
    assert named(findings, "libshapejit.so").state == "ok"
    assert [f.group for f in findings] == sorted(
        (f.group for f in findings),
        key=["packages", "machine", "NVIDIA", "cache", "settings"].index,
    )
    assert all(f.remedy for f in findings if not f.is_fine)


@pytest.mark.parametrize(
    ("text", "name", "rules", "extra"),
    [
        ("torch<2.14,>=2.11", "torch", (("<", "2.14"), (">=", "2.11")), ""),
        ("torch-mlir==20261001", "torch-mlir", (("==", "20261001"),), ""),
        ('matplotlib>=3.8; extra == "demo"', "matplotlib", ((">=", "3.8"),), "demo"),
        ("shapejit[demo]; extra == 'dev'", "shapejit", (), "dev"),
    ],
)
def test_requirements(text: str, name: str, rules: tuple[tuple[str, str], ...], extra: str) -> None:
    assert Requirement.parse(text) == Requirement(name, rules, extra)


@pytest.mark.parametrize(
    ("rules", "version", "fits"),
    [
        ("x<2.14,>=2.11", "2.13.0+cpu", True),
        ("x<2.14,>=2.11", "2.14.0", False),
        ("x<2.14,>=2.11", "2.9.1", False),
        ("x>=2.11", "2.11", True),
        ("x==2.11.0", "2.11", True),
        ("x!=2.11", "2.11.0", False),
        ("x==22.1.8.4", "22.1.8.2", False),
        ("x", "0", True),
    ],
)
def test_which_versions_fit(rules: str, version: str, fits: bool) -> None:
    assert Requirement.parse(rules).fits(version) == fits


def pretend(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str | None]) -> None:
    """Makes packages look as if they had other versions, or (None) were not installed."""
    real = metadata.version

    def version(name: str) -> str:
        found = versions.get(name, "")
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found or real(name)

    monkeypatch.setattr(metadata, "version", version)


def test_what_is_missing_comes_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"torch-mlir": None, "torch": "2.5.0", "transformers": None})
    findings = examine()
    mlir = named(findings, "torch-mlir")
    assert (mlir.state, mlir.is_fine) == ("missing", False)
    assert mlir.remedy == "pip install 'torch-mlir==20261001'"
    torch = named(findings, "torch")
    assert (torch.state, torch.value) == ("wrong", "2.5.0 does not fit")
    assert torch.remedy is not None
    assert torch.remedy.startswith("pip install 'torch<2.14,>=2.11'")
    transformers = named(findings, "transformers")
    assert (transformers.state, transformers.is_fine) == ("absent", True)
    assert transformers.value == "not installed, which only the demo needs"
    result = shapejit("doctor")
    assert result.exit_code == 1
    assert "-> pip install 'torch-mlir==20261001'" in result.stdout


def test_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, {"shapejit": None})
    finding = named(examine(), "shapejit")
    assert (finding.state, finding.required) == ("wrong", True)


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_file(*parts: str) -> Path:
        raise ImportError(parts[-1])

    monkeypatch.setattr("shapejit._native.find_file", find_file)
    finding = named(examine(), "libshapejit.so")
    assert (finding.state, finding.is_fine) == ("missing", False)


def test_a_torch_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    finding = named(examine(), "threads")
    assert (finding.state, finding.required) == ("wrong", True)
    assert finding.value.startswith("importing torch raised")


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise OSError("no such thing")

    monkeypatch.setattr(doctor, "_torch_threads", fail)
    finding = named(examine(), "check failed")
    assert (finding.group, finding.value) == ("machine", "OSError: no such thing")
    assert not finding.is_fine


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    finding = named(examine(), "system")
    assert (finding.state, finding.value) == ("wrong", "Linux aarch64")


def test_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(name="NVIDIA H200", arch="sm_90a")
    for devices, value in (([device], "NVIDIA H200 (sm_90a)"), ([], "no device")):
        found = SimpleNamespace(
            version=(13, 0), devices=lambda devices=devices: devices, location=None, path="libcuda"
        )
        monkeypatch.setattr(driver, "driver", lambda found=found: found)
        assert doctor._driver() == Finding(
            "NVIDIA", "driver", "ok", f"CUDA 13.0 (libcuda): {value}"
        )


def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise NoDriverError("the CUDA driver cannot be opened")

    monkeypatch.setattr(driver, "driver", missing)
    finding = doctor._driver()
    assert (finding.state, finding.is_fine) == ("absent", True)
    assert finding.value == "the CUDA driver cannot be opened"
    assert finding.remedy is not None
    assert "SHAPEJIT_LIBCUDA" in finding.remedy


def test_ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ptxas"
    path.write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n")
    path.chmod(0o755)
    monkeypatch.setenv("SHAPEJIT_PTXAS", str(path))
    assert doctor._ptxas() == Finding("NVIDIA", "ptxas", "ok", f"13.0.88 ({path})")
    path.write_text("#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n")
    finding = doctor._ptxas()
    assert (finding.state, finding.is_fine) == ("absent", True)
    assert "version 12.8 or newer is needed" in finding.value.replace("Version", "version")
    assert finding.remedy == "pip install 'shapejit[cuda]'"


def test_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    from shapejit.codegen import nvdisasm

    for path, state in ((Path("/opt/nvdisasm"), "ok"), (None, "absent")):
        monkeypatch.setattr(nvdisasm, "find_nvdisasm", lambda path=path: path)
        assert doctor._nvdisasm().state == state


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPEJIT_PROGRESS", "off")
    monkeypatch.setenv("SHAPEJIT_VERIFY_EACH", "sometimes")
    monkeypatch.setenv("SHAPEJIT_PROGRES", "off")
    findings = examine()
    assert named(findings, "SHAPEJIT_PROGRESS").state == "ok"
    bad = named(findings, "SHAPEJIT_VERIFY_EACH")
    assert (bad.state, bad.is_fine) == ("wrong", False)
    assert bad.value.startswith("SJ-KNOB-001")
    unknown = named(findings, "SHAPEJIT_PROGRES")
    assert (unknown.state, unknown.is_fine) == ("wrong", True)


def test_a_cache_folder_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shapejit import cache

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(cache, "_cache", None)
    monkeypatch.setattr(cache, "_settings", None)
    monkeypatch.setenv("SHAPEJIT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(UserWarning):
        cache.ls()
    finding = named(examine(), "state")
    assert (finding.state, finding.is_fine) == ("wrong", True)
    assert finding.remedy is not None


def test_as_json() -> None:
    import json

    result = shapejit("doctor", "--json")
    document = json.loads(result.stdout)
    assert document["healthy"] == (result.exit_code == 0)
    names = {finding["name"] for finding in document["findings"]}
    assert {"python", "shapejit", "torch", "CPU", "driver", "ptxas", "nvdisasm", "folder"} <= names


def test_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("packages", "torch", "ok", "2.13.0", required=True)
    monkeypatch.setattr(doctor, "examine", lambda: [finding])
    assert output("doctor").split() == ["packages:", "torch", "ok", "2.13.0"]
