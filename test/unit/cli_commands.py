# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Calling the command line in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from shapejit.cli.main import cli

MODELS = """\
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        self.eval()

    def forward(self, x):
        return self.layers(x)


def mlp():
    return Mlp()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 8)
        self.out = nn.Linear(8, 3)
        self.eval()

    def forward(self, ids, mask):
        hidden = self.table(ids) * mask[..., None]
        return {"hidden": hidden, "scores": self.out(hidden)}


def tagger():
    return Tagger(), (torch.randint(0, 50, (2, 3)), torch.ones(2, 3))


def with_keywords():
    return Tagger(), (), {"ids": torch.zeros(2, 3, dtype=torch.int64), "mask": torch.ones(2, 3)}


class Nested(nn.Module):
    def forward(self, batch, scale, *, power):
        product = batch["a"] * scale + batch["parts"][0]
        return (product if power else batch["a"]), batch["a"].shape[0], batch["a"].log()


def nested():
    parts = [torch.ones(2, 3)]
    return Nested().eval(), ({"a": -torch.ones(2, 3), "parts": parts}, 2.0), {"power": True}


def raises():
    return {}["width"]


def returns_a_number():
    return 3


def returns_a_tensor_for_args():
    return Tagger(), torch.ones(2, 3)


number = 3
"""


def shapejit(*arguments: str | Path) -> Result:
    """Runs a command."""
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def output(*arguments: str | Path) -> str:
    """What a command that succeeds prints on standard output."""
    result = shapejit(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(*arguments: str | Path) -> Any:
    """The JSON that a command that succeeds prints."""
    return json.loads(output(*arguments, "--json"))


def error(*arguments: str | Path, status: int = 2) -> str:
    """The message of a command that fails, without the program's name."""
    result = shapejit(*arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("shapejit: error: "), result.stderr
    return result.stderr.removeprefix("shapejit: error: ").rstrip("\n")


def write_models(folder: Path) -> Path:
    """A file of functions that give models."""
    path = folder / "models.py"
    path.write_text(MODELS)
    return path
