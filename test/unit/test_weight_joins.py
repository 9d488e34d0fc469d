# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Weights that kernels read as one tensor: made once, again after a change, part of programs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F  # noqa: N812

import shapejit
from shapejit import pipeline
from shapejit.artefacts import JoinSpec, PackSpec, WeightSpec
from shapejit.weights import Weights

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def specs(*tensors: Tensor, in_place: tuple[int, ...] = ()) -> list[WeightSpec]:
    """What a program expects of these weights; it reads those `in_place` themselves, too."""
    return [
        WeightSpec(
            f"w{number}",
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            read_in_place=number in in_place,
        )
        for number, tensor in enumerate(tensors)
    ]


def rows() -> list[Tensor]:
    """Four weights of 3, 4, 5 and 3 rows."""
    return [torch.randn(size, 6) for size in (3, 4, 5, 3)]


def test_copies_follow_the_weights_in_the_order_of_the_specs() -> None:
    tensors = rows()
    joins = [JoinSpec((2, 0, 2), 0), PackSpec(1, 0, 8), JoinSpec((0, 3), 1)]
    weights = Weights(specs(*tensors, in_place=(0,)), joins, tensors, CPU)
    buffers = weights.current()
    whole, packed, side = buffers.packed
    assert torch.equal(whole, torch.cat([tensors[2], tensors[0], tensors[2]]))
    assert torch.equal(side, torch.cat([tensors[0], tensors[3]], 1))
    assert buffers.pointers == (
        *(tensors[0].data_ptr(), 0, 0, 0),
        *(whole.data_ptr(), packed.data_ptr(), side.data_ptr()),
    )
    assert weights.copied_bytes == 4 * 6 * (13 + 8 + 6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_dtypes_and_memory_formats(dtype: torch.dtype) -> None:
    tensors = [torch.randn(6, 4).to(dtype).T, torch.randn(3, 6).to(dtype)]
    weights = Weights(specs(*tensors), [JoinSpec((0, 1), 0)], tensors, CPU)
    (whole,) = weights.current().packed
    assert whole.is_contiguous()
    assert torch.equal(whole, torch.cat([tensors[0].contiguous(), tensors[1]]))


def test_a_changed_weight_remakes_the_copies_that_it_is_in() -> None:
    tensors = rows()
    weights = Weights(specs(*tensors), [JoinSpec((0, 1), 0), JoinSpec((2, 3), 0)], tensors, CPU)
    before = weights.current()
    assert weights.current() is before
    tensors[1].mul_(2)
    after = weights.current()
    assert torch.equal(after.packed[0], torch.cat(tensors[:2]))
    assert after.packed[1] is before.packed[1]
    # A call that runs meanwhile still reads what it began with.
    assert torch.equal(before.packed[0][3:] * 2, tensors[1])
    tensors[3].data = torch.randn(3, 6)
    assert torch.equal(weights.current().packed[1], torch.cat(tensors[2:]))


def test_weights_that_were_freed_stay_in_their_copies() -> None:
    tensors = rows()
    kept = [tensor.clone() for tensor in tensors]
    joins = [JoinSpec((0, 1, 2), 0), JoinSpec((3, 0), 1)]
    found = specs(*tensors, in_place=(1,))
    weights = Weights(found, joins, tensors, CPU, free_original=True)
    assert [tensor.numel() for tensor in tensors] == [0, 24, 0, 0]
    for number, value in enumerate(kept):
        assert torch.equal(weights.value(number), value), number
    tensors[1].add_(1)
    kept[1].add_(1)
    assert torch.equal(weights.current().packed[0], torch.cat(kept[:3]))
    assert torch.equal(weights.current().packed[1], torch.cat([kept[3], kept[0]], 1))
    assert weights.bytes == kept[1].nbytes
    errors: list[str] = []
    weights.assign(2, kept[2], errors)
    assert errors == ["weight w2 was freed (free_original=True) and cannot be set"]


class Attention(nn.Module):
    """Attention of a sequence with itself, with a projection for each of q, k and v."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 24)
        self.out = nn.Linear(24, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (p(x).view(batch, tokens, 3, 8).transpose(1, 2) for p in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(q, k, v)
        result: Tensor = self.out(heads.transpose(1, 2).reshape(batch, tokens, 24))
        return result


def with_merged_products() -> tuple[pipeline.Stage, ...]:
    """The stages for a CPU, and that one."""
    merge = pipeline.Stage(
        "merge-products", lambda _target: "shapejit-merge-products,canonicalize,cse"
    )
    place = next(i for i, stage in enumerate(pipeline.STAGES) if stage.name == "pack-weights")
    return (*pipeline.STAGES[:place], merge, *pipeline.STAGES[place:])


def test_a_program_of_merged_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right, also after a change in place, after save and load, and with its weights freed."""
    monkeypatch.setattr(pipeline, "STAGES", with_merged_products())
    model = Attention().eval().requires_grad_(False)
    dims = ({0: Dim("batch", max=4), 1: Dim("tokens", max=32)},)

    def compiled(module: nn.Module, *, free_original: bool = False) -> shapejit.Program:
        example = (torch.randn(2, 5, 24),)
        return shapejit.compile(
            module, example, dynamic_shapes=dims, verify_each=True, free_original=free_original
        )

    def check(program: shapejit.Program) -> None:
        for batch, tokens in [(1, 1), (2, 7), (4, 32)]:
            x = torch.randn(batch, tokens, 24)
            torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-5)

    program = compiled(model)
    joins = [pack for pack in program.artefacts.packs if isinstance(pack, JoinSpec)]
    names = [[program.artefacts.weights[w].name for w in join.weights] for join in joins]
    assert names == [["q.weight", "k.weight", "v.weight"], ["q.bias", "k.bias", "v.bias"]]
    assert [join.dim for join in joins] == [0, 0]
    assert program.stats().packed_bytes >= 4 * 3 * (24 * 24 + 24)
    check(program)
    for parameter in model.parameters():
        parameter.mul_(1.5)
    check(program)
    program.save(tmp_path / "attention.sj")
    check(shapejit.load(tmp_path / "attention.sj"))
    freed = compiled(copy.deepcopy(model), free_original=True)
    check(freed)
    for name, value in freed.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize("made", [False, True], ids=["made outside", "made in inference mode"])
@pytest.mark.parametrize("changed", [False, True], ids=["changed outside", "in inference mode"])
def test_copies_stay_where_they_are_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, made: bool, changed: bool
) -> None:
    """So graphs that have their addresses see a changed weight."""
    stays = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(Weights, "_copies_stay", stays, raising=False)
    tensors = rows()
    odd = torch.zeros(19)[1:].view(3, 6)  # read at an aligned address: a copy
    every = [*tensors, odd]
    with torch.inference_mode(made):
        weights = Weights(
            specs(*every, in_place=(2, 4)), [JoinSpec((0, 1), 0)], every, CPU, alignment=16
        )
    for change in (lambda: tensors[0].add_(1), lambda: odd.fill_(3), lambda: tensors[1].zero_()):
        before = weights.current()
        with torch.inference_mode(changed):
            change()
            after = weights.current()
        assert after is not before
        assert after.pointers == before.pointers
        assert torch.equal(after.packed[0], torch.cat(tensors[:2]))
        copied = after.in_place[4]
        assert copied is not None
        assert copied is not odd
        assert torch.equal(copied, odd)
    assert [copy.data_ptr() for copy in weights.copies()] == [
        after.pointers[4], after.pointers[-1]
    ]  # fmt: skip
