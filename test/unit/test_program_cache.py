# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Whole programs in the cache: what is found, what is not, and with which weights."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import shapejit
from shapejit import importer, program_cache
from shapejit.artefacts import Artefacts
from shapejit.cache import CacheStats, CacheWarning, fingerprint, object_cache
from shapejit.cache.program_entry import ProgramEntryError, decode, encode
from shapejit.errors import UnsupportedOpError
from shapejit.importer import registry
from shapejit.knobs import knobs
from unit.gpu_programs import deep, residual


class Net(nn.Module):
    """A linear layer, a buffer that no state dict holds, and a literal tensor."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("shift", torch.randn(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) + self.shift * torch.tensor([1.0, 2.0] * 4)


def exported(model: nn.Module, most: int = 64) -> ExportedProgram:
    shapes = ({0: Dim("rows", min=1, max=most)},)
    return torch.export.export(model.eval(), (torch.zeros(3, 8),), dynamic_shapes=shapes)


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of its own, and digests that do not depend on when sources were edited."""
    monkeypatch.setattr(fingerprint, "program_digest", lambda: "of the package")
    with knobs.scope(cache_dir=str(tmp_path / "cache"), verify_each=False), torch.no_grad():
        object_cache().clear_memory()
        yield
    object_cache().clear_memory()


def counts() -> tuple[int, int, int]:
    """Whole programs found in memory, on disk, and built."""
    stats: CacheStats = shapejit.cache.stats()
    return stats.program_memory_hits, stats.program_disk_hits, stats.program_built


def check(program: shapejit.Program, model: nn.Module) -> None:
    for count in (1, 5, 64):
        x = torch.randn(count, 8)
        torch.testing.assert_close(program(x), model(x))


def test_a_program_is_found_in_memory_and_on_disk() -> None:
    model, before = Net(), counts()
    first = shapejit.compile(exported(model))
    again = shapejit.compile(exported(model))
    object_cache().clear_memory()
    later = shapejit.compile(exported(model))
    assert [p.stats().origin for p in (first, again, later)] == ["built", "memory", "disk"]
    assert [after - b for after, b in zip(counts(), before, strict=True)] == [1, 1, 1]
    for program in (first, again, later):
        check(program, model)
    assert {kernel.origin for kernel in later.artefacts.kernels} == {"disk"}
    text = str(later.explain(torch.zeros(3, 8)))
    assert "all from the cache on disk" in text
    assert "compiled" in str(first.explain(torch.zeros(3, 8)))
    assert "codegen" in first.stats().compile_seconds
    assert list(again.stats().compile_seconds) == ["export", "program-cache"]
    [entry] = [each for each in shapejit.cache.ls() if each.kind == "program"]
    [details] = shapejit.cache.show(entry.digest)
    assert "aten.linear.default" in details.note


def test_a_module_is_found_after_its_export() -> None:
    def compiled(model: nn.Module, count: int = 3) -> shapejit.Program:
        return shapejit.compile(
            model.eval(), (torch.zeros(count, 8),), dynamic_shapes={"x": {0: (1, 8, 64)}}
        )

    compiled(Net())
    assert compiled(Net()).stats().origin == "memory"


def test_other_weights_are_those_of_the_program_at_hand() -> None:
    shapejit.compile(exported(Net(0)))
    model = Net(1)
    program = shapejit.compile(exported(model))
    assert program.stats().origin == "memory"
    check(program, model)
    model.linear.weight.fill_(0.5)
    check(program, model)
    state = {name: value.clone() for name, value in Net(2).state_dict().items()}
    program.load_state_dict(state)
    check(program, model)


def test_buffers_that_calls_change_are_those_of_the_program_at_hand() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.sum(0))
            return x + self.seen

    models = [Counts(), Counts()]
    programs = [shapejit.compile(exported(model)) for model in models]
    assert [program.stats().origin for program in programs] == ["built", "memory"]
    for factor, (model, program) in enumerate(zip(models, programs, strict=True), start=1):
        x = torch.full((3, 8), float(factor))
        torch.testing.assert_close(program(x), x + 3 * factor)
        torch.testing.assert_close(model.seen, torch.full((8,), 3.0 * factor))


def test_tied_weights_are_another_program() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))

    loose, tied = Two(), Two()
    tied.b.weight = tied.a.weight
    shapejit.compile(exported(loose))
    program = shapejit.compile(exported(tied))
    assert program.stats().origin == "built"
    check(program, tied)


