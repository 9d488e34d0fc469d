# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""In which arithmetic products and convolutions of float32 are computed: settings and kernels."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import mlir.ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from shapejit import ir as sir
from shapejit.cpu_features import host_target
from shapejit.importer import import_model
from shapejit.options import CompileOptions
from shapejit.pipeline import _gpu_stages, run_stage
from shapejit.precision import kept_settings, resolved_options

BACKENDS = torch.backends


@pytest.fixture
def restored() -> Iterator[None]:
    """PyTorch's own defaults, before and after."""
    places: list[Any] = [BACKENDS, BACKENDS.cuda.matmul, BACKENDS.cudnn]
    places += [BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn]

    def reset() -> None:
        for place, value in zip(places, ("none", "none", "none", "tf32", "tf32"), strict=True):
            place.fp32_precision = value

    reset()
    yield
    reset()


def _set(*settings: tuple[Any, str]) -> Callable[[], None]:
    def apply() -> None:
        for place, value in settings:
            place.fp32_precision = value

    return apply


def _allow(*, convolutions: bool) -> Callable[[], None]:
    def apply() -> None:
        BACKENDS.cudnn.allow_tf32 = convolutions

    return apply


CONV, CUDNN, PRODUCTS = BACKENDS.cudnn.conv, BACKENDS.cudnn, BACKENDS.cuda.matmul

#: What is set in PyTorch, and what is left of it for products and for convolutions.
SETTINGS: dict[str, tuple[Callable[[], None], str, str]] = {
    "nothing": (lambda: None, "ieee", "tf32"),
    "products": (lambda: torch.set_float32_matmul_precision("high"), "tf32", "tf32"),
    "cudnn, formerly": (_allow(convolutions=False), "ieee", "ieee"),
    "and allowed again": (_allow(convolutions=True), "ieee", "tf32"),
    "convolutions": (_set((CONV, "ieee")), "ieee", "ieee"),
    "both inherit cudnn's": (_set((CUDNN, "tf32"), (CONV, "none")), "tf32", "tf32"),
    "convolutions inherit": (_set((CUDNN, "ieee"), (CONV, "none")), "ieee", "ieee"),
    "convolutions inherit nothing": (_set((CONV, "none")), "ieee", "ieee"),
    "both inherit": (_set((CONV, "none"), (BACKENDS, "tf32")), "tf32", "tf32"),
    "their own goes first": (_set((BACKENDS, "tf32"), (CONV, "ieee")), "tf32", "ieee"),
    "products' own, too": (_set((BACKENDS, "tf32"), (PRODUCTS, "ieee")), "ieee", "tf32"),
}


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", SETTINGS)
def test_auto_is_what_torch_is_set_to(name: str) -> None:
    apply, products, convolutions = SETTINGS[name]
    apply()
    found = resolved_options(CompileOptions())
    assert (found.float32_precision, found.float32_conv_precision) == (products, convolutions)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("both", "convolutions", "expected"),
    [
        ("ieee", "auto", ("ieee", "ieee")),
        ("tf32", "auto", ("tf32", "tf32")),
        ("auto", "ieee", ("ieee", "ieee")),
        ("ieee", "tf32", ("ieee", "tf32")),
        ("tf32", "ieee", ("tf32", "ieee")),
    ],
)
def test_what_is_asked_for_goes_first(
    both: str, convolutions: str, expected: tuple[str, str]
) -> None:
    asked = CompileOptions(float32_precision=both, float32_conv_precision=convolutions)
    found = resolved_options(asked)
    assert (found.float32_precision, found.float32_conv_precision) == expected
    assert resolved_options(found) == found
    assert found.hash() != CompileOptions(float32_precision="auto").hash()


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_lets_models_be_imported_and_stays(name: str) -> None:
    SETTINGS[name][0]()
    places = (CONV, BACKENDS.cudnn.rnn, CUDNN, PRODUCTS, BACKENDS)
    before = [each.fp32_precision for each in places]
    # What changes in place is captured a second time, when it is made functional.
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True)).eval()
    with torch.no_grad():
        import_model(model, (torch.randn(2, 1, 5, 5),), dynamic_shapes=({0: Dim("n", min=1)},))
    assert [each.fp32_precision for each in places] == before
    if name.startswith(("cudnn, formerly", "and allowed again", "nothing")):
        assert CUDNN.allow_tf32 is (name != "cudnn, formerly")


@pytest.mark.usefixtures("restored")
def test_settings_that_were_changed_inherit_again() -> None:
    CUDNN.fp32_precision, CONV.fp32_precision = "ieee", "none"
    with kept_settings():
        assert CUDNN.allow_tf32 in (False, True)
        CUDNN.fp32_precision = "none"
    assert CONV.fp32_precision == "ieee"
    CUDNN.fp32_precision = "tf32"
    assert CONV.fp32_precision == "tf32"


def _states() -> list[Any]:
    """All settings, of which the older one may not be readable."""
    places = (BACKENDS, CUDNN, CONV, BACKENDS.cudnn.rnn, PRODUCTS)
    try:
        older: object = CUDNN.allow_tf32
    except RuntimeError:
        older = None
    return [older, *(each.fp32_precision for each in places)]


