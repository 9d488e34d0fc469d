# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Schedules of gemm kernels: how a product is cut into tiles and who computes them.

A schedule says nothing about sizes: the kernel made from it takes any M, N and K. Which schedule
serves which sizes is what `shapejit-choose-buckets` decides; its decision names schedules by their
text, from which `shapejit-lower-gemm-to-nvgpu` makes the kernel::

    persistent_128x256x64_s4_w2           persistent grid; the rows of a tile are rows of the result
    persistent_128x256x64_s4_w2_stream    the same; tiles of the last wave are shared along K
    persistent_128x128x64_s6_w2_turns     each of two consumers has a tile of its own
    swapped_256x112x64_s4_w2_stream       the rows of a tile are columns of the result
    swapped_128x144x64_s6_w2_k3           the same; up to 3 CTAs share a tile's K in scratch memory
    small_m_128x64x64_s7_w2_k2            one tile a cluster of 2, which share K
    small_m_64x64x64_s12_w1_r2            one tile a CTA; pairs of CTAs share rows by multicast
    small_m_128x64x64_s7_w2_once          for weights with so many columns that all of the GPU reads
    unaligned_128x128x64_s3_w2              no tensor maps: any strides and base addresses
    persistent_128x256x32_s4_w2_tf32        float32 on the tensor cores, factors rounded to tf32
    persistent_128x128x32_s5_w2_tf32x3      float32 as exactly, factors in two parts of tf32
    simt_128x64x32_s3_w1                    float32 on the CUDA cores; any strides and addresses
    simt_32x32x32_s6_w1_k2_p4               the same; 2 CTAs share K, and 4 parts of each a stage
    halo_128x112x64_s6_w2                   convolutions: 8 x 14 pixels, which all taps share
    halo_64x112x64_s9_w2_resident           the same; the filters stay in shared memory
    patch_64x128x16_s2_w1                   convolutions over few channels, such as of a picture
    small_m_128x80x64_s6_w2_k2_early        starts before the kernel ahead of it ends; waits itself
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shapejit.passes.buckets.problem import GemmTraits

STREAMING_TILES = 80
"""With so many tiles of weights all of the GPU is busy reading them; measured between 64 and 86."""

_HALF_BYTES, _FLOAT_BYTES = 2, 4

FAMILIES = ("persistent", "swapped", "small_m", "unaligned", "simt", "halo", "patch")

_NAME = re.compile(
    r"(?P<family>[a-z_]+)_(?P<rows>\d+)x(?P<columns>\d+)x(?P<depth>\d+)_s(?P<stages>\d+)"
    r"_w(?P<consumers>\d+)(?:_c(?P<columns_shared>\d+))?(?:_r(?P<rows_shared>\d+))?"
    r"(?:_k(?P<split>\d+))?(?:_p(?P<parts>\d+))?"
    r"(?P<stream>_stream)?(?P<turns>_turns)?(?P<once>_once)?(?P<resident>_resident)?"
    r"(?P<tf32>_tf32)?(?P<tf32x3>_tf32x3)?(?P<early>_early)?"
)


