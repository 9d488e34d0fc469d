# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The assembler: where it is found, what it is told, and what is made of what it says."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shapejit.codegen import cuda_tools, ptxas
from shapejit.codegen.cuda_tools import Tool, ToolError, examine_tool, find_tools
from shapejit.codegen.ptxas import AssemblyError, PtxasError, Resources, assemble, find_ptxas
from shapejit.knobs import knobs
from unit.ptx_samples import SCALE, SERIALISED, needs_ptxas


@pytest.fixture(autouse=True)
def _temporary_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failures leave goes with the files of the tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def program(path: Path, script: str) -> Path:
    """A program that a shell runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def versioned(path: Path, version: str) -> Path:
    return program(path, f"echo Cuda compilation tools, release 1.0, V{version}")


def places(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Makes these the places where ptxas is found, without a knob."""
    monkeypatch.setattr(knobs, "overrides", {"ptxas": None})
    monkeypatch.setattr(ptxas, "_candidates", lambda _: paths)


# Finding.


def test_wheels_go_before_path_and_path_before_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = versioned(tmp_path / "nvidia" / "cu13" / "bin" / "ptxas", "13.0.88")
    older = versioned(tmp_path / "nvidia" / "cu12" / "bin" / "ptxas", "12.9.1")
    on_path = versioned(tmp_path / "bin" / "ptxas", "13.1.0")
    triton = versioned(tmp_path / "triton" / "backends" / "nvidia" / "bin" / "ptxas", "12.8.93")
    monkeypatch.setattr(cuda_tools, "_roots", lambda package: [tmp_path / package])
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_tools("ptxas") == [older, wheel, on_path, triton]
    assert find_tools("nvdisasm") == []


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("Cuda compilation tools, release 13.0, V13.0.88", "13.0.88"),
        ("release 12.8, V12.8.93 and V1.2", "12.8.93"),
    ],
)
def test_the_version_is_read(tmp_path: Path, printed: str, version: str) -> None:
    tool = examine_tool(program(tmp_path / "ptxas", f"echo {printed}"))
    assert tool.version == version
    assert tool.order == tuple(map(int, version.split(".")))


def test_the_version_is_asked_once_until_the_file_changes(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    path = program(tmp_path / "ptxas", f"echo >> {asked}; echo V13.0.88")
    assert [examine_tool(path).version for _ in range(3)] == ["13.0.88"] * 3
    assert len(asked.read_text().splitlines()) == 1
    program(path, f"echo >> {asked}; echo release V13.1.100")
    assert examine_tool(path).version == "13.1.100"


@pytest.mark.parametrize("script", ["echo no version", "exit 1", "echo release 13.0"])
def test_what_is_no_tool(tmp_path: Path, script: str) -> None:
    with pytest.raises(ToolError, match="does not print its version"):
        examine_tool(program(tmp_path / "ptxas", script))


def test_a_tool_that_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "ptxas").write_bytes(b"\x7fELF")
    with pytest.raises(ToolError, match="does not run"):
        examine_tool(tmp_path / "ptxas")
    with pytest.raises(ToolError, match="cannot be read"):
        examine_tool(tmp_path / "missing")


def test_the_first_that_is_new_enough_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = versioned(tmp_path / "old", "12.7.99")
    broken = program(tmp_path / "broken", "exit 3")
    least = versioned(tmp_path / "least", "12.8.0")
    newest = versioned(tmp_path / "newest", "13.5.37")
    places(monkeypatch, old, broken, least, newest)
    assert find_ptxas() == Tool(least, "12.8.0")


def test_with_none_that_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = versioned(tmp_path / "old", "12.4.131")
    places(monkeypatch, old)
    with pytest.raises(PtxasError) as caught:
        find_ptxas()
    text = str(caught.value)
    assert f"of version 12.8 or newer is needed, but {old} has version 12.4.131. " in text
    assert "pip install 'shapejit[cuda]'" in text
    assert "SHAPEJIT_PTXAS" in text


