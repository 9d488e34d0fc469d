# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What the passes that lower kernels to GPUs share: options, and a module for each variant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shapejit import ir as sir
from shapejit.pass_host import Pass, PassFailure, option
from shapejit.passes.host.dispatches import dispatches
from shapejit.passes.nvgpu.errors import LoweringError
from shapejit.passes.nvgpu.target import Architecture, architecture_of

_FORMS = ("by-value", "block")

VariantT = TypeVar("VariantT")


@dataclass(frozen=True)
class LowerVariants(Pass, Generic[VariantT]):
    """Base of passes that turn every variant of a family's kernels into a module of GPU code.

    The variants are those that dispatches name, or the one of the option ``schedule``. Kernels of
    other families, or with neither, are left alone.
    """

    schedule: str = option("", help="the one variant of every kernel")
    parameters: str = option("by-value", help="by-value, or block: read from a parameter block")
    programmatic: bool = option(False, help="let kernels start before the one ahead of them ends")
    constant_weights: bool = option(
        False, help="let programmatic kernels load weights before the one ahead of them ends"
    )

    def run(self, module: Any) -> None:
        if self.parameters not in _FORMS:
            raise PassFailure(
                module, f"parameters must be one of {', '.join(_FORMS)}, got {self.parameters!r}"
            )
        kernels = {name: op for name, op in sir.kernels(module).items() if self.serves(op)}
        if not kernels:
            return
        try:
            variants = self._variants(module, kernels)
        except ValueError as error:
            raise PassFailure(module, str(error)) from error
        try:
            architecture = architecture_of(module)
        except LoweringError as error:
            raise PassFailure(module, f"this module {error}") from error
        for name, kernel in kernels.items():
            for variant in reversed(variants.get(name, ())):  # each goes right after the kernel
                try:
                    self.lower(kernel, variant, architecture)
                except LoweringError as error:
                    raise PassFailure(kernel, self.rejection(variant, error)) from error

    @property
    def block(self) -> bool:
        """Whether kernels read their parameters from a block."""
        return self.parameters == "block"

    # What a family says ---------------------------------------------------------------------------

    def serves(self, kernel: Any) -> bool:
        """Whether a ``shapejit.kernel`` is one of the family's."""
        raise AssertionError("a family defines serves()")

    def parse(self, name: str) -> VariantT:
        """The variant of that name.

        Raises:
            ValueError: there is none.
        """
        raise AssertionError("a family defines parse()")

    def lower(self, kernel: Any, variant: VariantT, architecture: Architecture) -> None:
        """Puts the module of a variant behind its kernel.

        Raises:
            LoweringError: the kernel or variant does not suit; continues "this kernel ...".
        """
        raise AssertionError("a family defines lower()")

    def rejection(self, variant: VariantT, error: LoweringError) -> str:
        """What is reported of a kernel that cannot be lowered."""
        return f"as {variant}, this kernel {error}"

    def _variants(self, module: Any, kernels: Collection[str]) -> dict[str, Sequence[VariantT]]:
        """The distinct variants of these kernels."""
        if self.schedule:
            return dict.fromkeys(kernels, (self.parse(self.schedule),))
        return {
            name: [self.parse(variant) for variant in dispatch.variants]
            for name, dispatch in dispatches(module).items()
            if name in kernels
        }
