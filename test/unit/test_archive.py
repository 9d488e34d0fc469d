# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Saved programs: the same bits after loading, weights from elsewhere, and every refusal."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import shapejit
from shapejit.artefacts import ConstantInput, ConstantOutput, TargetInfo, WeightSpec
from shapejit.errors import LoadError
from shapejit.manifest import from_json, to_json
from shapejit.program import Program
from unit.sample_program import (
    N,
    reference,
    sample_artefacts,
    sample_inputs,
    sample_program,
    sample_weights,
    structure_of,
)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The sample program, saved with its weights."""
    path = tmp_path / "model.sj"
    sample_program().save(path)
    return path


def same(one: Program, other: Program) -> bool:
    """Whether two programs give the same bits."""
    inputs = sample_inputs(3, 17)
    first, second = one(*inputs), other(*inputs)
    return all(torch.equal(first[name], second[name]) for name in first)


def refusal(path: Any, **options: Any) -> str:
    """The text of the error that loading raises."""
    with pytest.raises(LoadError) as raised:
        shapejit.load(path, **options)
    return str(raised.value)


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """Change the manifest and the members of a saved program, and write it back."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(manifest, members)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)


# Round trips.


def test_a_loaded_program_gives_the_same_bits(saved: Path) -> None:
    program = shapejit.load(saved)
    assert same(program, sample_program())
    assert program.stats().compiles == 0
    assert program.stats().compile_seconds == {"export": 1.25, "codegen": 0.5}
    assert repr(program) == repr(sample_program())
    assert program.explain(*sample_inputs()) == sample_program().explain(*sample_inputs())


