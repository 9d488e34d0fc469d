# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Writing passes in Python and running pipelines of them.

A pass is a frozen dataclass whose fields are its options, registered under a name::

    @register_pass("shapejit-fold-views", dialects=("arith",))
    @dataclass(frozen=True)
    class FoldViews(Pass):
        '''Fold views into the maps of the ops that read them.'''

        max_rank: int = option(8, help="leave views of a higher rank alone")

        def run(self, module: ir.Operation) -> None: ...

It then runs by name in every textual pipeline, ``shapejit-fold-views{max-rank=4}``, of
:func:`run_pipeline` and of ``shapejit-opt``. A pass rejects its input with
:class:`PassFailure`, which becomes an error at that op; any other exception becomes an
error that names the line which raised it.

``run`` must not raise out of an ``Operation.walk`` callback (the bindings re-wrap the
exception): collect in the walk and raise outside.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import mlir.ir as ir
from mlir.passmanager import PassManager

from . import _native
from .symbolic.memo import remembering

_OPTION_KINDS: dict[type, int] = {int: 0, bool: 1, str: 2}


class PassFailure(Exception):  # noqa: N818 - the name of what happened, as MLIR calls it
    """A pass rejects its input: `message` is reported as an error at `op`."""

    def __init__(self, op: Any, message: str) -> None:
        super().__init__(message)
        self.op = op
        self.message = message


class PipelineError(RuntimeError):
    """A pipeline failed.

    Attributes:
        diagnostics: what the passes reported, one a line.
        reproducer: file with the IR before the pipeline.
        command: the shapejit-opt call that runs the pipeline on it again.
    """

    def __init__(self, stage: str, diagnostics: str, reproducer: Path, command: str) -> None:
        super().__init__(
            f"stage '{stage}' failed:\n{diagnostics.rstrip()}\nTo run it again:\n  {command}"
        )
        self.diagnostics = diagnostics
        self.reproducer = reproducer
        self.command = command


class Pass:
    """Base of passes over a module; subclasses are frozen dataclasses of options."""

    def run(self, module: Any) -> None:
        """Transforms `module`, the ``builtin.module`` operation, in place."""
        raise AssertionError("a pass defines run()")


