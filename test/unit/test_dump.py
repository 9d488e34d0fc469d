# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What `SHAPEJIT_DUMP_TO` leaves, and what the compiler logs meanwhile."""

from __future__ import annotations

import json
import logging
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import shapejit
from shapejit.dump import Dump
from shapejit.knobs import knobs
from shapejit.pipeline import STAGES


class Pair(nn.Module):
    """Two equal layers and one that differs: one kernel is launched twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x)))))


def compile_pair(**options: Any) -> shapejit.Program:
    shapes = {"x": {0: Dim("batch", min=1, max=64)}}
    return shapejit.compile(Pair().eval(), (torch.randn(3, 8),), dynamic_shapes=shapes, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of one compilation."""
    root = tmp_path_factory.mktemp("dump") / "made" / "on demand"
    compile_pair(dump_to=root)
    (folder,) = root.iterdir()
    return folder


def test_the_folder_is_named_by_time_and_arguments(folder: Path) -> None:
    assert re.fullmatch(r"\d{8}-\d{6}-x", folder.name)


def test_the_ir_after_each_stage(folder: Path) -> None:
    names = ["import", *(stage.name for stage in STAGES)]
    assert sorted(p.name for p in folder.glob("*.mlir")) == [
        f"{number:02d}-{name}.mlir" for number, name in enumerate(names)
    ]
    assert "#shapejit.shape<[s0, 8]>" in (folder / "00-import.mlir").read_text()


def test_the_index_leads_from_kernels_to_shapes_and_files(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    assert index["symbols"] == [{"name": "batch", "min": 1, "max": 64, "opt": None}]
    assert [len(kernel["launches"]) for kernel in index["kernels"]] == [2, 1]
    first, last = index["kernels"]
    assert first["kind"] == "gemm"
    assert [launch["sizes"] for launch in first["launches"]] == [["batch", "8", "8"]] * 2
    assert last["launches"][0]["sizes"] == ["batch", "3", "8"]
    assert any("test_dump.py:" in source for source in first["launches"][0]["sources"])
    for entry in (first["files"], last["files"], index["host"]):
        assert list(entry) == ["llvm", "optimized", "assembly", "object"]
        assert all((folder / file).stat().st_size for file in entry.values())
    page = (folder / "index.md").read_text()
    assert f"## {first['name']}\n" in page
    assert "| batch x 8 x 8 | 2 |" in page
    for link in re.findall(r"\]\(([^)]+)\)", page):
        assert (folder / link).exists()


def test_assembly_and_ir_are_those_of_the_object(folder: Path, tmp_path: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    files = index["kernels"][0]["files"]
    assembled = tmp_path / "assembled.o"
    subprocess.run(["as", str(folder / files["assembly"]), "-o", str(assembled)], check=True)

    def code(path: Path) -> str:
        run = subprocess.run(
            ["objdump", "-d", "--no-addresses", "--no-show-raw-insn", str(path)],
            check=True,
            capture_output=True,
            text=True,
        )
        # Jumps are spelt with or without a size, and calls through a symbol or a section.
        return re.sub(r"\s+", " ", run.stdout.partition("Disassembly")[2])

    ours = re.findall(r"\bv?\w*(?:fmadd|mul|add)\w*", code(folder / files["object"]))
    assert ours
    assert ours == re.findall(r"\bv?\w*(?:fmadd|mul|add)\w*", code(assembled))
    assert "define " in (folder / files["llvm"]).read_text()
    assert "define " in (folder / files["optimized"]).read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    folders = [Dump(str(tmp_path), "ids-mask").folder for _ in range(3)]
    assert len({*folders}) == 3
    assert all(folder is not None and (folder / "kernels").is_dir() for folder in folders)


def test_odd_names_stay_inside_the_folder(tmp_path: Path) -> None:
    folder = Dump(str(tmp_path), '../../batch["ids"]').folder
    assert folder is not None
    assert folder.parent == tmp_path
    assert Dump(str(tmp_path), "").folder != folder


def test_without_a_folder_nothing_happens() -> None:
    dump = Dump(None, "x")
    dump.stage("import", None)
    dump.index((), ())
    assert dump.folder is None


def test_the_variable(tmp_path: Path) -> None:
    with knobs.scope(dump_to=str(tmp_path)):
        compile_pair()
    (folder,) = tmp_path.iterdir()
    assert (folder / "index.json").exists()


def test_a_dump_computes_the_same(tmp_path: Path) -> None:
    model = Pair().eval()
    x = torch.randn(5, 8)
    shapes = {"x": {0: Dim("batch", min=1, max=64)}}
    dumped = shapejit.compile(model, (x,), dynamic_shapes=shapes, dump_to=tmp_path)
    plain = shapejit.compile(model, (x,), dynamic_shapes=shapes)
    with torch.no_grad():
        assert torch.equal(dumped(x), plain(x))


def test_what_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    shapejit.cache.clear()  # or no stage would run
    with caplog.at_level(logging.DEBUG, logger="shapejit"):
        compile_pair()
    texts: dict[str, list[str]] = {}
    for record in caplog.records:
        if record.name.startswith("shapejit."):
            name = record.name.removeprefix("shapejit.")
            texts.setdefault(name, []).append(record.getMessage())
    assert any(re.fullmatch(r"export took \d+\.\d{3} s", text) for text in texts["import"])
    assert "2 kernels, 3 launches, 3 packed weights" in texts["passes"]
    stages = [text.split(" took ")[0] for text in texts["passes"] if " took " in text]
    assert stages == [stage.name for stage in STAGES]
    assert texts["bucket"] == ["one variant of each of 2 kernels, for all of batch = 1..64"]
    assert re.match(r"3 objects, \d+ bytes, ", texts["codegen"][-1])
    # Two kernels, the host program, the whole program.
    assert sum(": built, " in text for text in texts["cache"]) == 4
