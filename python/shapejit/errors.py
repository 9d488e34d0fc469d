# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Every error a user can meet, in one catalogue.

An error has a stable id (``SJ-SHAPE-003``), a message that names the user's own thing (argument,
dim name, size, operator, file and line) with the rule it breaks, and a way out. Raise one with
``raise ErrorId.SJ_SHAPE_003.error(dim="seq", size=1537, ...)``: its text reads

    SJ-SHAPE-003 dim "seq" = 1537 of argument "ids" (dim 1) is above its range 1..1024. Compile
    with Dim("seq", max=2048). (model.py:41)

Each family has one exception class, which is a `ShapeJitError` and the Python type one would
expect (`ShapeError` is a `ValueError`, `ArgumentError` a `TypeError`). ``docs/errors.md`` is
generated from the catalogue.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


class ShapeJitError(Exception):
    """Base of all errors of shapejit.

    Attributes:
        id: the member of the catalogue.
        fields: the values its templates were filled with.
        location: ``file:line`` in the user's sources, or None.
    """

    def __init__(
        self, error_id: ErrorId, fields: Mapping[str, Any], location: str | None = None
    ) -> None:
        self.id = error_id
        self.fields = dict(fields)
        self.location = location
        super().__init__(error_id.render(fields, location))

    @property
    def remedy(self) -> str:
        """The way out alone, without a full stop."""
        return self.id.remedy(self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.fields, self.location)


class ShapeError(ShapeJitError, ValueError):
    """A size of an input breaks a rule of the compiled program."""


class DtypeError(ShapeJitError, TypeError):
    """A tensor has a dtype that is not the compiled one, or that is not supported."""


class DeviceError(ShapeJitError, ValueError):
    """A tensor is on a device where the program does not run."""


class GradError(ShapeJitError, RuntimeError):
    """Gradients were asked of a program made for inference."""


class TrainError(ShapeJitError, RuntimeError):
    """The model is in training mode."""


class ArgumentError(ShapeJitError, TypeError):
    """The arguments of a call do not have the compiled number, names or structure."""


class ExportError(ShapeJitError, ValueError):
    """The model or its dynamic shapes cannot be captured as asked."""


class UnsupportedOpError(ShapeJitError, NotImplementedError):
    """The model uses operators that shapejit does not compile."""


class OptionError(ShapeJitError, ValueError):
    """A compile option has an unknown name or a bad value."""


class KnobError(ShapeJitError, ValueError):
    """A ``SHAPEJIT_*`` environment variable has a bad value."""


class CommandLineError(ShapeJitError, ValueError):
    """An argument or option of the ``shapejit`` command cannot be used."""


class LoadError(ShapeJitError, ValueError):
    """A saved program, or the weights for it, cannot be used."""


class TargetError(ShapeJitError, RuntimeError):
    """The target asked for cannot be compiled for or run on."""


class CudaError(ShapeJitError, RuntimeError):
    """A GPU, its driver or a launch failed."""


class InternalError(ShapeJitError, RuntimeError):
    """A fault of shapejit itself."""


class ShapeJitWarning(UserWarning):
    """Base of all warnings of shapejit."""


_FAMILIES: dict[str, type[ShapeJitError]] = {
    "SHAPE": ShapeError,
    "DTYPE": DtypeError,
    "DEVICE": DeviceError,
    "GRAD": GradError,
    "TRAIN": TrainError,
    "ARG": ArgumentError,
    "EXPORT": ExportError,
    "OP": UnsupportedOpError,
    "OPTION": OptionError,
    "KNOB": KnobError,
    "CLI": CommandLineError,
    "LOAD": LoadError,
    "TARGET": TargetError,
    "CUDA": CudaError,
    "INTERNAL": InternalError,
}


