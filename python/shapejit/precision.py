# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""In which arithmetic products and convolutions of float32 are computed on a GPU.

``"ieee"`` multiplies float32 as exactly as it is (docs/gpu.md says how). ``"tf32"`` lets the tensor
cores round the factors to 11 bits, where that is faster; sums stay in float32. ``"auto"`` is what
PyTorch is set to. It has a setting for products: ``torch.set_float32_matmul_precision``,
``torch.backends.cuda.matmul.allow_tf32`` or ``torch.backends.cuda.matmul.fp32_precision``; and one
for convolutions: ``torch.backends.cudnn.conv.fp32_precision`` or
``torch.backends.cudnn.allow_tf32``, which allows tf32 unless it is changed. PyTorch itself resolves
settings that inherit ``torch.backends.cudnn.fp32_precision`` or ``torch.backends.fp32_precision``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from shapejit.options import CompileOptions

_export_lock = threading.RLock()


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
    """Lets torch capture and decompose models under any of PyTorch's settings, and keeps them. One
    thread at a time: what one finds and restores must not be what another one changed.

    For that time torch turns cuDNN off, for the whole process; to that end it reads
    ``torch.backends.cudnn.allow_tf32``, and afterwards it writes that and
    ``torch.backends.cudnn.fp32_precision``, so that what was set for convolutions or inherited is
    lost. Where convolutions, recurrent layers and the older setting differ, torch cannot read it:
    then all of them are exact meanwhile. Nothing here makes the arithmetic of other threads less
    exact than they set it, but for an instant at the end, in which the older setting is written.
    """
    cudnn: Any = torch.backends.cudnn
    places = (cudnn, cudnn.conv, cudnn.rnn)
    with _export_lock:
        before = [each.fp32_precision for each in places]
        older = _older_setting()
        try:
            yield
        finally:
            if _allows_tf32() != older:
                cudnn.allow_tf32 = older
            for place, precision in zip(places, before, strict=True):
                if place.fp32_precision != precision:
                    place.fp32_precision = "none"  # what it inherits
                if place.fp32_precision != precision:
                    place.fp32_precision = precision


def _older_setting() -> bool:
    """``torch.backends.cudnn.allow_tf32``, made readable: by exact arithmetic if it is not."""
    cudnn: Any = torch.backends.cudnn
    if (found := _allows_tf32()) is not None:
        return found
    for place in (cudnn.conv, cudnn.rnn):
        place.fp32_precision = "ieee"
    if (found := _allows_tf32()) is not None:
        return found
    # It is True then, unlike what it stands for.
    cudnn.allow_tf32 = False
    for place in (cudnn.conv, cudnn.rnn):
        place.fp32_precision = "ieee"  # whatever they inherit
    return True


def _allows_tf32() -> bool | None:
    """``torch.backends.cudnn.allow_tf32``; None if it cannot be read."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _known(setting: str) -> str:
    """One of PyTorch's settings; what it does not set, and what is finer than tf32, is exact."""
    return "tf32" if setting == "tf32" else "ieee"
