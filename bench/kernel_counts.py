# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How many kernels a call of a model runs: ours for a GPU, with free and with fixed sizes, and what
Inductor makes of the same model.

No GPU is needed. Ours are the launches that `shapejit-form-kernels` gives for an H200, those too
that depend on weights alone and are run once: of fixed sizes these are more, as a table of
positions has no free length then. Inductor's are counted in the code that `torch.compile` generates
on this machine: the kernels that it makes itself, and the calls of libraries (products, attention);
for a GPU its grouping may differ.

python bench/kernel_counts.py --models llama bert --out bench/results/kernel-counts.json
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers_models import TRANSFORMERS, Transformer

_TARGET = "cuda:sm_90a:h200"
_EXAMPLE = (3, 17)
# Calls in the code that Inductor generates: of its own kernels, and of libraries.
_OWN_CALL = re.compile(r"\b(?:cpp|triton)_\w*fused\w*(?:\.run)?\(")
_LIBRARY_CALL = re.compile(
    r"extern_kernels\.\w+\(|torch\.ops\.(?:aten|mkl|mkldnn)\.\w+(?:\.\w+)?\("
)


def launches(model: nn.Module, args: tuple[Tensor, ...], dynamic_shapes: Any) -> dict[str, int]:
    """The launches of a call by the kind of kernel, as formed for a GPU.

    Args:
        model: in eval mode.
        args: an example call.
        dynamic_shapes: as for `shapejit.compile`; None for fixed sizes.
    """
    import mlir.ir as ir

    from shapejit import passes
    from shapejit.cpu_features import host_target
    from shapejit.describe import describe_kernels
    from shapejit.importer import import_model
    from shapejit.pipeline import gpu_stages, run_stage

    passes.register_all()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its export
        module = import_model(model, args, dynamic_shapes=dynamic_shapes).module
    with module.context:
        module.operation.attributes["shapejit.target"] = ir.StringAttr.get(_TARGET)
    for stage in gpu_stages(max_regions=16):
        if stage.name == "hoist-weights":
            continue  # what it takes out of calls would not be counted
        run_stage(module, stage, host_target("host"))
        if stage.name == "form-kernels":
            break
    found: dict[str, int] = {}
    for kernel in describe_kernels(module):
        found[kernel.kind] = found.get(kernel.kind, 0) + len(kernel.launches)
    return found


def inductor(model: nn.Module, args: tuple[Tensor, ...]) -> dict[str, int]:
    """The launches of its own kernels and calls of libraries in Inductor's code for free sizes."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    compiled = torch.compile(model, dynamic=True, fullgraph=True)
    with torch.no_grad():
        _, sources = run_and_get_code(compiled, *args)
    calls = "".join(map(_calls, sources))
    return {
        "generated": len(_OWN_CALL.findall(calls)),
        "library": len(_LIBRARY_CALL.findall(calls)),
    }


def _calls(source: str) -> str:
    """The part of generated code that runs."""
    return source[source.index("def call(") :] if "def call(" in source else source


def count(transformer: Transformer, *, beside: bool) -> dict[str, Any]:
    """The counts of one model.

    Args:
        transformer: the model.
        beside: count Inductor's, too.
    """
    model, args = transformer.model(), transformer.inputs(*_EXAMPLE)
    # In the type that GPUs run it in.
    model = model.to(torch.bfloat16)
    args = tuple(a.to(torch.bfloat16) if a.is_floating_point() else a for a in args)
    free = launches(model, args, transformer.dynamic_shapes())
    fixed = launches(model, args, None)
    record: dict[str, Any] = {
        "free": sum(free.values()),
        "fixed": sum(fixed.values()),
        "free_by_kind": free,
        "fixed_by_kind": fixed,
    }
    if beside:
        found = inductor(model, args)
        record["inductor"] = sum(found.values())
        record["inductor_by_kind"] = found
    return record


def main() -> None:
    """Counts and prints a table."""
    parser = argparse.ArgumentParser(description="Kernels a call, ours and Inductor's")
    parser.add_argument("--models", nargs="+", choices=TRANSFORMERS, default=list(TRANSFORMERS))
    parser.add_argument("--without-inductor", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for the counts, JSON")
    options = parser.parse_args()
    result: dict[str, Any] = {"torch": torch.__version__, "target": _TARGET, "models": {}}
    print(f"{'model':<18}{'free sizes':>12}{'fixed':>8}{'Inductor':>10}")
    for name in options.models:
        record = count(TRANSFORMERS[name], beside=not options.without_inductor)
        result["models"][name] = record
        shown = record.get("inductor", "")
        print(f"{name:<18}{record['free']:>12}{record['fixed']:>8}{shown:>10}", flush=True)
        if options.out is not None:  # after each, as Inductor takes its time
            options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