class _Formatter(string.Formatter):
    """`str.format` with a conversion ``!q`` that quotes a name."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "q":
            return quote(str(value))
        return super().convert_field(value, conversion)


_FORMATTER = _Formatter()


def quote(name: str) -> str:
    """`name` in double quotes, or in backticks when it holds a double quote itself."""
    return f"`{name}`" if '"' in name else f'"{name}"'


def join_names(names: Sequence[str], word: str = "and") -> str:
    """Quoted names as a list in words: ``"a", "b" and "c"``."""
    quoted = [quote(name) for name in names]
    if len(quoted) <= 1:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {word} {quoted[-1]}"


@dataclass(frozen=True)
class Entry:
    """What the catalogue says of one error.

    Attributes:
        title: one line for the docs page.
        message: template that states the thing, its value and the rule, without a full stop.
        remedy: template that states the way out, without a full stop.
    """

    title: str
    message: str
    remedy: str

    def field_names(self) -> frozenset[str]:
        """Names of the fields that the two templates use."""
        parsed = [*_FORMATTER.parse(self.message), *_FORMATTER.parse(self.remedy)]
        return frozenset(name for _, name, _, _ in parsed if name)


class ErrorId(Enum):
    """The catalogue. A member's name is the id with underscores; ids are never reused."""

    # Sizes of inputs.
    SJ_SHAPE_001 = Entry(
        "wrong rank",
        "argument {argument!q} has rank {rank} (shape {shape}), but the program was compiled for "
        "rank {expected} (shape {expected_shape})",
        "Pass a tensor of rank {expected}",
    )
    SJ_SHAPE_002 = Entry(
        "size below the range of its dim",
        "dim {dim!q} = {size} of argument {argument!q} (dim {index}) is below its range {range}",
        "Pass at least {bound}, or compile with {suggestion}",
    )
    SJ_SHAPE_003 = Entry(
        "size above the range of its dim",
        "dim {dim!q} = {size} of argument {argument!q} (dim {index}) is above its range {range}",
        "Pass at most {bound}, or compile with {suggestion}",
    )
    SJ_SHAPE_004 = Entry(
        "size off its divisor",
        "dim {index} of argument {argument!q} is {size}, but it is compiled as {rule}, so it must "
        "be {divisibility}",
        "Pad it to {padded}, or compile with a Dim of its own that may be any size",
    )
    SJ_SHAPE_005 = Entry(
        "size differs from a static size",
        "dim {index} of argument {argument!q} is {size}, but the program was compiled for "
        "{expected} there (shape {expected_shape})",
        "Pass {expected}, or compile with that dim dynamic{suggestion}",
    )
    SJ_SHAPE_006 = Entry(
        "two inputs disagree on a dim",
        "dim {dim!q} = {size} of argument {argument!q} (dim {index}), but it is {other_size} by "
        "argument {other_argument!q} (dim {other_index})",
        "Pass equal sizes, or compile with two Dims of different names if the model allows it",
    )
    SJ_SHAPE_007 = Entry(
        "size differs from what its expression gives",
        "dim {index} of argument {argument!q} is {size}, but it is compiled as {rule}, which is "
        "{expected} for {values}",
        "Pass {expected} there, or compile with a Dim of its own for it",
    )
    SJ_SHAPE_008 = Entry(
        "sizes break a relation between dims",
        "the sizes {values} break the rule {rule} that the model sets",
        "Pass sizes that keep {rule}",
    )
    SJ_SHAPE_009 = Entry(
        "a dim that no input determines",
        "dim {dim!q} cannot be worked out from the sizes of the inputs: it occurs only in {uses}",
        "Give it a dim of its own in one of the inputs",
    )
    SJ_SHAPE_010 = Entry(
        "not enough memory for the working buffers",
        "the sizes {values} need {what}, which cannot be allocated: {reason}",
        "Pass smaller inputs or free memory",
    )

    SJ_SHAPE_011 = Entry(
        "shapes of an operator's operands do not fit together",
        "{argument!q} of {operator}() has the shape {shape}, but {rule}",
        "{remedy}",
    )

    # Dtypes and devices.
    SJ_DTYPE_001 = Entry(
        "wrong dtype of an input",
        "argument {argument!q} is {dtype}, but the program was compiled for {expected}",
        "Pass {argument}.to({expected}), or compile again with an example of {dtype}",
    )
    SJ_DTYPE_002 = Entry(
        "a dtype that is not supported",
        "{what} is {dtype}, which the {target} target does not support (supported: {supported})",
        "Convert the model or the input to a supported dtype",
    )
    SJ_DTYPE_003 = Entry(
        "a dtype that an operator does not take",
        "{argument!q} of {operator}() is {dtype}, but {rule}",
        "{remedy}",
    )
    SJ_DEVICE_001 = Entry(
        "an input on the wrong device",
        "argument {argument!q} is on {device}, but the program was compiled for {expected}",
        'Pass {argument}.to("{expected}"), or compile again with inputs and weights on {device}',
    )
    SJ_DEVICE_002 = Entry(
        "weights and inputs on several devices",
        "the model's weights and example inputs are on several devices: {devices}",
        "Move them all to one device; shapejit never moves tensors",
    )
    SJ_DEVICE_003 = Entry(
        "an operand on a device where an operator does not run",
        "{argument!q} of {operator}() is on {device}, but {rule}",
        "{remedy}",
    )

    # Modes.
    SJ_GRAD_001 = Entry(
        "gradients asked for",
        "{what} requires grad and grad mode is on, but the program computes no gradients",
        "Call it under torch.no_grad() or torch.inference_mode()",
    )
    SJ_TRAIN_001 = Entry(
        "the module is in training mode",
        "the module is in train() mode, in which {modules} would behave differently",
        "Call model.eval() before compiling",
    )
    SJ_TRAIN_002 = Entry(
        "the exported program was captured in training mode",
        "the exported program holds {op} in training mode",
        "Call model.eval() before torch.export.export",
    )
    SJ_TRAIN_003 = Entry(
        "a program asked to train",
        "train() was called on a compiled program, which is for inference only",
        "Keep the program out of the module that trains, and compile again afterwards",
    )

    # Number, names, structure and kind of arguments.
    SJ_ARG_001 = Entry(
        "missing arguments",
        "the call lacks {missing}; the program takes {signature}",
        "Pass {missing}",
    )
    SJ_ARG_002 = Entry(
        "unexpected arguments",
        "the call passes {unexpected}, which the program does not take; it takes {signature}",
        "Leave out {unexpected}, or compile again with such an example call",
    )
    SJ_ARG_003 = Entry(
        "another structure of an argument",
        "argument {argument!q} is {structure}, but the program was compiled for {expected}",
        "Pass the compiled structure, or compile again with such an example call",
    )
    SJ_ARG_004 = Entry(
        "an argument of another kind",
        "argument {argument!q} is {kind}, but the program was compiled for {expected}",
        "Pass {remedy}",
    )
    SJ_ARG_005 = Entry(
        "a constant argument with another value",
        "argument {argument!q} is {value}, but the program was compiled with the constant "
        "{expected}",
        "Pass {expected}, or compile again with {value}",
    )
    SJ_ARG_006 = Entry(
        "a tensor that is not dense",
        "argument {argument!q} is a tensor of layout {layout}, but only dense (strided) tensors "
        "can be passed",
        "Pass {argument}.to_dense()",
    )
    SJ_ARG_007 = Entry(
        "not a model",
        "compile() was given {kind}",
        "Pass a torch.nn.Module, a torch.export.ExportedProgram or the path of a saved program",
    )
    SJ_ARG_008 = Entry(
        "example arguments missing or superfluous",
        "compile() of {kind} {rule}",
        "{remedy}",
    )
    SJ_ARG_009 = Entry(
        "an argument that an operator does not take",
        "{argument!q} of {operator}() is {value}, but {rule}",
        "{remedy}",
    )
    SJ_ARG_010 = Entry(
        "an argument that changes shares memory",
        "{argument!q}, which the program changes in place, shares memory {shared}",
        "Pass a tensor with memory of its own: {own}.clone()",
    )
    SJ_ARG_011 = Entry(
        "a tensor that cannot receive a result",
        "{argument!q} is {value}, but {rule}",
        "Pass a contiguous tensor of the result's dtype, sizes and device, or leave out `out`",
    )
    SJ_ARG_012 = Entry(
        "a tensor without memory",
        "{argument!q} is a {kind} whose elements are not in memory of its own, where "
        "kernels look for them",
        "Pass a plain tensor with the values, such as to_local() of a distributed one, and call "
        "outside of FakeTensorMode and of torch.func's transforms",
    )

    # Capture of the model and of its dynamic shapes.
    SJ_EXPORT_001 = Entry(
        "torch.export failed",
        "torch.export could not capture the model: {reason}",
        "Change the model at that place so that torch.export accepts it, or pass an "
        "ExportedProgram",
    )
    SJ_EXPORT_002 = Entry(
        "malformed dynamic_shapes",
        "dynamic_shapes{path} is {value}: {rule}",
        "Write it as torch.export does, for example "
        'dynamic_shapes={{"ids": {{0: Dim("batch", max=64), 1: (1, 128, 512)}}}}',
    )
    SJ_EXPORT_003 = Entry(
        "dynamic_shapes names an unknown argument",
        "dynamic_shapes names {argument!q}, which is not an argument of the example call; its "
        "arguments are {arguments}",
        "Use one of those names{hint}",
    )
    SJ_EXPORT_004 = Entry(
        "dynamic_shapes names a dim that the argument lacks",
        "dynamic_shapes names dim {index} of argument {argument!q}, whose example has rank {rank}",
        "Name a dim from 0 to {last}",
    )
    SJ_EXPORT_005 = Entry(
        "a malformed range",
        "the range of dim {dim!q} is {range}: {rule}",
        "Write (min, opt, max) with 0 <= min <= opt <= max",
    )
    SJ_EXPORT_006 = Entry(
        "one dim name with two ranges",
        "dim {dim!q} has the range {range} in argument {argument!q} but {other_range} in argument "
        "{other_argument!q}",
        "Use one Dim object for both, or two names",
    )
    SJ_EXPORT_007 = Entry(
        "an example outside its own range",
        "dim {dim!q} = {size} of the example for argument {argument!q} (dim {index}) is outside "
        "its range {range}",
        "Pass an example inside the range, or widen the range",
    )
    SJ_EXPORT_008 = Entry(
        "the model fixes a dynamic dim",
        "dim {dim!q} of argument {argument!q} (dim {index}) is dynamic in dynamic_shapes, but the "
        "model fixes it to {size}",
        "Leave it out of dynamic_shapes, or change the model so that it takes any size",
    )
    SJ_EXPORT_009 = Entry(
        "the model forces two dims to be equal",
        "dims {dim!q} and {other_dim!q} have different names in dynamic_shapes, but the model "
        "forces them to be equal",
        "Use the same Dim for both",
    )
    SJ_EXPORT_010 = Entry(
        "the model relates dims in a way dynamic_shapes does not state",
        "the model holds only for {rule}, which dynamic_shapes does not state",
        "Write {suggestion} in dynamic_shapes",
    )
    SJ_EXPORT_011 = Entry(
        "the model restricts the range of a dim",
        "the model works only for {rule}, but dynamic_shapes gives dim {dim!q} the range {range}",
        "Compile with {suggestion}",
    )
    SJ_EXPORT_012 = Entry(
        "a size that depends on data",
        "{op} gives a tensor whose size depends on the values of its inputs",
        "Move that step out of the model, or give it a result of fixed size (torch.where, masks)",
    )
    SJ_EXPORT_013 = Entry(
        "the model changes a parameter or a constant",
        "the model changes {tensor!q} in place, which is neither a buffer nor an input",
        "Register it with register_buffer, or pass it as an input",
    )
    SJ_EXPORT_014 = Entry(
        "buffers that change share memory",
        "the model changes its buffer {buffer!q} in place, which shares memory with {other!q}",
        "Give each of them memory of its own: buffer.clone()",
    )
    SJ_EXPORT_015 = Entry(
        "an input of a kind that cannot vary",
        "input {argument!q} is {kind}, which cannot be an input of a compiled program",
        "Pass it as a tensor, or leave it a constant by not naming it in dynamic_shapes",
    )
    SJ_EXPORT_016 = Entry(
        "an output of a kind that cannot be returned",
        "output {output!q} is {kind}, which a compiled program cannot return",
        "Return tensors, None, numbers, strings or sizes",
    )
    SJ_EXPORT_017 = Entry(
        "the model branches on data or calls subgraphs",
        "the model holds {op}, whose subgraphs compiled programs do not run",
        "Write it with torch.where or masks",
    )
    SJ_EXPORT_018 = Entry(
        "torch-mlir could not import the exported program",
        "torch-mlir could not import the exported program: {reason}",
        "Reduce the model to the part that fails and report it",
    )

    # Operators.
    SJ_OP_001 = Entry(
        "operators that are not supported",
        "the model uses {count} that shapejit does not compile:\n{table}\n",
        "Replace them in the model, or add a rule for each (docs/custom-ops.md)",
    )
    SJ_OP_002 = Entry(
        "a rule of the user's that failed",
        "the rule {rule} for {operator} failed: {reason}",
        "Mend the rule at {where}",
    )

    # Options and knobs.
    SJ_OPTION_001 = Entry(
        "an unknown compile option",
        "{option!q} is not a compile option{hint}",
        "The options are {options}",
    )
    SJ_OPTION_002 = Entry(
        "a bad value of a compile option",
        "option {option!q} is {value}: {rule}",
        "Pass {suggestion}",
    )
    SJ_KNOB_001 = Entry(
        "a bad value of an environment variable",
        "{knob} is {value!q}: {rule}",
        "Set it to {suggestion}, or unset it",
    )
    SJ_KNOB_002 = Entry(
        "an unknown environment variable (a warning)",
        "{knob} is set, but shapejit reads no such variable{hint}",
        "Unset it, or use one of {knobs}",
    )

    # The command line.
    SJ_CLI_001 = Entry(
        "a malformed option of the command line",
        "{option} {text!q}: {rule}",
        "Write for example {example}",
    )
    SJ_CLI_002 = Entry(
        "not a model of the command line",
        "{model!q} is not a model: {reason}",
        "Pass a saved program (model.sjit), an exported program (model.pt2), or a function that "
        "returns a model (package.module:function or file.py:function)",
    )
    SJ_CLI_003 = Entry(
        "a function that gives no model",
        "{model!q} gives no model: {reason}",
        "It must be a function without arguments, or a class, that returns a torch.nn.Module, or "
        "(module, args), or (module, args, kwargs)",
    )
    SJ_CLI_004 = Entry(
        "an option names what the model lacks",
        "{option} {text!q} names {name!q}, but the model's {kind} are {known}",
        "Use one of those names{hint}",
    )
    SJ_CLI_005 = Entry(
        "an input that is not described enough",
        "{what} of input {input!q} is not known: neither the model nor an option states it",
        "Add {suggestion}",
    )
    SJ_CLI_006 = Entry(
        "an option that does not apply",
        "{option} does not apply to {model!q}, {kind}",
        "{remedy}",
    )
    SJ_CLI_007 = Entry(
        "a file of tensors that cannot be used",
        "{path!q} {reason}",
        "{remedy}",
    )
    SJ_CLI_008 = Entry(
        "a package that a command needs is not installed",
        "`{command}` needs the package {package!q}, which is not installed",
        "Run {remedy}",
    )

    # Saved programs.
    SJ_LOAD_001 = Entry(
        "no such file",
        "there is no file {path!q}",
        "Check the path; program.save(path) writes such a file",
    )
    SJ_LOAD_002 = Entry(
        "not a saved program",
        "{path!q} is not a saved program: {reason}",
        "Pass a file written by program.save(path); if this is one, copy or save it again",
    )
    SJ_LOAD_003 = Entry(
        "another format version",
        "{path!q} has format version {version}, and this shapejit ({shapejit}) reads version "
        "{supported}",
        "Compile and save the model again with this shapejit, or install shapejit {writer}",
    )
    SJ_LOAD_004 = Entry(
        "built for another CPU",
        "{path!q} was built for the CPU {cpu} and needs {features}, which this CPU ({host}) lacks",
        "Compile and save it on this machine, or with target_cpu set to an older CPU",
    )
    SJ_LOAD_005 = Entry(
        "a damaged member",
        "{path!q} is damaged: {member!q} {reason}",
        "Copy the file again, or compile and save it again",
    )
    SJ_LOAD_006 = Entry(
        "saved without weights",
        "{path!q} was saved without weights",
        "Pass weights=, a module, a state dict or the path of a safetensors file",
    )
    SJ_LOAD_007 = Entry(
        "weights that lack a name",
        "the weights given lack {missing}, which the program needs",
        "Pass weights of the model that was compiled",
    )
    SJ_LOAD_008 = Entry(
        "a weight of another shape, dtype or device",
        "weight {weight!q} is {value}, but the program needs {expected}",
        "Pass weights of the model that was compiled",
    )
    SJ_LOAD_009 = Entry(
        "a container type that is not registered",
        "{path!q} takes or returns {type!q}, which is not registered with torch.utils._pytree here",
        "Import the module that defines it ({module}) before shapejit.load",
    )
    SJ_LOAD_010 = Entry(
        "native code that does not load",
        "the native code of {path!q} does not load: {reason}",
        "Compile and save the model again with this shapejit",
    )
    SJ_LOAD_011 = Entry(
        "a weights file that cannot be read",
        "the weights file {path!q} cannot be read: {reason}",
        "Pass a safetensors file, a state dict or a module",
    )
    SJ_LOAD_012 = Entry(
        "a program that cannot be saved",
        "the program cannot be saved to {path!q}: {reason}",
        "{remedy}",
    )
    SJ_LOAD_013 = Entry(
        "built for another kind of machine",
        "{path!q} was built for {triple}, and this machine is {host}",
        "Compile and save it on this kind of machine",
    )
    SJ_LOAD_014 = Entry(
        "built for a GPU that is not here",
        "{path!q} was built for NVIDIA GPUs of architecture {arch}: {reason}",
        "Load it on a machine with such a GPU, or compile the model for the one at hand",
    )

    # Targets.
    SJ_TARGET_001 = Entry(
        "a target that is not there yet",
        "target {target!q} is not available in this version of shapejit: {missing}",
        "{remedy}",
    )
    SJ_TARGET_002 = Entry(
        "an unknown target",
        "{target!q} is not a target",
        "Pass one of {targets}",
    )
    SJ_TARGET_003 = Entry(
        "a target that does not match the tensors' device",
        "target {target!q} does not match the weights and inputs, which are on {device}",
        'Move them first (shapejit never moves tensors), or pass target="auto"',
    )
    SJ_TARGET_004 = Entry(
        "a CPU that cannot be compiled for",
        "option target_cpu is {cpu!q}, which is not a CPU that shapejit compiles for",
        "Pass one of {known}",
    )
    SJ_TARGET_005 = Entry(
        "no usable assembler for NVIDIA GPUs",
        "target {target!q} needs NVIDIA's assembler ptxas: {reason}",
        "pip install 'shapejit[cuda]', or set SHAPEJIT_PTXAS to the path of one",
    )
    SJ_TARGET_006 = Entry(
        "no usable NVIDIA GPU",
        "target {target!q} needs an NVIDIA GPU of architecture {archs}: {reason}",
        'Run on a machine with one, or move model and inputs to the CPU and use target="cpu"',
    )
    SJ_TARGET_007 = Entry(
        "operators that have no GPU kernels",
        "the model has {count} for which target {target!q} has no kernels yet:\n{table}\n",
        "It compiles products, convolutions and attention of float16, bfloat16 or float32 (linear, "
        "matmul, bmm, scaled_dot_product_attention), and pointwise operators, reductions, norms "
        'and gathers of any type. Run the rest in PyTorch, or use target="cpu"',
    )
    SJ_TARGET_008 = Entry(
        "too many tensors and sizes for one program on a GPU",
        "for target {target!q} {reason}",
        "Export parts of the model as programs of their own, each with fewer inputs and outputs",
    )

    # GPUs. The reason names the kernel, the value and the rule.
    SJ_CUDA_001 = Entry(
        "no usable CUDA driver",
        "{reason}",
        "Install NVIDIA's driver, or set SHAPEJIT_LIBCUDA to the path of its libcuda.so.1",
    )
    SJ_CUDA_002 = Entry(
        "a call of the CUDA driver failed",
        "{reason}",
        "Run again with CUDA_LAUNCH_BLOCKING=1 to find the kernel at fault",
    )
    SJ_CUDA_003 = Entry(
        "a kernel whose interface does not fit its code or the device",
        "{reason}",
        "This is a fault of shapejit; report it with the model",
    )
    SJ_CUDA_004 = Entry(
        "a launch that breaks a rule",
        "{reason}",
        "Pass sizes, strides and addresses that keep the rule",
    )

    # Faults of shapejit.
    SJ_INTERNAL_001 = Entry(
        "a compile stage failed",
        "stage {stage!q} failed: {reason}",
        "This is a fault of shapejit. Please report it with {reproduction}",
    )
    SJ_INTERNAL_002 = Entry(
        "code generation failed",
        "code generation of kernel {kernel!q} failed: {reason}",
        "This is a fault of shapejit. Please report it with {reproduction}",
    )
    SJ_INTERNAL_003 = Entry(
        "shapes differ from torch's",
        "{op} gives shape {shape} by shapejit's rule but {expected} by torch's",
        "This is a fault of shapejit. Please report it with the model",
    )
    SJ_INTERNAL_004 = Entry(
        "the host program rejects sizes that the checks allowed",
        "the host program rejects the sizes {values} (code {code})",
        "This is a fault of shapejit. Please report it with the model and those sizes",
    )

    @property
    def code(self) -> str:
        """The id as users see it: ``SJ-SHAPE-003``."""
        return self.name.replace("_", "-")

    @property
    def family(self) -> str:
        """The middle part of the id: ``SHAPE``."""
        return self.name.split("_")[1]

    @property
    def exception(self) -> type[ShapeJitError]:
        """The exception class of this id's family."""
        return _FAMILIES[self.family]

    def render(self, fields: Mapping[str, Any], location: str | None = None) -> str:
        """The full text: id, message, way out, and the location in brackets if known."""
        entry: Entry = self.value
        message = _FORMATTER.vformat(entry.message, (), fields)
        separator = "" if message.endswith("\n") else ". "
        text = f"{self.code} {message}{separator}{self.remedy(fields)}."
        return text if location is None else f"{text} ({location})"

    def remedy(self, fields: Mapping[str, Any]) -> str:
        """The way out, without a full stop."""
        entry: Entry = self.value
        return _FORMATTER.vformat(entry.remedy, (), fields)

    def error(self, *, location: str | None = None, **fields: Any) -> ShapeJitError:
        """The exception to raise. `fields` fill the templates; all of them are needed."""
        return self.exception(self, fields, location)