def test_with_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    places(monkeypatch)
    with pytest.raises(PtxasError, match="none was found in wheels, on PATH or in Triton"):
        find_ptxas()


def test_the_knob_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places(monkeypatch, versioned(tmp_path / "other", "13.0.88"))
    mine = versioned(tmp_path / "mine", "12.9.1")
    with knobs.scope(ptxas=str(mine)):
        assert find_ptxas() == Tool(mine, "12.9.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    with knobs.scope(ptxas="~/mine"):
        assert find_ptxas().path == mine


@pytest.mark.parametrize(
    ("version", "reason"), [("12.6.0", "has version 12.6.0"), (None, "cannot be read")]
)
def test_a_knob_that_does_not_serve_is_no_reason_to_take_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, reason: str
) -> None:
    places(monkeypatch, versioned(tmp_path / "other", "13.0.88"))
    mine = tmp_path / "mine"
    if version is not None:
        versioned(mine, version)
    with (
        knobs.scope(ptxas=str(mine)),
        pytest.raises(PtxasError, match=f"SHAPEJIT_PTXAS names no usable ptxas: {mine} {reason}"),
    ):
        find_ptxas()


# Assembling.


@needs_ptxas
def test_machine_code_and_what_it_takes() -> None:
    cubin = assemble(SCALE, "sm_90a")
    assert cubin.data.startswith(b"\x7fELF")
    resources = cubin.resources["scale"]
    assert 6 <= resources.registers <= 32
    assert resources == Resources(resources.registers, 0, 0, 0, 0, 0)
    assert cubin.warnings == ()


@needs_ptxas
def test_equal_arguments_give_equal_bytes_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = assemble(SCALE, "sm_90a").data
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert assemble(SCALE, "sm_90a").data == first
    assert assemble(SCALE, "sm_90a", opt_level=0).data != first


