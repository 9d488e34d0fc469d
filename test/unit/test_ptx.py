# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""From ``gpu.module`` to PTX."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

import mlir.ir as ir
import pytest

from shapejit.codegen.ptx import DeviceCode, private_context, translate
from shapejit.codegen.ptxas import assemble
from shapejit.pass_host import PipelineError
from unit.gpu_modules import SCALE_INTERFACE, scale_module
from unit.ptx_samples import needs_ptxas


@pytest.fixture(autouse=True)
def _temporary_files(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failures leave goes with the files of the tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def translated(*modules: str) -> tuple[DeviceCode, ...]:
    with private_context():
        module = ir.Module.parse("\n".join(modules))
        before = str(module)
        codes = translate(module)
        assert str(module) == before
        return codes


def test_ptx_and_interface() -> None:
    (code,) = translated(scale_module())
    assert (code.name, code.arch) == ("scale", "sm_90a")
    assert code.interface == SCALE_INTERFACE
    assert ".target sm_90a" in code.ptx
    assert ".version 8.3" in code.ptx
    assert ".visible .entry scale(" in code.ptx
    assert "\0" not in code.ptx


def test_modules_keep_their_order() -> None:
    names = ["b", "a", "c"]
    codes = translated(*map(scale_module, names))
    assert [code.name for code in codes] == names
    assert all(f".entry {code.name}(" in code.ptx for code in codes)
    assert [code.interface.entry for code in codes] == names
    assert translated() == ()


def test_equal_modules_give_equal_texts() -> None:
    assert translated(scale_module()) == translated(scale_module())
    assert translated(scale_module()) != translated(scale_module(value="%factor"))


def test_many_at_a_time() -> None:
    """Each thread has a context of its own, and none sees another's kernel."""
    texts = [scale_module(f"k{n}", value=("%product", "%factor")[n % 2]) for n in range(12)]
    alone = [translated(text) for text in texts]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(translated, texts)) == alone


def test_a_failure_is_told_to_its_own_thread_alone() -> None:
    """An op that LLVM has no translation for."""
    wrong = scale_module().replace("llvm.return", "gpu.barrier\n    llvm.return")

    def diagnostics(text: str) -> str:
        try:
            translated(text)
        except PipelineError as error:
            return error.diagnostics
        return ""

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(diagnostics, [scale_module(), wrong] * 4))
    assert found[::2] == [""] * 4
    assert all(text.count("unsupported GPU operation: gpu.barrier") == 1 for text in found[1::2])


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", "requires one #nvvm.target, got 0"),
        ('[#nvvm.target<chip = "sm_90a">, #nvvm.target<chip = "sm_80">]', "target, got 2"),
        ("[#rocdl.target]", "requires an #nvvm.target with a chip: #rocdl.target"),
    ],
)
def test_targets_that_do_not_serve(target: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"gpu.module @scale .*{reason}"):
        translated(scale_module(target=target))


def test_a_module_without_interface() -> None:
    with pytest.raises(ValueError, match=r"@scale requires the attribute shapejit\.interface"):
        translated(scale_module(interface=""))


def test_an_interface_that_is_none() -> None:
    with pytest.raises(ValueError, match="not the record of a kernel's interface"):
        translated(scale_module(interface="{}"))


def test_an_interface_of_another_kernel() -> None:
    with pytest.raises(ValueError, match="@scale has no kernel 'scal', as it says it has"):
        translated(scale_module(named="scal"))


@needs_ptxas
def test_the_ptx_assembles() -> None:
    (code,) = translated(scale_module())
    cubin = assemble(code.ptx, code.arch)
    assert list(cubin.resources) == [code.interface.entry]