MIXTURES = {
    "convolutions": _set((CONV, "ieee")),
    "layers": _set((BACKENDS.cudnn.rnn, "ieee")),
    "both, not the older": _set((CONV, "ieee"), (BACKENDS.cudnn.rnn, "ieee")),
    "the older alone": lambda: (_allow(convolutions=False)(), _set((CONV, "tf32"))())[-1],
    "inherited": lambda: (_allow(convolutions=False)(), _set((BACKENDS, "tf32"))())[-1],
    **{name: apply for name, (apply, _, _) in SETTINGS.items()},
}


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", MIXTURES)
def test_other_threads_never_compute_less_exactly_than_they_set(name: str) -> None:
    """What they find while a model is captured; torch can read all of it then."""
    MIXTURES[name]()
    before = _states()
    with kept_settings():
        during = _states()
    assert _states() == before
    assert during[0] is not None
    if before[0] is not None:
        assert during == before
    for now, was in zip(during[1:], before[1:], strict=True):
        assert now == was or (now, was) == ("ieee", "tf32") or (now, was) == ("ieee", "none")
    # The older setting is as it was, too: it can be read once the others say the same.
    CONV.fp32_precision = BACKENDS.cudnn.rnn.fp32_precision = "tf32"
    readable = _states()[0]
    MIXTURES[name]()
    CONV.fp32_precision = BACKENDS.cudnn.rnn.fp32_precision = "tf32"
    assert _states()[0] == readable


@pytest.mark.usefixtures("restored")
def test_captures_of_two_threads_restore_what_was_set() -> None:
    """One after the other: else the second would keep what the first set for its time."""
    CONV.fp32_precision = "ieee"
    before, entered, order = _states(), threading.Event(), []

    def other() -> None:
        with kept_settings():
            entered.set()
            order.append("other")

    thread = threading.Thread(target=other)
    with kept_settings():
        thread.start()
        assert not entered.wait(0.2)
        order.append("this")
    thread.join()
    assert (order, _states()) == (["this", "other"], before)


class Network(nn.Module):
    """A convolution that TMA reads, one that it does not, one of one tap, and a linear layer.

    Each has another number of columns, by which its kernel is known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.few = nn.Conv2d(3, 32, 3, 2, 1)
        self.three = nn.Conv2d(32, 64, 3, 2, 1)
        self.one = nn.Conv2d(64, 96, 1)
        self.linear = nn.Linear(96, 128)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.three(torch.relu(self.few(x))))
        mixed: Tensor = self.linear(torch.relu(self.one(y)).movedim(1, -1))
        return mixed


def _schedules(options: CompileOptions) -> dict[int, set[str]]:
    """The names of the variants of each kernel with a product, by its columns."""
    torch.manual_seed(0)
    sizes = {i: Dim(f"d{i}", min=16, max=64) for i in (2, 3)}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = (torch.randn(2, 3, 20, 24),)
        module = import_model(Network().eval(), example, dynamic_shapes=(sizes,)).module
    with module.context:
        module.operation.attributes["shapejit.target"] = ir.StringAttr.get("cuda:sm_90a:h200")
    for stage in _gpu_stages(options):
        if stage.name != "hoist-weights":
            run_stage(module, stage, host_target("host"))
        if stage.name == "choose-buckets":
            break
    columns: dict[str, int] = {}
    found: dict[int, set[str]] = {}
    for op in sir.operations(sir.module_block(module)):
        if op.name == "shapejit.kernel":
            for inner in sir.operations(sir.body(op)):
                if inner.name in ("shapejit.gemm", "shapejit.conv"):
                    shape = sir.shape_of(inner.results[0])
                    columns[ir.StringAttr(op.attributes["sym_name"]).value] = shape[-1].constant
        elif op.name == "shapejit.dispatch":
            kernel = ir.FlatSymbolRefAttr(op.attributes["kernel"]).value
            if kernel in columns:
                names = {str(each).split('"')[1] for each in op.attributes["buckets"]}
                found.setdefault(columns[kernel], set()).update(names)
    return found


@pytest.mark.parametrize("products", ["ieee", "tf32"])
@pytest.mark.parametrize("convolutions", ["ieee", "tf32"])
def test_each_layer_gets_the_kernels_of_its_own_setting(products: str, convolutions: str) -> None:
    """A 1x1 convolution is a product by then, and so is one of gathered pixels."""
    options = CompileOptions(
        float32_precision=products, float32_conv_precision=convolutions, winograd="off"
    )
    found = _schedules(options)
    assert set(found) == {32, 64, 96, 128}
    rounds = {n: {"tf32" in name.split("_") for name in names} for n, names in found.items()}
    # Channels of three, times nine, are rows that no tensor map reads.
    assert rounds[32] == {False}
    assert rounds[64] == rounds[96] == {convolutions == "tf32"}
    assert rounds[128] == {products == "tf32"}