def test_saving_what_was_loaded_gives_the_same_file(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.sj"
    shapejit.load(saved).save(again)
    for path in (saved, again):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    contents = [
        {name: zipfile.ZipFile(path).read(name) for name in zipfile.ZipFile(path).namelist()}
        for path in (saved, again)
    ]
    assert contents[0] == contents[1]


def test_every_kind_of_record_survives_the_manifest() -> None:
    artefacts = sample_artefacts(
        inputs=(*sample_artefacts().inputs, ConstantInput("scale", float("inf"))),
        outputs=(*sample_artefacts().outputs, ConstantOutput("text"), ConstantOutput(None)),
        output_tree=structure_of({"y": 0, "rest": [0, (0, 0)]}),
        compile_seconds={"size": 1.0, "is": 2.0, "tree": 3.0},
    )
    text = json.dumps(to_json(artefacts))
    assert from_json(json.loads(text), artefacts.objects) == artefacts


def test_a_file_is_replaced_only_by_a_whole_one(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(LoadError, match=r"SJ-LOAD-012 .*: No space left on device\. Create"):
        sample_program().save(saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_paths_may_be_strings_and_files_are_replaced(saved: Path) -> None:
    sample_program().save(str(saved), weights=False)
    assert "SJ-LOAD-006" in refusal(str(saved))
    sample_program().save(str(saved))
    assert same(shapejit.load(str(saved)), sample_program())


def test_loading_needs_neither_torch_export_nor_torch_mlir(saved: Path) -> None:
    code = f"""
import sys, torch
torch.export.export = None
before = set(sys.modules)
import shapejit
program = shapejit.load({str(saved)!r})
with torch.no_grad():
    result = program(torch.ones(2, 3, 4), torch.ones(2, 3))
assert not any(name.split(".")[0] == "torch_mlir" for name in sys.modules)
assert not any(name.startswith("shapejit.importer") for name in sys.modules)
assert not any(name == "shapejit.pipeline" for name in sys.modules)
print(result["y"].sum().item())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    expected = sample_program()(torch.ones(2, 3, 4), torch.ones(2, 3))["y"].sum().item()
    assert float(out.stdout) == expected


# Weights.


def tied_program() -> tuple[Program, list[Tensor]]:
    """The sample program with a tied weight, a constant and a view that shares storage."""
    weights = sample_weights()
    both = torch.cat([weights[1], torch.arange(3.0)])
    specs = (
        *sample_artefacts().weights,
        WeightSpec("head.weight", "float32", (N, 4)),
        WeightSpec("positions", "float32", (3,), constant=True),
        WeightSpec("empty.a", "float32", (0,)),
        WeightSpec("empty.b", "float32", (0,)),
    )
    tensors = [weights[0], both[:N], weights[0], both[N:], torch.empty(0), torch.empty(0)]
    artefacts = sample_artefacts(weights=specs)
    return Program(dataclasses.replace(artefacts, packs=artefacts.packs), tensors), tensors


def test_tied_and_sharing_weights_are_saved_once(tmp_path: Path) -> None:
    program, tensors = tied_program()
    path = tmp_path / "tied.sj"
    program.save(path)
    with zipfile.ZipFile(path) as archive:
        stored = safetensors.torch.load(archive.read("weights.safetensors"))
        constants = safetensors.torch.load(archive.read("constants.safetensors"))
    assert sorted(stored) == ["empty.a", "empty.b", "fc.bias", "fc.weight"]
    assert list(constants) == ["positions"]
    loaded = shapejit.load(path).all_weights()
    assert all(torch.equal(one, other) for one, other in zip(loaded, tensors, strict=True))
    assert loaded[0] is loaded[2]


def test_saved_without_weights(tmp_path: Path) -> None:
    program, tensors = tied_program()
    path = tmp_path / "bare.sj"
    program.save(path, weights=False)
    assert refusal(path) == (
        f'SJ-LOAD-006 "{path}" was saved without weights. Pass weights=, a module, a state dict '
        "or the path of a safetensors file."
    )
    given = {"fc.weight": tensors[0], "fc.bias": tensors[1], "unused": torch.empty(9)}
    given |= {"empty.a": tensors[4], "empty.b": tensors[5]}
    loaded = shapejit.load(path, weights=given)
    assert loaded.all_weights()[2] is tensors[0], "a tied name is found by its other name"
    assert torch.equal(loaded.all_weights()[3], tensors[3]), "constants are always saved"


class Model(nn.Module):
    """A module with the sample program's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, N)


def test_weights_of_a_module_are_shared_with_it(saved: Path) -> None:
    model = Model()
    program = shapejit.load(saved, weights=model)
    x, mask = sample_inputs()
    for _ in range(2):
        expected = reference([model.fc.weight, model.fc.bias], x, mask)["y"]
        torch.testing.assert_close(program(x, mask)["y"].double(), expected, rtol=1e-5, atol=1e-5)
        model.fc.weight.mul_(3)


def test_weights_of_a_state_dict_and_of_a_file(saved: Path, tmp_path: Path) -> None:
    weights = dict(zip(("fc.weight", "fc.bias"), sample_weights(seed=8), strict=True))
    expected = Program(sample_artefacts(), sample_weights(seed=8))
    assert same(shapejit.load(saved, weights=weights), expected)
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(weights, path)
    assert same(shapejit.load(saved, weights=path), expected)
    assert same(shapejit.load(saved, weights=str(path)), expected)


def test_weights_that_do_not_fit(saved: Path, tmp_path: Path) -> None:
    weight, bias = sample_weights()
    assert refusal(saved, weights={"fc.bias": bias}) == (
        'SJ-LOAD-007 the weights given lack "fc.weight", which the program needs. Pass weights '
        "of the model that was compiled."
    )
    assert refusal(saved, weights={"fc.weight": weight.half(), "fc.bias": bias}) == (
        'SJ-LOAD-008 weight "fc.weight" is torch.float16 [5, 4] on cpu, but the program needs '
        "torch.float32 [5, 4] on cpu. Pass weights of the model that was compiled."
    )
    assert refusal(saved, weights=tmp_path / "none").startswith("SJ-LOAD-001 there is no file")
    garbage = tmp_path / "garbage.bin"
    garbage.write_bytes(b"\xff" * 64)
    text = refusal(saved, weights=garbage)
    assert text.startswith(f'SJ-LOAD-011 the weights file "{garbage}" cannot be read: ')
    assert text.endswith(". Pass a safetensors file, a state dict or a module.")


def test_many_missing_weights_are_not_all_listed(tmp_path: Path) -> None:
    specs = tuple(WeightSpec(f"w{n}", "float32", (1,)) for n in range(7))
    program = Program(sample_artefacts(weights=specs, packs=()), [torch.empty(1)] * 7)
    path = tmp_path / "many.sj"
    program.save(path)
    assert 'lack "w0", "w1", "w2", "w3" and 3 more, which' in refusal(path, weights={})


def test_freed_weights_are_saved_from_their_packed_copies(tmp_path: Path) -> None:
    path = tmp_path / "freed.sj"
    Program(sample_artefacts(), sample_weights(), free_original=True).save(path)
    assert same(shapejit.load(path), sample_program())


# Refusals.


def test_no_such_file(tmp_path: Path) -> None:
    path = tmp_path / "model.sj"
    assert refusal(path) == (
        f'SJ-LOAD-001 there is no file "{path}". Check the path; program.save(path) writes such '
        "a file."
    )


def test_another_file(tmp_path: Path) -> None:
    path = tmp_path / "model.sj"
    path.write_text("not a program")
    assert refusal(path) == (
        f'SJ-LOAD-002 "{path}" is not a saved program: it is not a zip file, or it is cut short. '
        "Pass a file written by program.save(path); if this is one, copy or save it again."
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "its manifest.json is missing or damaged" in refusal(path)
    for text, reason in (
        ("[]", "states no format version"),
        ("{}", "states no format version"),
        ('{"format": 6}', "its manifest.json is incomplete"),
        ('{"format": 6, "members": {}, "aliases": {}, "artefacts": {"is": "Path"}}', "Path"),
        ('{"format": 6, "members": {}, "aliases": {}, "artefacts": []}', "holds no program"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("manifest.json", text)
        assert reason in refusal(path)
        assert refusal(path).startswith("SJ-LOAD-002")


def test_another_format_version(saved: Path) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        manifest.update(format=7, shapejit="9.9.9")

    rewrite(saved, change)
    assert refusal(saved) == (
        f'SJ-LOAD-003 "{saved}" has format version 7, and this shapejit '
        f"({shapejit.__version__}) reads version 6. Compile and save the model again with this "
        "shapejit, or install shapejit 9.9.9."
    )


def test_another_cpu(saved: Path) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        manifest["artefacts"]["target"].update(cpu="future9", features=["avx", "avx2048f"])

    rewrite(saved, change)
    host = sample_artefacts().target.cpu
    assert refusal(saved) == (
        f'SJ-LOAD-004 "{saved}" was built for the CPU future9 and needs avx2048f, which this CPU '
        f"({host}) lacks. Compile and save it on this machine, or with target_cpu set to an "
        "older CPU."
    )


def test_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "arm.sj"
    sample_program(target=TargetInfo("cpu", "aarch64-linux", "neoverse", ())).save(path)
    host = sample_artefacts().target.triple
    assert refusal(path) == (
        f'SJ-LOAD-013 "{path}" was built for aarch64-linux, and this machine is {host}. Compile '
        "and save it on this kind of machine."
    )


def test_a_changed_member(saved: Path) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        data = bytearray(members["weights.safetensors"])
        data[-1] ^= 1
        members["weights.safetensors"] = bytes(data)

    rewrite(saved, change)
    assert refusal(saved) == (
        f'SJ-LOAD-005 "{saved}" is damaged: "weights.safetensors" does not have the SHA-256 that '
        "the manifest states. Copy the file again, or compile and save it again."
    )


def test_a_missing_member(saved: Path) -> None:
    rewrite(saved, lambda manifest, members: members.pop("code/0000.o") and None)
    assert refusal(saved) == (
        f'SJ-LOAD-005 "{saved}" is damaged: "code/0000.o" is missing. Copy the file again, or '
        "compile and save it again."
    )


def test_native_code_that_does_not_load(saved: Path) -> None:
    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        members["code/0000.o"] = b"no object file"
        digest = hashlib.sha256(members["code/0000.o"]).hexdigest()
        manifest["members"]["code/0000.o"] = digest

    rewrite(saved, change)
    text = refusal(saved)
    assert text.startswith(f'SJ-LOAD-010 the native code of "{saved}" does not load: ')
    assert text.endswith(". Compile and save the model again with this shapejit.")


def test_an_unregistered_container(tmp_path: Path) -> None:
    path = tmp_path / "model.sj"
    sample_program().save(path)

    def change(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
        tree = manifest["artefacts"]["output_tree"]
        tree["tree"] = tree["tree"].replace("builtins.dict", "acme.outputs.Result")

    rewrite(path, change)
    assert refusal(path) == (
        f'SJ-LOAD-009 "{path}" takes or returns "acme.outputs.Result", which is not registered '
        "with torch.utils._pytree here. Import the module that defines it (acme.outputs) before "
        "shapejit.load."
    )


class Pair(NamedTuple):
    """A container that torch can flatten but not serialise until it has a name."""

    y: Any
    total: Any


def test_a_container_that_torch_cannot_serialise(tmp_path: Path) -> None:
    program = sample_program(output_tree=structure_of(Pair(0, 0)))
    assert isinstance(program(*sample_inputs()), Pair)
    path = tmp_path / "model.sj"
    with pytest.raises(LoadError) as raised:
        program.save(path)
    text = str(raised.value)
    assert text.startswith(f'SJ-LOAD-012 the program cannot be saved to "{path}": ')
    assert "Pair" in text
    assert not path.exists()
    pytree._register_namedtuple(Pair, serialized_type_name="tests.Pair")
    program.save(path)
    assert isinstance(shapejit.load(path)(*sample_inputs()), Pair)
    rewrite(path, lambda manifest, _: manifest["artefacts"]["output_tree"].update(
        tree=manifest["artefacts"]["output_tree"]["tree"].replace("tests.Pair", "tests.Other")
    ))  # fmt: skip
    assert 'takes or returns "tests.Other"' in refusal(path)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "model.sj"
    with pytest.raises(LoadError) as raised:
        sample_program().save(path)
    assert str(raised.value) == (
        f'SJ-LOAD-012 the program cannot be saved to "{path}": No such file or directory. Create '
        "its folder, free space there, or give it another path."
    )


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_file_cut_short_is_refused(saved: Path, data: st.DataObject) -> None:
    whole = saved.read_bytes()
    cut = saved.with_name("cut.sj")
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert refusal(cut).startswith(("SJ-LOAD-002", "SJ-LOAD-005"))


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_flipped_bit_is_refused_or_without_effect(saved: Path, data: st.DataObject) -> None:
    whole = bytearray(saved.read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    flipped = saved.with_name("flipped.sj")
    flipped.write_bytes(whole)
    try:
        program = shapejit.load(flipped)
    except LoadError:
        return
    assert same(program, sample_program())  # a field of the zip format that nothing reads
