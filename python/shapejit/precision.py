# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""In which arithmetic products and convolutions of float32 are computed on a GPU.

``"ieee"`` multiplies float32 as it is. ``"tf32"`` lets the tensor cores round the factors to 11
bits, where that is faster; sums stay in float32. ``"auto"`` is what PyTorch is set to. It has a
setting for products: ``torch.set_float32_matmul_precision``,
``torch.backends.cuda.matmul.allow_tf32`` or ``torch.backends.cuda.matmul.fp32_precision``; and one
for convolutions: ``torch.backends.cudnn.conv.fp32_precision`` or
``torch.backends.cudnn.allow_tf32``, which allows tf32 unless it is changed. PyTorch itself resolves
settings that inherit ``torch.backends.cudnn.fp32_precision`` or ``torch.backends.fp32_precision``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from shapejit.options import CompileOptions


def resolved(precision: str) -> str:
    """A precision of products as ``"ieee"`` or ``"tf32"``, by PyTorch's setting of this moment."""
    if precision != "auto":
        return precision
    # The older settings change this one, but may not be read once it was set itself.
    return _known(torch.backends.cuda.matmul.fp32_precision)


def resolved_options(options: CompileOptions) -> CompileOptions:
    """Options that say of products and of convolutions ``"ieee"`` or ``"tf32"``."""
    convolutions = of_convolutions(options)
    if convolutions == "auto":
        convolutions = _known(torch.backends.cudnn.conv.fp32_precision)  # type: ignore[attr-defined]
    return options.override(
        float32_precision=resolved(options.float32_precision),
        float32_conv_precision=convolutions,
    )


def of_convolutions(options: CompileOptions) -> str:
    """The precision of convolutions that options ask for, which may be ``"auto"``."""
    asked = options.float32_conv_precision
    return options.float32_precision if asked == "auto" else asked


@contextmanager
def kept_settings() -> Iterator[None]:
    """Lets ``torch.export`` run under any of PyTorch's settings, and keeps them.

    It reads ``torch.backends.cudnn.allow_tf32``, which PyTorch refuses where convolutions and
    recurrent layers differ, as they do after only one of them was set or inherits; and it leaves
    ``torch.backends.cudnn.fp32_precision`` unset. It computes nothing, so that what it finds makes
    no difference.
    """
    cudnn = torch.backends.cudnn
    places = (cudnn, cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
    before = [each.fp32_precision for each in places]
    try:
        older = cudnn.allow_tf32
    except RuntimeError:
        older = True
    cudnn.allow_tf32 = True
    try:
        yield
    finally:
        cudnn.allow_tf32 = older
        for place, precision in zip(places, before, strict=True):
            if place.fp32_precision != precision:
                place.fp32_precision = "none"  # what it inherits
            if place.fp32_precision != precision:
                place.fp32_precision = precision


def _known(setting: str) -> str:
    """One of PyTorch's settings; what it does not set, and what is finer than tf32, is exact."""
    return "tf32" if setting == "tf32" else "ieee"