@dataclass(frozen=True, order=True)
class GemmSchedule:
    """How one gemm kernel works.

    Attributes:
        family: one of `FAMILIES`.
        rows: rows of a tile along the m side of wgmma, a multiple of 64. They are rows of the
            result for ``persistent``, ``unaligned`` and ``simt``, columns of it for the others.
        columns: columns of a tile along the n side of wgmma, a multiple of 8.
        depth: elements of K in a stage of the ring.
        stages: stages of the ring.
        consumers: warpgroups that multiply; each has ``rows / consumers`` rows of the tile.
        columns_shared: CTAs of a cluster that multicast the columns operand to each other and have
            neighbouring tiles along the rows.
        rows_shared: the same with rows and columns exchanged.
        split: CTAs that share K: of a cluster for ``small_m`` and ``simt``; for ``persistent`` and
            ``swapped`` any ones, as many as there are for the tiles, and so many at most.
        parts: groups of warps of a CTA that share each stage along K, for ``simt``.
        stream: the tiles of the last, partly filled wave are shared by all CTAs along K.
        turns: the two consumers have tiles of their own, and multiply in turn: the epilogue of one
            runs beside the products of the other. Each has all rows of its tile.
        once: all of the GPU is busy reading weights, of which there are `STREAMING_TILES` tiles or
            more; for ``small_m`` where the number of columns is not known.
        resident: all filters, of `stages` taps and blocks of channels at most, stay in shared
            memory, and each consumer has tiles of its own; for ``halo``.
        tf32: factors are float32, which the tensor cores round to tf32 (11 bits).
        tf32x3: factors are float32, each of which is the sum of two of tf32, so that a product is
            three, see `two_parts`.
        early: the kernel starts before the one ahead of it in the stream ends, and waits itself
            where it must (programmatic dependent launch).
    """

    family: str
    rows: int
    columns: int
    depth: int
    stages: int
    consumers: int
    columns_shared: int = 1
    rows_shared: int = 1
    split: int = 1
    parts: int = 1
    stream: bool = False
    turns: bool = False
    once: bool = False
    resident: bool = False
    tf32: bool = False
    tf32x3: bool = False
    early: bool = False

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.columns_shared * self.rows_shared * self.cluster_split

    @property
    def cluster_split(self) -> int:
        """CTAs of a cluster that share K."""
        return 1 if self.family in ("persistent", "swapped") else self.split

    @property
    def swapped(self) -> bool:
        """Whether the rows of a tile are columns of the result."""
        return self.family in ("swapped", "small_m", "halo", "patch")

    @property
    def element_bytes(self) -> int:
        """Bytes of a factor, of kernels for the tensor cores."""
        return _FLOAT_BYTES if self.of_floats else _HALF_BYTES

    @property
    def of_floats(self) -> bool:
        """Whether factors are float32, of kernels for the tensor cores."""
        return self.tf32 or self.tf32x3

    @property
    def takes_any_address(self) -> bool:
        """Whether operands may have any strides and addresses."""
        return self.family in ("unaligned", "simt")

    @property
    def tile_m(self) -> int:
        """Rows of the result that a CTA's tile covers."""
        return self.columns if self.swapped else self.rows

    @property
    def tile_n(self) -> int:
        """Columns of the result that a CTA's tile covers."""
        return self.rows if self.swapped else self.columns

    def __str__(self) -> str:
        text = f"{self.family}_{self.rows}x{self.columns}x{self.depth}"
        text += f"_s{self.stages}_w{self.consumers}"
        for letter, value in (
            ("c", self.columns_shared),
            ("r", self.rows_shared),
            ("k", self.split),
            ("p", self.parts),
        ):
            text += f"_{letter}{value}" if value != 1 else ""
        for word in ("stream", "turns", "once", "resident", "tf32", "tf32x3", "early"):
            text += f"_{word}" if getattr(self, word) else ""
        return text

    @staticmethod
    def parse(text: str) -> GemmSchedule:
        """The schedule that a text names.

        Raises:
            ValueError: it names none.
        """
        match = _NAME.fullmatch(text)
        if match is None or match["family"] not in FAMILIES:
            raise ValueError(
                f"{text!r} names no gemm schedule; one is {FAMILIES[0]}_128x256x64_s4_w2, the "
                f"families are {', '.join(FAMILIES)}"
            )

        def number(name: str) -> int:
            return int(match[name] or 1)

        return GemmSchedule(
            family=match["family"],
            rows=number("rows"),
            columns=number("columns"),
            depth=number("depth"),
            stages=number("stages"),
            consumers=number("consumers"),
            columns_shared=number("columns_shared"),
            rows_shared=number("rows_shared"),
            split=number("split"),
            parts=number("parts"),
            stream=match["stream"] is not None,
            turns=match["turns"] is not None,
            once=match["once"] is not None,
            resident=match["resident"] is not None,
            tf32=match["tf32"] is not None,
            tf32x3=match["tf32x3"] is not None,
            early=match["early"] is not None,
        )


def _all(*names: str) -> tuple[GemmSchedule, ...]:
    return tuple(map(GemmSchedule.parse, names))