@needs_ptxas
def test_from_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    texts = [SCALE.replace("scale", f"s{n}") for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        cubins = list(pool.map(lambda text: assemble(text, "sm_90a"), texts))
    assert [list(cubin.resources) for cubin in cubins] == [[f"s{n}"] for n in range(6)]
    assert list(tmp_path.iterdir()) == []


@needs_ptxas
def test_a_refusal_shows_the_words_the_place_and_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    wrong = SCALE.replace("mul.lo.s32 %r3, %r2, %r1;", "mul.lo.s32 %r3, %r2, %f1;")
    with pytest.raises(AssemblyError) as caught:
        assemble(wrong, "sm_90a")
    error = caught.value
    number = wrong.splitlines().index("  mul.lo.s32 %r3, %r2, %f1;") + 1
    assert f"kernel.ptx, line {number}; error   : Arguments mismatch" in error.reason
    assert f"  > {number:5d} |   mul.lo.s32 %r3, %r2, %f1;\n" in str(error)
    assert f"    {number - 1:5d} |   mov.u32 %r2, %tid.x;\n" in str(error)
    assert str(error).endswith(f"To run it again:\n  {error.command}")
    assert str(find_ptxas().version) in str(error)
    # The command says the same again.
    again = subprocess.run(shlex.split(error.command), capture_output=True, text=True)
    assert again.returncode != 0
    assert "Arguments mismatch" in again.stderr
    assert error.ptx.read_text() == wrong
    # What is left is a folder of the user alone, with the PTX.
    (folder,) = tmp_path.iterdir()
    assert list(folder.iterdir()) == [error.ptx]
    assert folder.stat().st_mode & 0o777 == 0o700


@needs_ptxas
def test_the_ptx_of_a_refusal_goes_to_the_folder_of_dumps(tmp_path: Path) -> None:
    with knobs.scope(dump_to=str(tmp_path / "dumps")), pytest.raises(AssemblyError) as caught:
        assemble("no ptx", "sm_90a")
    assert caught.value.ptx.parent == tmp_path / "dumps" / "reproducers"


@needs_ptxas
def test_a_folder_of_dumps_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with knobs.scope(dump_to=str(tmp_path / "file")), pytest.raises(AssemblyError) as caught:
        assemble("no ptx", "sm_90a")
    assert caught.value.ptx.read_text() == "no ptx"


@needs_ptxas
def test_products_that_are_serialised_are_a_failure() -> None:
    with pytest.raises(AssemblyError, match=r"warned of code for sm_90a that no kernel may have"):
        assemble(SERIALISED, "sm_90a")
    with pytest.raises(AssemblyError) as caught:
        assemble(SERIALISED, "sm_90a")
    assert "(C7514) Potential Performance Loss" in caught.value.reason
    assert ">" in str(caught.value) and "add.f32 %f0, %f0, %f1;" in str(caught.value)


@needs_ptxas
def test_an_architecture_that_the_ptx_is_not_for() -> None:
    with pytest.raises(AssemblyError, match="'sm_90a' cannot be compiled for architecture 'sm_90'"):
        assemble(SCALE, "sm_90")


@pytest.mark.parametrize("arch", ["", "sm90", "compute_90", "sm_90a -o /etc/passwd", "sm_90ab"])
def test_what_is_no_architecture(arch: str) -> None:
    with pytest.raises(ValueError, match="requires an arch such as sm_90a"):
        assemble(SCALE, arch)


@pytest.mark.parametrize("level", [-1, 4])
def test_what_is_no_level(level: int) -> None:
    with pytest.raises(ValueError, match=f"opt_level of 0 to 3, got {level}"):
        assemble(SCALE, "sm_90a", opt_level=level)


def fake(path: Path, script: str) -> Tool:
    return Tool(program(path, script), "13.0.88")


SPILLING = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    64 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 64 bytes cumulative stack size, 1024 bytes smem, 4 bytes cmem[2]
ptxas warning : Value of threads per SM for entry two is out of range
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 4.465 ms"""  # noqa: E501


def test_reports_are_read(tmp_path: Path) -> None:
    """`-o` and the path are the last arguments."""
    script = f'for last; do :; done; echo code > "$last"; cat <<END\n{SPILLING}\nEND'
    cubin = assemble(SCALE, "sm_90a", tool=fake(tmp_path / "ptxas", script))
    assert cubin.data == b"code\n"
    assert cubin.resources == {
        "one": Resources(
            registers=168,
            barriers=16,
            shared_bytes=1024,
            stack_bytes=64,
            spill_store_bytes=16,
            spill_load_bytes=24,
        ),
        "two": Resources(8, 0, 0, 0, 0, 0),
    }
    assert cubin.warnings == (
        "ptxas warning : Value of threads per SM for entry two is out of range",
    )


@pytest.mark.parametrize("code", ["C7510", "C7602"])
def test_every_warning_of_warpgroup_products_is_a_failure(tmp_path: Path, code: str) -> None:
    tool = fake(tmp_path / "ptxas", f"echo 'ptxas info    : ({code}) something'")
    with pytest.raises(AssemblyError, match=rf"\({code}\) something"):
        assemble(SCALE, "sm_90a", tool=tool)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -9 $$", "short of memory"),
        ("kill -11 $$", "SIGSEGV"),
        ("echo no; exit 3", "ended with status 3"),
    ],
)
def test_how_it_ended_is_said_in_words(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(AssemblyError, match=words):
        assemble(SCALE, "sm_90a", tool=fake(tmp_path / "ptxas", script))


def test_a_program_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(PtxasError, match="cannot be run: No such file"):
        assemble(SCALE, "sm_90a", tool=Tool(tmp_path / "ptxas", "13.0.88"))


def test_a_program_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "_SECONDS", 0.2)
    with pytest.raises(PtxasError, match="did not end within"):
        assemble(SCALE, "sm_90a", tool=fake(tmp_path / "ptxas", "exec sleep 60"))


def test_places_are_looked_for_again_when_path_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_tools, "_roots", lambda _: list[Path]())
    monkeypatch.setattr(knobs, "overrides", {"ptxas": None})
    for name in ("one", "two"):
        path = versioned(tmp_path / name / "ptxas", "13.0.88")
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.defpath}")
        assert find_ptxas().path == path
