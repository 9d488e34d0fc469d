# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""How a GPU kernel is called: a record that lies beside its machine code.

A lowering pass writes the record, the cache keeps it, and the launch runtime follows it. All sizes
are given as *values*: integer expressions of the kernel's symbols (``s0``, ``s0 * s1``, ``4096``),
which the host computes once a call; parameters and the grid refer to them by number. So one native
launch function serves every kernel.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor of a tiled tensor, 128 bytes, of an operand.

    Dims are listed from the fastest moving one on, as the driver takes them.

    Attributes:
        operand: number of the kernel's argument or, after them, result.
        element: ``bf16``, ``f16``, ``f32``, ...
        dims: value of the size of every dim.
        strides: value of the stride of every dim but the first, in elements.
        box: elements of a box in every dim.
        swizzle: bytes of the swizzle pattern: 0, 32, 64 or 128.
        promotion: bytes that a miss in the second-level cache fetches: 0, 64, 128 or 256.
        offset: bytes into the kernel's entry of the parameter block, in block form.
    """

    operand: int
    element: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    promotion: int = 256
    offset: int = 0

    def with_box(self, box: tuple[int, ...]) -> TensorMap:
        """The same tensor in boxes of other lengths."""
        return replace(self, box=box)


@dataclass(frozen=True)
class Im2colMap:
    """A TMA descriptor of an image, 128 bytes, through which pixels are read as rows of a matrix.

    A load takes some channels of `pixels` places that a window's first tap comes to, one after the
    other over rows and images, and moves them by a tap. Dims are the channels, one to three spatial
    dims from the fastest moving one on, the images.

    Attributes:
        operand: as for `TensorMap`.
        element, dims, strides, swizzle, promotion, offset: as for `TensorMap`.
        channels: of a load.
        pixels: of a load.
        lower: of every spatial dim, the first place of the window's first tap: minus the padding.
        upper: of every spatial dim, how far its last place is from the last pixel.
        steps: of every spatial dim, from place to place.
    """

    operand: int
    element: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    channels: int
    pixels: int
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int = 128
    promotion: int = 256
    offset: int = 0

    @property
    def box(self) -> tuple[int, int]:
        """What a load moves: channels and pixels."""
        return self.channels, self.pixels

    def with_box(self, box: tuple[int, ...]) -> Im2colMap:
        """The same image in loads of other lengths."""
        channels, pixels = box
        return replace(self, channels=channels, pixels=pixels)


@dataclass(frozen=True)
class Pointer:
    """The address of an operand, 8 bytes.

    What alignment the code takes for granted is said where the kernel is made: two elements for
    those that it reads in pairs.
    """

    operand: int
    offset: int = 0


@dataclass(frozen=True)
class Size:
    """A value, as an integer of 4 or 8 bytes.

    Attributes:
        value: number of the value.
        bytes: 4 or 8.
    """

    value: int
    bytes: int = 4
    offset: int = 0


@dataclass(frozen=True)
class Workspace:
    """The address of scratch memory that is zero before the first launch, 8 bytes.

    The kernel leaves what it used of the first `zeroed` bytes at zero, so that launches which run
    one by one can share it; with programmatic launches it touches it only after its wait.

    Attributes:
        bytes_per_cta: its size beside the zeroed bytes, for every CTA that the grid may have.
        zeroed: bytes at its start that must be zero; a multiple of 16, at most 65536.
        least_ctas: CTAs that there is memory for even if the grid has fewer, since sizes ask for
            it; a device may run fewer than the one that a kernel was made for.
    """

    bytes_per_cta: int
    zeroed: int
    offset: int = 0
    least_ctas: int = 0


Parameter: TypeAlias = TensorMap | Im2colMap | Pointer | Size | Workspace

_KINDS: dict[str, type[Parameter]] = {
    "tensor_map": TensorMap,
    "im2col_map": Im2colMap,
    "pointer": Pointer,
    "size": Size,
    "workspace": Workspace,
}


@dataclass(frozen=True)
class Grid:
    """How many CTAs a launch has.

    ``units = product of ceil(value / tile)`` over `tiles`; a unit is one cluster's tile. At most
    ``ctas_per_sm * multiprocessors / cluster`` units run when the grid is persistent.

    Attributes:
        tiles: pairs of a value's number and the length of a tile.
        ctas_per_sm: of a persistent grid; 0 for a grid of all units.
    """

    tiles: tuple[tuple[int, int], ...]
    ctas_per_sm: int


@dataclass(frozen=True)
class KernelInterface:
    """The call of a kernel.

    Attributes:
        entry: name of the function in the machine code.
        threads: of a CTA.
        shared_bytes: dynamic shared memory of a CTA.
        cluster: CTAs of a cluster, in x.
        grid: how many CTAs.
        values: expressions of the kernel's symbols.
        parameters: in the order of the function's parameters.
        block: whether the function takes the address of its entry in a parameter block, in which
            `parameters` lie at their offsets, instead of the parameters themselves.
        block_bytes: size of that entry.
        programmatic: whether it may start before the kernel ahead of it in the stream ends
            (programmatic dependent launch); it waits where it must.
    """

    entry: str
    threads: int
    shared_bytes: int
    cluster: int
    grid: Grid
    values: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    block: bool = False
    block_bytes: int = 0
    programmatic: bool = False

    def to_json(self) -> str:
        """One line of JSON."""
        record = asdict(self)
        record["parameters"] = [
            {"kind": _kind_of(parameter), **asdict(parameter)} for parameter in self.parameters
        ]
        return json.dumps(record, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> KernelInterface:
        """The inverse of `to_json`.

        Raises:
            ValueError: the text is no such record.
        """
        return KernelInterface.from_record(json.loads(text))

    @staticmethod
    def from_record(record: Any) -> KernelInterface:
        """The same of what that JSON says.

        Raises:
            ValueError: it is no such record.
        """
        try:
            fields = dict(record)
            grid = fields.pop("grid")
            parameters = tuple(map(_parameter, fields.pop("parameters")))
            tiles = tuple((int(value), int(tile)) for value, tile in grid["tiles"])
            return KernelInterface(
                **{**fields, "values": tuple(fields["values"])},
                grid=Grid(tiles, int(grid["ctas_per_sm"])),
                parameters=parameters,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not the record of a kernel's interface: {error}") from error


def _kind_of(parameter: Parameter) -> str:
    return next(kind for kind, made in _KINDS.items() if isinstance(parameter, made))


def _parameter(record: dict[str, Any]) -> Parameter:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }
    kind: type[Any] = _KINDS[fields.pop("kind")]
    made: Parameter = kind(**fields)
    return made