#: What `shapejit-choose-buckets` chooses from when operands suit tensor maps.
CANDIDATES = _all(
    "persistent_64x112x64_s10_w1",
    "persistent_64x192x64_s6_w1_k2",
    "persistent_64x256x64_s4_w2_turns",
    "persistent_128x128x64_s6_w2_turns",
    "persistent_128x192x64_s4_w2",
    "persistent_128x256x64_s4_w2",
    "swapped_128x80x64_s8_w2_k3",
    "swapped_128x120x64_s6_w2",
    "swapped_128x128x64_s6_w2",
    "swapped_128x144x64_s6_w2_turns",
    "swapped_128x160x64_s5_w2_turns",
    "swapped_128x176x64_s5_w2_turns",
    "swapped_256x104x64_s4_w2",
    "swapped_256x104x64_s4_w2_k2",
    "swapped_256x112x64_s4_w2",
    "swapped_256x128x64_s4_w2",
    "swapped_256x144x64_s4_w2",
    "swapped_256x152x64_s4_w2",
    "swapped_256x184x64_s3_w2",
    "small_m_64x8x64_s16_w1",
    "small_m_64x8x64_s16_w1_k4",
    "small_m_64x16x64_s16_w1",
    "small_m_64x16x64_s16_w1_k2",
    "small_m_64x16x64_s9_w1",
    "small_m_64x16x64_s9_w1_k2",
    "small_m_64x16x64_s9_w1_k4",
    "small_m_64x32x64_s16_w1_r2",
    "small_m_64x32x64_s7_w1_k2",
    "small_m_64x32x64_s7_w1_k4",
    "small_m_64x40x64_s15_w1_r2",
    "small_m_64x64x64_s12_w1_r2",
    "small_m_64x72x64_s12_w1_r2",
    "small_m_64x72x64_s12_w1_k2",
    "small_m_64x96x64_s10_w1_k3",
    "small_m_64x104x64_s9_w1_k3",
    "small_m_64x144x64_s7_w1_k2",
    "small_m_64x168x64_s7_w1_r2",
    "small_m_128x16x64_s11_w2",
    "small_m_128x56x64_s9_w2",
    "small_m_128x64x64_s7_w2",
    "small_m_128x72x64_s7_w2_k3",
    "small_m_128x80x64_s6_w2",
    "small_m_128x80x64_s6_w2_k2",
    "small_m_128x96x64_s7_w2",
    "small_m_128x96x64_s6_w2_k2",
    "small_m_128x176x64_s5_w2",
    "swapped_128x128x64_s4_w2",
    "small_m_64x64x64_s8_w1",
)

#: What it chooses from, too, for pairs of weights. Their tiles lie side by side, like one of a
#: weight that is as wide as both: these are the twins of the best tiles of one weight, with as many
#: sums and bytes of stages.
PAIR_CANDIDATES = _all(
    "persistent_64x128x64_s4_w2_turns",
    "persistent_128x64x64_s6_w2_turns",
    "persistent_128x128x64_s4_w2",
    "swapped_64x144x64_s6_w2_turns",
    "swapped_64x160x64_s5_w2_turns",
    "swapped_64x176x64_s5_w2_turns",
    "swapped_128x64x64_s5_w2",
    "swapped_128x104x64_s4_w2",
    "swapped_128x112x64_s4_w2",
    "swapped_128x144x64_s4_w2",
    "swapped_128x152x64_s4_w2",
    "swapped_128x184x64_s3_w2",
    "small_m_64x8x64_s12_w1",
    "small_m_64x32x64_s10_w1",
    "small_m_64x48x64_s9_w1",
    "small_m_64x96x64_s7_w1",
)

# Those for pairs alone, which need fewer stages than shared memory has room for with one weight.
_FOR_PAIRS = frozenset(
    (*_all("swapped_128x128x64_s4_w2", "small_m_64x64x64_s8_w1"), *PAIR_CANDIDATES)
)

#: The only one when some stride or base address is no multiple of 16 bytes.
UNALIGNED = GemmSchedule.parse("unaligned_128x128x64_s3_w2")

#: What it chooses from for products of float32 in IEEE arithmetic, of any strides and addresses.
SIMT_CANDIDATES = _all(
    "simt_128x128x32_s3_w2",
    "simt_128x64x32_s3_w1",
    "simt_128x64x32_s3_w1_k2",
    "simt_64x64x32_s4_w1",
    "simt_64x64x32_s4_w1_k2",
    "simt_64x64x32_s4_w1_k4",
    "simt_32x64x32_s6_w1_p2",
    "simt_32x64x32_s6_w1_k4_p2",
    "simt_32x32x32_s6_w1_p4",
    "simt_32x32x32_s6_w1_k4_p4",
    "simt_16x64x32_s6_w1_p4",
    "simt_16x64x32_s6_w1_k4_p4",
    "simt_8x64x32_s6_w1_p4",
    "simt_8x64x32_s6_w1_k4_p4",
)

#: What it chooses from, too, for convolutions whose taps share pixels.
HALO_CANDIDATES = _all(
    "halo_64x56x64_s12_w1",
    "halo_64x112x64_s9_w1",
    "halo_64x112x64_s9_w2_resident",
    "halo_64x128x64_s9_w2_resident",
    "halo_128x112x64_s6_w2",
    "halo_128x128x64_s6_w2",
    "halo_128x224x64_s5_w2",
    "halo_256x128x64_s4_w2",
    # For channels that leave half of a block of 64 empty.
    "halo_64x112x32_s12_w1",
    "halo_64x128x32_s9_w2_resident",
    "halo_64x224x32_s9_w2_resident",
)

