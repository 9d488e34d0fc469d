# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The MODEL argument: what it stands for, and what functions may return."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from shapejit.cli.models import (
    ExportedModel,
    LoadedModule,
    PythonModel,
    SavedModel,
    find_model,
)
from shapejit.errors import CommandLineError
from unit.cli_commands import write_models
from unit.sample_program import sample_program


def load(text: str) -> LoadedModule:
    source = find_model(text)
    assert isinstance(source, PythonModel)
    return source.load()


def refusal(text: str) -> str:
    with pytest.raises(CommandLineError) as raised:
        load(text)
    return str(raised.value)


def test_files(tmp_path: Path) -> None:
    saved = tmp_path / "any.name"
    sample_program().save(saved)
    assert isinstance(find_model(str(saved)), SavedModel)
    exported = tmp_path / "model.pt2"
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    torch.export.save(program, exported)
    source = find_model(str(exported))
    assert isinstance(source, ExportedModel)
    assert torch.equal(source.load().module()(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    renamed = exported.rename(tmp_path / "model.bin")
    assert isinstance(find_model(str(renamed)), ExportedModel)


def test_a_damaged_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"no zip")
    source = find_model(str(path))
    assert isinstance(source, ExportedModel)
    with pytest.raises(CommandLineError, match=r"SJ-CLI-002 .* torch.export cannot load it"):
        source.load()


@pytest.mark.parametrize("function", ["mlp", "tagger", "with_keywords", "Tagger"])
def test_functions_and_classes(tmp_path: Path, function: str) -> None:
    found = load(f"{write_models(tmp_path)}:{function}")
    assert isinstance(found.module, torch.nn.Module)
    assert (found.args is None) == (function in ("mlp", "Tagger"))
    assert list(found.kwargs) == (["ids", "mask"] if function == "with_keywords" else [])


def test_modules_are_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zoo_of_models.py").write_text("from torch import nn\nnet = nn.ReLU()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    assert isinstance(load("zoo_of_models:net").module, torch.nn.ReLU)
    assert 'there is no module "zoo' not in refusal("zoo_of_models:missing")
    assert "there is no 'missing' in zoo_of_models" in refusal("zoo_of_models:missing")


def test_files_import_their_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "neighbour_of_model.py").write_text("from torch import nn\nnet = nn.Tanh()\n")
    (tmp_path / "its_model.py").write_text(
        "def build():\n    from neighbour_of_model import net\n    return net\n"
    )
    assert isinstance(load(f"{tmp_path}/its_model.py:build").module, torch.nn.Tanh)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nothing.sjit", 'SJ-CLI-002 "nothing.sjit" is not a model: there is no such file.'),
        ("nothing.py:f", 'SJ-CLI-002 "nothing.py:f" is not a model: there is no file nothing.py.'),
        ("no_such.module:f", "there is no module no_such."),
        ("os.nothing:f", "there is no module os.nothing."),
        (".", 'SJ-CLI-002 "." is not a model: it is a folder.'),
        ("{models}", "it lacks the name of a function in it, as in {models}:build."),
        ("{models}:nothing", "there is no 'nothing' in {models}."),
        ("{models}:number", 'SJ-CLI-003 "{models}:number" gives no model: it is an int.'),
        ("{models}:raises", "gives no model: it raised KeyError: 'width'."),
        ("{models}:returns_a_number", "gives no model: it returned an int."),
        (
            "{models}:returns_a_tensor_for_args",
            "gives no model: the args that it returned are a Tensor, not a tuple.",
        ),
    ],
)
def test_what_is_no_model(tmp_path: Path, model: str, message: str) -> None:
    models = str(write_models(tmp_path))
    text = refusal(model.format(models=models))
    assert message.format(models=models) in text


def test_the_line_that_raised_is_named(tmp_path: Path) -> None:
    models = write_models(tmp_path)
    line = models.read_text().splitlines().index('    return {}["width"]') + 1
    assert refusal(f"{models}:raises").endswith(f"(models.py:{line})")


def test_a_module_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import a_package_that_is_nowhere\n")
    text = refusal(f"{tmp_path}/bad.py:f")
    assert "importing it raised ModuleNotFoundError" in text
    assert text.endswith("(bad.py:1)")
