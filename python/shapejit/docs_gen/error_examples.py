# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""One example of every error: the fields of its templates and, where usual, a location."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shapejit.errors import ErrorId, ShapeJitError


@dataclass(frozen=True)
class Example:
    """Values that fill the templates of one error."""

    fields: dict[str, Any]
    location: str | None = None

    def error(self, error_id: ErrorId) -> ShapeJitError:
        """The error filled with these values."""
        return error_id.error(location=self.location, **self.fields)


EXAMPLES: dict[ErrorId, Example] = {
    ErrorId.SJ_SHAPE_001: Example(
        {
            "argument": "ids",
            "rank": 3,
            "shape": "[1, 4, 7]",
            "expected": 2,
            "expected_shape": "[batch, seq]",
        }
    ),
    ErrorId.SJ_SHAPE_002: Example(
        {
            "dim": "seq",
            "size": 3,
            "argument": "ids",
            "index": 1,
            "range": "4..1024",
            "bound": 4,
            "suggestion": 'Dim("seq", min=3, max=1024)',
        }
    ),
    ErrorId.SJ_SHAPE_003: Example(
        {
            "dim": "seq",
            "size": 1537,
            "argument": "ids",
            "index": 1,
            "range": "1..1024",
            "bound": 1024,
            "suggestion": 'Dim("seq", min=1, max=2048)',
        },
        "model.py:41",
    ),
    ErrorId.SJ_SHAPE_004: Example(
        {
            "argument": "image",
            "index": 2,
            "size": 30,
            "rule": "8*h",
            "divisibility": "a multiple of 8",
            "padded": 32,
        }
    ),
    ErrorId.SJ_SHAPE_005: Example(
        {
            "argument": "x",
            "index": 2,
            "size": 700,
            "expected": 768,
            "expected_shape": "[batch, seq, 768]",
            "suggestion": ': dynamic_shapes={"x": {2: Dim("name")}}',
        }
    ),
    ErrorId.SJ_SHAPE_006: Example(
        {
            "dim": "batch",
            "size": 4,
            "argument": "mask",
            "index": 0,
            "other_size": 3,
            "other_argument": "ids",
            "other_index": 0,
        }
    ),
    ErrorId.SJ_SHAPE_007: Example(
        {
            "argument": "y",
            "index": 1,
            "size": 5,
            "rule": "2*seq",
            "expected": 6,
            "values": "seq = 3",
        }
    ),
    ErrorId.SJ_SHAPE_008: Example(
        {"values": "seq = 3, window = 8", "rule": "seq - window >= 0"}, "model.py:17"
    ),
    ErrorId.SJ_SHAPE_009: Example({"dim": "heads", "uses": 'heads*width of argument "x" (dim 1)'}),
    ErrorId.SJ_SHAPE_010: Example(
        {
            "values": "batch = 65536, seq = 4096",
            "what": "1099511627776 bytes of working memory",
            "reason": "not enough memory",
        }
    ),
    ErrorId.SJ_SHAPE_011: Example(
        {
            "argument": "b",
            "operator": "gemm",
            "shape": "[1024, 768]",
            "rule": 'its dim -2 must be the last size of "a", 768',
            "remedy": "Pass a tensor [..., 768, n]; for a weight [n, 768] pass weight.mT",
        }
    ),
    ErrorId.SJ_DTYPE_001: Example(
        {"argument": "ids", "dtype": "torch.int32", "expected": "torch.int64"}
    ),
    ErrorId.SJ_DTYPE_002: Example(
        {
            "what": 'weight "encoder.weight"',
            "dtype": "torch.complex64",
            "target": "cpu",
            "supported": "torch.float32, torch.int64, torch.int32, torch.bool",
        },
        "model.py:12",
    ),
    ErrorId.SJ_DTYPE_003: Example(
        {
            "argument": "b",
            "operator": "gemm",
            "dtype": "torch.float16",
            "rule": '"a" is torch.bfloat16',
            "remedy": "Convert one of them to the other's",
        }
    ),
    ErrorId.SJ_DEVICE_001: Example({"argument": "ids", "device": "cuda:0", "expected": "cpu"}),
    ErrorId.SJ_DEVICE_002: Example({"devices": 'cpu (weight "a.weight"), cuda:0 (argument "x")'}),
    ErrorId.SJ_DEVICE_003: Example(
        {
            "argument": "a",
            "operator": "gemm",
            "device": "cpu",
            "rule": "it runs on NVIDIA GPUs",
            "remedy": "Move the operands to a CUDA device, or use torch.matmul",
        }
    ),
    ErrorId.SJ_GRAD_001: Example({"what": 'argument "x"'}),
    ErrorId.SJ_TRAIN_001: Example({"modules": '"encoder.dropout" (Dropout)'}),
    ErrorId.SJ_TRAIN_002: Example({"op": "aten.dropout"}, "model.py:33"),
    ErrorId.SJ_TRAIN_003: Example({}),
    ErrorId.SJ_ARG_001: Example({"missing": 'argument "mask"', "signature": "(ids, mask)"}),
    ErrorId.SJ_ARG_002: Example(
        {"unexpected": 'keyword argument "labels"', "signature": "(ids, mask)"}
    ),
    ErrorId.SJ_ARG_003: Example(
        {"argument": "batch", "structure": "a dict of ids", "expected": "a dict of ids, mask"}
    ),
    ErrorId.SJ_ARG_004: Example(
        {
            "argument": "x",
            "kind": "a numpy.ndarray",
            "expected": "a tensor of torch.float32",
            "remedy": "torch.from_numpy(x)",
        }
    ),
    ErrorId.SJ_ARG_005: Example({"argument": "use_cache", "value": "True", "expected": "False"}),
    ErrorId.SJ_ARG_006: Example({"argument": "x", "layout": "torch.sparse_coo"}),
    ErrorId.SJ_ARG_007: Example({"kind": "a function"}),
    ErrorId.SJ_ARG_008: Example(
        {
            "kind": "a module",
            "rule": "needs an example call",
            "remedy": "Pass args=(...) and, if the model takes keywords, kwargs={...}",
        }
    ),
    ErrorId.SJ_ARG_010: Example({"argument": "keys", "shared": 'with "values"', "own": "keys"}),
    ErrorId.SJ_ARG_011: Example(
        {
            "argument": "out",
            "value": "torch.float32 [3, 8] on cpu",
            "rule": "the result is torch.float32 [4, 8] on cpu",
        }
    ),
    ErrorId.SJ_ARG_012: Example({"argument": "x", "kind": "FakeTensor"}),
    ErrorId.SJ_ARG_009: Example(
        {
            "argument": "activation",
            "operator": "gemm",
            "value": "'swish'",
            "rule": "it must be one of relu, gelu, gelu_tanh, silu, tanh, sigmoid",
            "remedy": "Pass one of these, or None and apply the function to the result",
        }
    ),
    ErrorId.SJ_EXPORT_001: Example(
        {"reason": "Could not guard on data-dependent expression u0 > 3"}, "model.py:29"
    ),
    ErrorId.SJ_EXPORT_002: Example(
        {
            "path": '["ids"][1]',
            "value": '"seq"',
            "rule": "a dim is a Dim, a (min, opt, max) triple, an int, Dim.AUTO or None",
        }
    ),
    ErrorId.SJ_EXPORT_003: Example(
        {
            "argument": "idz",
            "arguments": '"ids" and "mask"',
            "hint": ' (did you mean "ids"?)',
        }
    ),
    ErrorId.SJ_EXPORT_004: Example({"index": 3, "argument": "ids", "rank": 2, "last": 1}),
    ErrorId.SJ_EXPORT_005: Example(
        {"dim": "seq", "range": "(1, 900, 512)", "rule": "opt lies outside min..max"}
    ),
    ErrorId.SJ_EXPORT_006: Example(
        {
            "dim": "seq",
            "range": "1..512",
            "argument": "ids",
            "other_range": "1..256",
            "other_argument": "mask",
        }
    ),
    ErrorId.SJ_EXPORT_007: Example(
        {"dim": "seq", "size": 600, "argument": "ids", "index": 1, "range": "1..512"}
    ),
    ErrorId.SJ_EXPORT_008: Example(
        {"dim": "seq", "argument": "ids", "index": 1, "size": 128}, "model.py:52"
    ),
    ErrorId.SJ_EXPORT_009: Example({"dim": "seq", "other_dim": "mask_len"}, "model.py:52"),
    ErrorId.SJ_EXPORT_010: Example(
        {"rule": "width = 2*half", "suggestion": '2*Dim("half") for dim "width"'}, "model.py:60"
    ),
    ErrorId.SJ_EXPORT_011: Example(
        {
            "rule": "seq <= 512",
            "dim": "seq",
            "range": "1..1024",
            "suggestion": 'Dim("seq", min=1, max=512)',
        },
        "model.py:60",
    ),
    ErrorId.SJ_EXPORT_012: Example({"op": "aten.nonzero"}, "model.py:71"),
    ErrorId.SJ_EXPORT_013: Example({"tensor": "head.weight"}, "model.py:80"),
    ErrorId.SJ_EXPORT_014: Example({"buffer": "cache.keys", "other": "cache.values"}, None),
    ErrorId.SJ_EXPORT_015: Example({"argument": "scale", "kind": "a dynamic float"}),
    ErrorId.SJ_EXPORT_016: Example({"output": "[2]", "kind": "a custom object"}),
    ErrorId.SJ_EXPORT_017: Example({"op": "torch.cond"}, "model.py:90"),
    ErrorId.SJ_EXPORT_018: Example({"reason": "Unhandled operand type"}, "model.py:95"),
    ErrorId.SJ_OP_001: Example(
        {
            "count": "2 operators",
            "table": (
                "  aten.fft_rfft.default  x3  model.py:17\n  aten.unique2.default   x1  model.py:25"
            ),
        }
    ),
    ErrorId.SJ_OP_002: Example(
        {
            "rule": "_snake",
            "operator": "mylib.snake",
            "reason": "AttributeError: 'ScalarOps' object has no attribute 'sin'",
            "where": "snake.py:12",
        },
        "model.py:17",
    ),
    ErrorId.SJ_OPTION_001: Example(
        {
            "option": "max_region",
            "hint": ' (did you mean "max_regions"?)',
            "options": "deterministic, max_regions, opt_level",
        }
    ),
    ErrorId.SJ_OPTION_002: Example(
        {
            "option": "opt_level",
            "value": "7",
            "rule": "it must be an int from 0 to 3",
            "suggestion": "for example opt_level=2, the default",
        }
    ),
    ErrorId.SJ_KNOB_001: Example(
        {
            "knob": "SHAPEJIT_PROGRESS",
            "value": "maybe",
            "rule": "it must be auto, on or off",
            "suggestion": "auto",
        }
    ),
    ErrorId.SJ_KNOB_002: Example(
        {
            "knob": "SHAPEJIT_DUMPTO",
            "hint": ' (did you mean "SHAPEJIT_DUMP_TO"?)',
            "knobs": "SHAPEJIT_DUMP_TO, SHAPEJIT_PROGRESS",
        }
    ),
    ErrorId.SJ_CLI_001: Example(
        {
            "option": "--input",
            "text": "ids:int46:3x17",
            "rule": '"int46" is not a dtype (did you mean "int64"?)',
            "example": "--input ids:int64:3x17",
        }
    ),
    ErrorId.SJ_CLI_002: Example(
        {"model": "models.py", "reason": "there is no function named in it, as in models.py:tiny"}
    ),
    ErrorId.SJ_CLI_003: Example(
        {"model": "models.py:tiny", "reason": "it raised KeyError: 'width'"}, "models.py:12"
    ),
    ErrorId.SJ_CLI_004: Example(
        {
            "option": "--minShapes",
            "text": "idz:1x3",
            "name": "idz",
            "kind": "inputs",
            "known": '"ids" and "mask"',
            "hint": ' (did you mean "ids"?)',
        }
    ),
    ErrorId.SJ_CLI_005: Example(
        {"what": "the dtype", "input": "ids", "suggestion": "--input ids:int64"}
    ),
    ErrorId.SJ_CLI_006: Example(
        {
            "option": "--dim",
            "model": "model.sjit",
            "kind": "a saved program",
            "remedy": "Its dims were fixed when it was compiled; compile the model again",
        }
    ),
    ErrorId.SJ_CLI_007: Example(
        {
            "path": "inputs.safetensors",
            "reason": 'lacks a tensor for input "mask"',
            "remedy": "Save one tensor for each input, under its name",
        }
    ),
    ErrorId.SJ_CLI_008: Example(
        {
            "command": "shapejit demo",
            "package": "matplotlib",
            "remedy": "pip install 'shapejit[demo]'",
        }
    ),
    ErrorId.SJ_LOAD_001: Example({"path": "model.sj"}),
    ErrorId.SJ_LOAD_002: Example(
        {"path": "model.sj", "reason": "it is not a zip file, or it is cut short"}
    ),
    ErrorId.SJ_LOAD_003: Example(
        {
            "path": "model.sj",
            "version": 2,
            "shapejit": "0.1.0",
            "supported": 1,
            "writer": "0.4.0",
        }
    ),
    ErrorId.SJ_LOAD_004: Example(
        {
            "path": "model.sj",
            "cpu": "znver4",
            "features": "avx512f, avx512vl",
            "host": "znver2",
        }
    ),
    ErrorId.SJ_LOAD_005: Example(
        {
            "path": "model.sj",
            "member": "weights.safetensors",
            "reason": "does not have the SHA-256 that the manifest states",
        }
    ),
    ErrorId.SJ_LOAD_006: Example({"path": "model.sj"}),
    ErrorId.SJ_LOAD_007: Example({"missing": '"encoder.weight"'}),
    ErrorId.SJ_LOAD_008: Example(
        {
            "weight": "encoder.weight",
            "value": "torch.float16 [384, 384] on cpu",
            "expected": "torch.float32 [384, 384] on cpu",
        }
    ),
    ErrorId.SJ_LOAD_009: Example(
        {
            "path": "model.sj",
            "type": "transformers.modeling_outputs.BaseModelOutput",
            "module": "transformers.modeling_outputs",
        }
    ),
    ErrorId.SJ_LOAD_010: Example(
        {"path": "model.sj", "reason": "Symbols not found: [ shapejit_run ]"}
    ),
    ErrorId.SJ_LOAD_011: Example({"path": "weights.bin", "reason": "header too large"}),
    ErrorId.SJ_LOAD_012: Example(
        {
            "path": "/models/model.sj",
            "reason": "No such file or directory",
            "remedy": "Create the folder first",
        }
    ),
    ErrorId.SJ_LOAD_013: Example(
        {
            "path": "model.sj",
            "triple": "aarch64-linux",
            "host": "x86_64-linux",
        }
    ),
    ErrorId.SJ_LOAD_014: Example(
        {
            "path": "model.sj",
            "arch": "sm_90a",
            "reason": "device 0, an NVIDIA A100, has sm_80",
        }
    ),
    ErrorId.SJ_TARGET_001: Example(
        {
            "target": "mps",
            "missing": "there is no back end for that kind of device",
            "remedy": "Move model and inputs to the CPU",
        }
    ),
    ErrorId.SJ_TARGET_002: Example({"target": "tpu", "targets": '"auto", "cpu" or "cuda"'}),
    ErrorId.SJ_TARGET_003: Example({"target": "cpu", "device": "cuda:0"}),
    ErrorId.SJ_TARGET_004: Example(
        {"cpu": "zen99", "known": '"host", "x86-64", "x86-64-v2", "x86-64-v3" or "x86-64-v4"'}
    ),
    ErrorId.SJ_TARGET_005: Example(
        {"target": "cuda", "reason": "there is no ptxas of version 12.8 or newer"}
    ),
    ErrorId.SJ_TARGET_006: Example(
        {
            "target": "cuda",
            "archs": "sm_90a",
            "reason": "device 0, an NVIDIA A100, has sm_80",
        }
    ),
    ErrorId.SJ_TARGET_007: Example(
        {
            "count": "1 operator",
            "target": "cuda",
            "table": "  aten.convolution model.py:18: it is left as a conv (a convolution)",
        }
    ),
    ErrorId.SJ_TARGET_008: Example(
        {
            "target": "cuda",
            "reason": "a program has 2100 words that differ from call to call, sizes and addresses "
            "of its tensors; there can be 2048",
        }
    ),
    ErrorId.SJ_CUDA_001: Example(
        {
            "reason": "the CUDA driver libcuda.so.1 cannot be opened: libcuda.so.1: cannot open "
            "shared object file: No such file or directory"
        }
    ),
    ErrorId.SJ_CUDA_002: Example(
        {
            "reason": "cuLaunchKernelEx failed with CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal "
            "memory access was encountered (kernel gemm, 96 CTAs in clusters of 1, 384 threads and "
            "229376 bytes of shared memory each; s0 = 300)"
        }
    ),
    ErrorId.SJ_CUDA_003: Example(
        {"reason": "kernel gemm: parameter 2 takes 4 bytes in its function, not 8"}
    ),
    ErrorId.SJ_CUDA_004: Example(
        {"reason": "s0 = 4294967296 does not fit its 4 bytes (kernel gemm)"}
    ),
    ErrorId.SJ_INTERNAL_001: Example(
        {
            "stage": "shapejit-form-kernels",
            "reason": "'shapejit.loop' op result 0 has the wrong rank",
            "reproduction": "the files under /tmp/dump",
        },
        "model.py:18",
    ),
    ErrorId.SJ_INTERNAL_002: Example(
        {
            "kernel": "gemm_384_gelu",
            "reason": "LLVM ERROR: cannot select",
            "reproduction": "the files under /tmp/dump",
        },
        "model.py:18",
    ),
    ErrorId.SJ_INTERNAL_003: Example(
        {"op": "aten.view", "shape": "[s0, s1]", "expected": "[s0, 2*s1]"}, "model.py:18"
    ),
    ErrorId.SJ_INTERNAL_004: Example({"values": "batch = 3, seq = 7", "code": 2}),
}