def test_a_scalar_that_becomes_a_constant_is_part_of_the_key() -> None:
    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor) -> Tensor:
            return x * torch.tensor(self.factor)

    for factor in (2.0, 3.0):
        program = shapejit.compile(exported(Scaled(factor)))
        assert program.stats().origin == "built"
        check(program, Scaled(factor))


def test_a_damaged_entry_is_built_again(tmp_path: Path) -> None:
    model = Net()
    shapejit.compile(exported(model))
    [entry] = [each for each in shapejit.cache.ls() if each.kind == "program"]
    path = tmp_path / "cache" / "objects" / f"{entry.digest}.entry"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    object_cache().clear_memory()
    with pytest.warns(CacheWarning):
        program = shapejit.compile(exported(model))
    assert program.stats().origin == "built"
    check(program, model)
    object_cache().clear_memory()
    assert shapejit.compile(exported(model)).stats().origin == "disk"


def test_an_entry_that_is_not_understood_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    shapejit.compile(exported(model))

    def refuse(_data: bytes) -> Artefacts:
        raise ProgramEntryError("it is of another time")

    monkeypatch.setattr(program_cache, "decode", refuse)
    program = shapejit.compile(exported(model))
    assert program.stats().origin == "built"
    check(program, model)


def test_without_the_disk_and_without_memory() -> None:
    model = Net()
    with knobs.scope(cache=False):
        shapejit.compile(exported(model))
        assert shapejit.compile(exported(model)).stats().origin == "memory"
        object_cache().clear_memory()
        assert shapejit.compile(exported(model)).stats().origin == "built"
    with knobs.scope(cache_memory_bytes=0):
        object_cache().clear_memory()
        assert shapejit.compile(exported(model)).stats().origin == "built"
        assert shapejit.compile(exported(model)).stats().origin == "disk"
    object_cache()


def test_stages_that_are_to_run_do_run(tmp_path: Path) -> None:
    shapejit.compile(exported(Net()))
    for options in ({"verify_each": True}, {"dump_to": str(tmp_path / "dump")}):
        assert shapejit.compile(exported(Net()), **options).stats().origin == "built"
    with knobs.scope(verify_each=True):
        assert shapejit.compile(exported(Net())).stats().origin == "built"


def test_operators_of_others_are_not_trusted_to_stay() -> None:
    @torch.library.custom_op("shapejit_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    @double.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    class Custom(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = double(x)
            return result

    captured = importer.capture(exported(Custom()), None, None, None)
    assert program_cache.program_unit(captured, shapejit.CompileOptions(), None) is None


def test_rules_of_others_are_not_trusted_to_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def airy(ctx: Any, x: Any) -> Any:
        return x

    shapejit.compile(exported(Net()))
    monkeypatch.setitem(registry._RULES, "aten.special_airy_ai", airy)
    assert shapejit.compile(exported(Net())).stats().origin == "built"


def test_an_error_is_no_entry() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.airy_ai(x)

    before = counts()
    for _ in range(2):
        with pytest.raises(UnsupportedOpError):
            shapejit.compile(exported(Sorted()))
    assert counts() == before


def test_threads_that_compile_one_program_do_it_once() -> None:
    programs = [exported(Net(seed)) for seed in range(4)]
    before = counts()
    found: dict[int, shapejit.Program] = {}

    def work(number: int) -> None:
        with torch.no_grad():
            found[number] = shapejit.compile(programs[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts()[2] - before[2] == 1
    assert sorted(p.stats().origin for p in found.values())[0] == "built"
    for number, program in found.items():
        check(program, Net(number))


# Entries ------------------------------------------------------------------------------------------


def without_times(artefacts: Artefacts) -> Artefacts:
    return dataclasses.replace(artefacts, compile_seconds={}, leases=())


@pytest.mark.parametrize("made", [residual, deep])
def test_entries_of_programs_for_a_gpu(made: Any) -> None:
    artefacts = made()[0]
    assert without_times(decode(encode(artefacts))) == without_times(artefacts)


def test_an_entry_of_other_bytes() -> None:
    data = encode(residual()[0])
    head = data.index(b"\n") + 1
    damaged = [
        b"",
        data[:10],
        data[: head + 50],
        data[:-1],
        data + b"x",
        data.replace(b"shapejit-program 2", b"shapejit-program 1"),
    ]
    damaged += [data.replace(b'"Artefacts"', b'"Arteficts"'), data.replace(b'"parts"', b'"parti"')]
    for each in damaged:
        with pytest.raises(ProgramEntryError):
            decode(each)