def option(default: Any, *, help: str) -> Any:
    """A pass option: a dataclass field of type int, bool or str with a help text."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclasses.dataclass(frozen=True)
class RegisteredPass:
    """A pass as the registry knows it."""

    name: str
    summary: str
    cls: type[Pass]
    options: tuple[dataclasses.Field[Any], ...]


_passes: list[RegisteredPass] = []
# Contexts that C++ owns (MlirOptMain) must outlive every Python wrapper of them: the
# wrapper's destructor would destroy the context. They are kept here for good.
_foreign_contexts: dict[int, Any] = {}
_in_driver = False


def enter_driver() -> None:
    """Called once by shapejit-opt: contexts belong to MlirOptMain from now on."""
    global _in_driver
    _in_driver = True


def registered_passes() -> tuple[RegisteredPass, ...]:
    """All passes registered so far, in order of registration."""
    return tuple(_passes)


PassClass = TypeVar("PassClass", bound=type[Pass])


def register_pass(name: str, *, dialects: Sequence[str] = ()) -> Callable[[PassClass], PassClass]:
    """Class decorator: registers a pass under `name` in MLIR's pass registry.

    Args:
        name: kebab case, with the ``shapejit-`` prefix.
        dialects: namespaces of the dialects whose ops the pass creates.

    Raises:
        TypeError: an option is not an int, a bool or a str.
        ValueError: a dialect is unknown to the pass host.
    """

    def register(cls: PassClass) -> PassClass:
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        for field in fields:
            if _option_type(field) not in _OPTION_KINDS:
                raise TypeError(f"{name}: option {field.name} must be an int, bool or str")
        for dialect in dialects:
            if not _native.lib.shapejitIsPassDialect(dialect.encode()):
                raise ValueError(f"{name}: unknown dialect {dialect!r}")
        _passes.append(RegisteredPass(name, summary, cls, fields))
        _register_native(len(_passes) - 1, _passes[-1], dialects)
        return cls

    return register


def _option_type(field: dataclasses.Field[Any]) -> type:
    default: Any = field.default
    return type(default)


def _option_name(field: dataclasses.Field[Any]) -> str:
    return field.name.replace("_", "-")


def _strings(values: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*[v.encode() for v in values])


def _initial(field: dataclasses.Field[Any]) -> str:
    """The default of an option as the C++ side reads it: bools are 0 and 1."""
    default: Any = field.default
    return str(int(default)) if isinstance(default, bool) else str(default)


def _register_native(number: int, entry: RegisteredPass, dialects: Sequence[str]) -> None:
    initials = [_initial(f) for f in entry.options]
    kinds = [_OPTION_KINDS[_option_type(f)] for f in entry.options]
    _native.lib.shapejitRegisterPythonPass(
        ctypes.c_int64(number),
        entry.name.encode(),
        entry.cls.__name__.encode(),
        entry.summary.encode(),
        _strings(dialects),
        ctypes.c_ssize_t(len(dialects)),
        _strings([_option_name(f) for f in entry.options]),
        _strings([f.metadata["help"] for f in entry.options]),
        _strings(initials),
        (ctypes.c_int * len(kinds))(*kinds),
        ctypes.c_ssize_t(len(kinds)),
        _run_callback,
    )


def _parse_option(field: dataclasses.Field[Any], text: str) -> int | bool | str:
    kind = _option_type(field)
    return text == "1" if kind is bool else int(text) if kind is int else text


def _run(number: int, address: int, names: Any, values: Any, count: int) -> int:
    """Called by the C++ pass; 0 on success, 1 after an error was emitted."""
    try:
        entry = _passes[number]
        module = _native.wrap(ir.Operation, address)
        if _in_driver and id(module.context) not in _foreign_contexts:
            context = module.context
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(context))
            _foreign_contexts[id(context)] = context
        given = {names[i].decode(): values[i].decode() for i in range(count)}
        options = {f.name: _parse_option(f, given[_option_name(f)]) for f in entry.options}
        with module.context, module.location, remembering():
            entry.cls(**options).run(module)
        return 0
    except PassFailure as failure:
        address = _native.pointer(failure.op.operation)
        _native.lib.shapejitEmitError(address, failure.message.encode())
    except BaseException as error:  # nothing may be raised into C++
        frame = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} [{Path(frame.filename).name}:{frame.lineno}]"
        _native.lib.shapejitEmitError(address, message.encode())
    return 1


# C++ keeps the pointer for the life of the process, and so this module keeps the thunk.
_run_callback = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.c_ssize_t,
)(_run)


def run_pipeline(module: Any, pipeline: str, *, stage: str, verify: bool = True) -> None:
    """Runs a textual pass pipeline on a module, in place.

    Args:
        module: ``ir.Module`` or its operation.
        pipeline: what goes into ``builtin.module(...)``, e.g. ``"canonicalize,cse"``.
        stage: name of the step, for the error.
        verify: whether MLIR verifies the IR after every pass.

    Raises:
        PipelineError: a pass failed; it holds the diagnostics and the command that
            repeats the failure.
    """
    operation = module.operation
    text = f"builtin.module({pipeline})"
    before = operation.clone()  # printed only on failure: copying is far cheaper
    diagnostics = ctypes.c_void_p()
    with operation.context:
        manager = PassManager.parse(text)
        manager.enable_verifier(verify)
        failed = _native.lib_nogil.shapejitRunPassManager(
            _native.pointer(manager), _native.pointer(operation), ctypes.byref(diagnostics)
        )
    reported = _native.take_string(diagnostics.value)
    if failed:
        path = write_reproducer(str(before), stage)
        command = f"shapejit-opt {path} --pass-pipeline='{text}'"
        raise PipelineError(stage, reported, path, command)


def write_reproducer(text: str, stage: str) -> Path:
    """Writes IR where the user can find it; equal IR gets the same name."""
    directory = Path(os.environ.get("SHAPEJIT_DUMP_TO") or tempfile.gettempdir()) / "reproducers"
    directory.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = directory / f"{stage}-{digest}.mlir"
    path.write_text(text)
    return path
