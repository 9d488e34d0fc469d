# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The MODEL argument: what it can be, and reading it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from shapejit.errors import ErrorId, ShapeJitError

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

_EXPORTED_SUFFIX = ".pt2"
_MANIFEST = "manifest.json"  # as in shapejit.archive, which brings torch


@dataclass(frozen=True)
class SavedModel:
    """A program written by `Program.save`."""

    text: str
    kind = "a saved program"

    @property
    def path(self) -> Path:
        return Path(self.text)


@dataclass(frozen=True)
class ExportedModel:
    """A file written by `torch.export.save`."""

    text: str
    kind = "an exported program"

    def load(self) -> ExportedProgram:
        """The exported program.

        Raises:
            CommandLineError: torch cannot read it (SJ-CLI-002).
        """
        import torch.export

        try:
            return torch.export.load(self.text)
        except Exception as error:  # whatever the unpacking of a damaged file raises
            reason = f"torch.export cannot load it: {_brief(error)}"
            raise _not_a_model(self.text, reason) from error


@dataclass(frozen=True)
class PythonModel:
    """A function, or class, that gives a module and perhaps an example call."""

    text: str
    module: str
    function: str
    kind = "a Python function"

    def load(self) -> LoadedModule:
        """What the function returns.

        Raises:
            CommandLineError: it does not exist, fails, or returns no model (SJ-CLI-002, -003).
        """
        module = _import(self)
        value: Any = module
        for name in self.function.split("."):
            if not hasattr(value, name):
                raise _not_a_model(self.text, f"there is no {self.function!r} in {self.module}")
            value = getattr(value, name)
        return _loaded(self.text, value)


ModelSource: TypeAlias = SavedModel | ExportedModel | PythonModel


@dataclass(frozen=True)
class LoadedModule:
    """A module, and its example call if there is one (`args` is None if not)."""

    module: nn.Module
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


def find_model(text: str) -> ModelSource:
    """What the MODEL argument stands for; nothing is loaded yet.

    Raises:
        CommandLineError: it is none of the things that it can be (SJ-CLI-002).
    """
    path = Path(text)
    if path.is_file():
        return _file(text, path)
    module, colon, function = text.rpartition(":")
    if colon and module and function:
        if module.endswith(".py") and not Path(module).is_file():
            raise _not_a_model(text, f"there is no file {module}")
        return PythonModel(text, module, function)
    if path.is_dir():
        raise _not_a_model(text, "it is a folder")
    raise _not_a_model(text, "there is no such file")


def _file(text: str, path: Path) -> ModelSource:
    if path.suffix == _EXPORTED_SUFFIX:
        return ExportedModel(text)
    if path.suffix == ".py":
        raise _not_a_model(text, f"it lacks the name of a function in it, as in {text}:build")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if _MANIFEST not in archive.namelist():
                return ExportedModel(text)
    # Loading says what is wrong with a file that is no program.
    return SavedModel(text)


# Python functions.


def _import(source: PythonModel) -> ModuleType:
    """The module of a function; the folder it lies in can be imported from, as in a script."""
    file = Path(source.module)
    is_file = source.module.endswith(".py")
    folder = str(file.resolve().parent) if is_file else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _import_file(file) if is_file else importlib.import_module(source.module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{source.module}.".startswith(f"{error.name}."):
            raise _not_a_model(source.text, f"there is no module {error.name}") from error
        raise _failed(source.text, "importing it raised", error) from error
    except Exception as error:
        raise _failed(source.text, "importing it raised", error) from error


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickles look their module up by its name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _loaded(text: str, value: Any) -> LoadedModule:
    from torch import nn

    if not isinstance(value, nn.Module):
        if not callable(value):
            raise ErrorId.SJ_CLI_003.error(model=text, reason=f"it is {_kind(value)}")
        try:
            value = value()
        except Exception as error:
            raise _failed(text, "it raised", error) from error
    match value:
        case nn.Module():
            return LoadedModule(value)
        case (nn.Module() as module, args):
            return LoadedModule(module, _arguments(text, args))
        case (nn.Module() as module, args, dict() as kwargs):
            return LoadedModule(module, _arguments(text, args), kwargs)
        case _:
            raise ErrorId.SJ_CLI_003.error(model=text, reason=f"it returned {_kind(value)}")


def _arguments(text: str, args: Any) -> tuple[Any, ...]:
    if not isinstance(args, (tuple, list)):
        reason = f"the args that it returned are {_kind(args)}, not a tuple"
        raise ErrorId.SJ_CLI_003.error(model=text, reason=reason)
    return tuple(args)


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(entry).__name__ for entry in value) or 'nothing'}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _failed(text: str, what: str, error: Exception) -> ShapeJitError:
    from shapejit.importer.source import error_line

    line = error_line(error)
    return ErrorId.SJ_CLI_003.error(
        model=text,
        reason=f"{what} {_brief(error)}",
        location=None if line is None else str(line),
    )


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {text[:500]}" if text else type(error).__name__


def _not_a_model(text: str, reason: str) -> ShapeJitError:
    return ErrorId.SJ_CLI_002.error(model=text, reason=reason)