#: The same for those whose factors may be rounded to tf32: stages have as many bytes.
TF32_CANDIDATES, TF32_PAIR_CANDIDATES, TF32_HALO_CANDIDATES = (
    tuple(replace(each, depth=each.depth // 2, tf32=True) for each in schedules)
    for schedules in (CANDIDATES, PAIR_CANDIDATES, HALO_CANDIDATES)
)

#: What it chooses from, too, for products of float32 in IEEE arithmetic whose operands suit tensor
#: maps, and for all such convolutions.
TF32X3_CANDIDATES = _all(
    "persistent_64x64x32_s6_w1_tf32x3",
    "persistent_128x64x32_s6_w2_tf32x3",
    "persistent_128x96x32_s5_w2_tf32x3",
    "persistent_128x128x32_s5_w2_tf32x3",
    "swapped_128x64x32_s6_w2_tf32x3",
    "swapped_128x64x32_s6_w2_k3_tf32x3",
    "swapped_128x96x32_s6_w2_tf32x3",
    "swapped_128x112x32_s5_w2_tf32x3",
    "swapped_128x128x32_s5_w2_tf32x3",
    "small_m_64x8x32_s10_w1_tf32x3",
    "small_m_64x8x32_s10_w1_k4_tf32x3",
    "small_m_64x16x32_s9_w1_tf32x3",
    "small_m_64x16x32_s9_w1_k4_tf32x3",
    "small_m_64x32x32_s7_w1_tf32x3",
    "small_m_64x32x32_s7_w1_k2_tf32x3",
    "small_m_64x32x32_s7_w1_k4_tf32x3",
    "small_m_64x64x32_s4_w1_tf32x3",
    "small_m_64x64x32_s4_w1_k2_tf32x3",
    "small_m_64x64x32_s4_w1_k4_tf32x3",
    "small_m_64x96x32_s3_w1_tf32x3",
    "small_m_64x96x32_s3_w1_k2_tf32x3",
    "small_m_128x64x32_s5_w2_k2_tf32x3",
    "small_m_128x96x32_s5_w2_tf32x3",
    "small_m_128x96x32_s5_w2_k2_tf32x3",
)

#: All of these.
ALL_CANDIDATES = (
    *CANDIDATES,
    *PAIR_CANDIDATES,
    *HALO_CANDIDATES,
    *SIMT_CANDIDATES,
    *TF32_CANDIDATES,
    *TF32_PAIR_CANDIDATES,
    *TF32_HALO_CANDIDATES,
    *TF32X3_CANDIDATES,
)

#: A kernel of float32 that serves all sizes until a better one is built.
SIMT_GENERIC = GemmSchedule.parse("simt_64x64x32_s4_w1")

#: A kernel that serves all sizes and layouts until a better one is built.
GENERIC = GemmSchedule.parse("swapped_128x128x64_s4_w2")


def candidates_for(
    traits: GemmTraits,
    candidates: Iterable[GemmSchedule],
    *,
    maps: bool = False,
    rounds: bool = False,
) -> tuple[GemmSchedule, ...]:
    """The candidates that can multiply factors of a type.

    Args:
        traits: of the products.
        candidates: for any type; those for operands without tensor maps are left out.
        maps: whether tensor maps read factors of float32; those of 16 bits they do.
        rounds: whether factors of float32 may be rounded to tf32.
    """
    candidates = (s for s in candidates if traits.halo is not None or s.family != "halo")
    if traits.conv:  # those that share K without a cluster have been measured on products alone
        candidates = (s for s in candidates if s.split == s.cluster_split)
    if traits.element_bytes != _FLOAT_BYTES:
        return tuple(s for s in candidates if not (s.takes_any_address or s.of_floats))
    # The tensor cores take tf32 with neighbours along K only.
    maps = maps and traits.lhs_k_major and traits.rhs_k_major
    return tuple(
        s for s in candidates if s.family == "simt" or (maps and (s.tf32 if rounds else s.tf32x3))
    )


def _of_halves(schedule: GemmSchedule) -> GemmSchedule:
    """The schedule for 16 bits that one for tf32 is like; others as they are, but not early."""
    depth = 2 * schedule.depth if schedule.tf32 else schedule.depth
    return replace(schedule, depth=depth, tf32=False, early=False)


def worth_trying(candidates: Iterable[GemmSchedule], weights: int) -> tuple[GemmSchedule, ...]:
    """The candidates for a product with so many weights: those for pairs only for pairs, or if
    there are no others."""
    given = tuple(candidates)
    if weights > 1:
        return given
    return tuple(each for each in given if _of_halves(each) not in _FOR_PAIRS) or given
