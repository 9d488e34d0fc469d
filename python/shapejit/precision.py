# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""In which arithmetic products of float32 are computed on a GPU.

``"ieee"`` multiplies float32 as it is. ``"tf32"`` lets the tensor cores round the factors to 11
bits, where that is faster; sums stay in float32. ``"auto"`` is what PyTorch is set to:
``torch.set_float32_matmul_precision``, ``torch.backends.cuda.matmul.allow_tf32`` or
``torch.backends.cuda.matmul.fp32_precision``.
"""

from __future__ import annotations

import torch


def resolved(precision: str) -> str:
    """A precision as ``"ieee"`` or ``"tf32"``, by PyTorch's setting of this moment."""
    if precision != "auto":
        return precision
    # The other two settings change this one, but may not be read once it was set itself.
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"
