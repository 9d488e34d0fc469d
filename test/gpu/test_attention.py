# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Attention kernels on a GPU: every kind at every kind of size, in both forms, repeatable."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("mlir")

from gpu.attention_kernels import check, loaded  # noqa: E402
from shapejit.gpu.device import Device  # noqa: E402
from shapejit.passes.nvgpu.attention.flash_choice import MASKED_TIERS, TIERS  # noqa: E402
from unit.simulated_attention import Attention  # noqa: E402

SCHEDULES = [
    "tiles_64x32_c4",
    "tiles_64x64_c2",
    "tiles_64x128_c1",
    "tiles_128x64_c1",
    "tiles_192x32_c1",
    "tiles_256x32_c1",
    "tiles_64x64_g2_c1",
    "tiles_64x32_g4_c1",
    "tiles_128x32_g2_c1",
]
FLASH_SCHEDULES = [
    (size, str(each))
    for tables in (TIERS, MASKED_TIERS)
    for size, tiers in tables.items()
    for each in tiers
    if tables is TIERS or each not in TIERS[size]
]
VARIANTS = {
    "padding mask": Attention(3, mask="i1"),
    "heads of one tensor": Attention(12, layout="packed", mask="i1"),
    "causal": Attention(2, d=64, causal="0"),
    "causal and mask": Attention(2, mask="i1", causal="s2 - s1"),
    "first queries see nothing": Attention(2, causal="-3"),
    "heads of 128, grouped": Attention(8, 2, d=128, causal="s2 - s1"),
    "heads first": Attention(4, d=64, layout="bhm"),
    "keys transposed": Attention(2, layout="bhdm"),
    "full bool mask": Attention(2, mask="i1", mask_shape="s0, 2, s1, s2"),
    "float mask": Attention(2, d=64, mask="f32", mask_shape="1, 1, s1, s2"),
    "float mask of keys": Attention(2, mask="bf16"),
    "f16": Attention(2, element="f16", mask="i1"),
    "odd heads": Attention(3, d=20, dv=40),
    "rows that start anywhere": Attention(3, d=7, dv=5, mask="i1"),
    "heads of 80": Attention(2, d=80),
    "negative scale": Attention(2, scale=-0.3),
}
SIZES = [
    (1, 1, 1), (0, 3, 4), (2, 0, 3), (2, 3, 0), (3, 64, 64), (2, 65, 129), (1, 300, 333),
    (5, 17, 31), (32, 128, 256), (2, 1000, 777), (1, 4097, 2050),
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(device: Device, schedule: str) -> None:
    wrong = []
    attention = VARIANTS["padding mask"]
    for block in (False, True):
        kernel = loaded(device, attention, schedule, block)
        assert not kernel.kernel.local_bytes, "spills"
        wrong += [check(kernel, attention, sizes) for sizes in SIZES]
    assert not list(filter(None, wrong))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("schedule", ["tiles_64x64_c2", "tiles_128x64_c1", "tiles_64x64_g2_c1"])
def test_variants(device: Device, name: str, schedule: str) -> None:
    attention = VARIANTS[name]
    kernel = loaded(device, attention, schedule, False)
    generator = random.Random(f"{name} {schedule}")
    sizes = [*SIZES[:9]]
    for _ in range(8):
        lengths = [generator.choice([64, 128, 512]), generator.choice([64, 256, 1024])]
        sizes.append((generator.randint(1, 4), *(generator.randint(1, each) for each in lengths)))
    wrong = [check(kernel, attention, each) for each in sizes]
    assert not list(filter(None, wrong))


def test_misaligned_operands(device: Device) -> None:
    """Operands of which one starts at an odd element."""
    attention, sizes = VARIANTS["padding mask"], (2, 70, 90)
    kernel = loaded(device, attention, "tiles_64x64_c2", False)
    torch.manual_seed(0)
    inputs = [each.cuda() for each in attention.inputs(*sizes)]
    expected = kernel(inputs, *sizes)
    for number in range(3):
        moved = list(inputs)
        room = torch.empty(inputs[number].numel() + 1, dtype=inputs[number].dtype, device="cuda")
        moved[number] = room[1:].view(inputs[number].shape).copy_(inputs[number])
        assert torch.equal(kernel(moved, *sizes), expected)


def test_captured(device: Device) -> None:
    tensors = [torch.randn(2, 100, 128, device="cuda").bfloat16() for _ in range(3)]
    kernel = loaded(device, Attention(2, d=64), "tiles_64x64_c2", False)
    kernel.check_chain(*tensors, lengths=(2, 100, 100))


# Flash kernels ------------------------------------------------------------------------------------

_LONG = [*SIZES, (3, 129, 64), (1, 7, 8192), (1, 2047, 2049), (2, 4096, 4096)]


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("causal", [None, "s2 - s1"])
@pytest.mark.parametrize(("size", "schedule"), FLASH_SCHEDULES)
def test_flash_schedules(
    device: Device, size: int, schedule: str, causal: str | None, block: bool
) -> None:
    attention = Attention(heads=3, d=size, causal=causal)  # few, so that the reference is quick
    kernel = loaded(device, attention, schedule, block)
    assert not kernel.kernel.local_bytes, "spills"
    wrong = [check(kernel, attention, sizes) for sizes in _LONG]
    assert not list(filter(None, wrong))


FLASH_VARIANTS = {
    "heads of one tensor": Attention(12, d=64, layout="packed", mask="i1"),
    "first queries see nothing": Attention(2, d=64, causal="-300"),
    "queries behind the keys": Attention(2, d=64, causal="5"),
    "grouped": Attention(8, 2, d=64, causal="s2 - s1"),
    "one head of keys": Attention(4, 1, d=64, layout="bhm"),
    "full bool mask": Attention(2, d=64, mask="i1", mask_shape="s0, 2, s1, s2"),
    "float mask": Attention(2, d=64, mask="f32", mask_shape="1, 1, s1, s2"),
    "float mask of keys": Attention(2, d=64, mask="bf16"),
    "causal and mask": Attention(2, d=64, mask="i1", causal="s2 - s1"),
    "f16": Attention(2, d=64, element="f16"),
    "heads of 40": Attention(2, d=40, dv=56),
    "negative scale": Attention(2, d=64, scale=-0.3),
}


@pytest.mark.parametrize("name", FLASH_VARIANTS)
@pytest.mark.parametrize("schedule", ["flash_64x64_s10_c2", "flash_128x128_s8_c1"])
def test_flash_variants(device: Device, name: str, schedule: str) -> None:
    attention = FLASH_VARIANTS[name]
    kernel = loaded(device, attention, schedule, True)
    generator = random.Random(f"{name} {schedule}")
    sizes = [(1, 1, 1), (1, 64, 64), (2, 65, 129), (1, 300, 333), (4, 1000, 777)]
    sizes += [tuple(generator.randint(1, each) for each in (4, 1500, 1500)) for _ in range(6)]
    wrong = [check(kernel, attention, each) for each in sizes]
    assert not list(filter(None, wrong))


_ALONE = """
import sys

import torch

sys.path.insert(0, sys.argv[1])
from shapejit.gpu.driver import driver
from gpu.attention_kernels import Loaded, check
from unit.simulated_attention import Attention

size, schedule, form = sys.argv[2:]
attention = Attention(heads=3, d=int(size), causal="s2 - s1")
torch.cuda.init()
kernel = Loaded(driver().device(0), attention, schedule, form == "block")
print(check(kernel, attention, (2, 333, 500)) or "right")
"""


@pytest.mark.parametrize("form", ["by-value", "block"])
@pytest.mark.parametrize(("size", "schedule"), FLASH_SCHEDULES)
def test_flash_first_of_a_process(device: Device, size: int, schedule: str, form: str) -> None:
    """In a process that launched nothing of ours before; one that hangs is ended."""
    folder = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", _ALONE, folder, str(size), schedule, form]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.strip().endswith("right"), done.stdout[-2000:]


def test_flash_results_do_not_vary(device: Device) -> None:
    """Bitwise, over many calls of a size with more tiles than multiprocessors."""
    attention = Attention(16, d=128, causal="0")
    kernel = loaded(device, attention, "flash_128x128_s5_c1", False)
    torch.manual_seed(0)
    inputs = [each.cuda() for each in attention.inputs(2, 1500, 1500)]
    first = kernel(inputs, 2, 1500, 1500).clone()
    for _ in range(30):
        assert torch.equal(kernel(inputs, 2, 1500, 1500), first)


def test_flash_captured(device: Device) -> None:
    tensors = [torch.randn(2, 500, 256, device="cuda").bfloat16() for _ in range(3)]
    kernel = loaded(device, Attention(4, d=64), "flash_64x128_s6_c2", False)
    kernel.check_chain(*tensors, lengths=(2, 500, 500))
