# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Launches on a real GPU: tensor maps, grids, clusters, streams, graphs, lifetimes, errors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu.runtime_kernels import (
    CHAIN,
    CLUSTER,
    COPY,
    COPY_BLOCK,
    PAIRS,
    PICKY,
    PTX,
    SPIN,
    SUM,
    make,
)
from gpu.waiting import eventually
from shapejit.gpu import memory
from shapejit.gpu.device import Device
from shapejit.gpu.errors import DriverCallError, KernelInterfaceError, LaunchError
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("everything_is_given_back")


def _current() -> int:
    stream: int = torch.cuda.current_stream().cuda_stream
    return stream


def _random(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda").to(torch.bfloat16)


def _copy(kernel: Kernel, source: torch.Tensor, target: torch.Tensor) -> None:
    values = (*target.shape, source.shape[0], source.stride(0), target.stride(0))
    kernel.launch((source.data_ptr(), target.data_ptr()), values, _current())


@pytest.mark.parametrize("columns", [8, 64, 72, 4096])
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 1000])
def test_tensor_maps(device: Device, rows: int, columns: int) -> None:
    kernel = make(COPY, device)
    source, target = _random(rows, columns), _random(rows, columns)
    _copy(kernel, source, target)
    assert torch.equal(source, target)


def test_strided_tensors_and_their_surroundings(device: Device) -> None:
    kernel = make(COPY, device)
    source, around = _random(100, 200), torch.zeros(102, 168, device="cuda").bfloat16()
    _copy(kernel, source[:, 8:80], around[1:-1, 16:88])
    expected = torch.zeros_like(around)
    expected[1:-1, 16:88] = source[:, 8:80]
    assert torch.equal(around, expected)


def test_one_row_may_have_any_stride(device: Device) -> None:
    source, target = _random(1, 64), _random(1, 64)
    _copy(make(COPY, device), source.as_strided((1, 64), (77, 1)), target)
    assert torch.equal(source, target)


def test_nothing_to_do(device: Device) -> None:
    kernel = make(COPY, device)
    kernel.launch((0, 0), (0, 64, 0, 64, 64), _current())
    kernel.launch((0, 0), (64, 0, 64, 0, 0), _current())
    torch.cuda.synchronize()


def test_an_empty_operand_reads_as_zeros(device: Device) -> None:
    kernel, target = make(COPY, device), _random(100, 72)
    # Any address will do for it.
    for address in (0, 8, 1 << 40):
        target.fill_(1)
        kernel.launch((address, target.data_ptr()), (100, 72, 0, 72, 72), _current())
        assert not target.any()


def test_grids(device: Device) -> None:
    assert make(COPY, device).resident_ctas == 2 * device.multiprocessors
    pairs = make(PAIRS, device)
    assert 0 < pairs.resident_ctas <= device.multiprocessors
    assert pairs.resident_ctas % 2 == 0
    result = torch.full((pairs.resident_ctas + 1,), -1, dtype=torch.int32, device="cuda")
    pairs.launch((result.data_ptr(),), (1 << 40,), _current())
    assert result.tolist() == [*[200, 201] * (pairs.resident_ctas // 2), -1]


@pytest.mark.parametrize("size", [1, 2, 8, 16])
def test_clusters(device: Device, size: int) -> None:
    kernel = make(replace(CLUSTER, cluster=size), device)
    result = torch.full((5 * size + 1,), -1, dtype=torch.int32, device="cuda")
    kernel.launch((result.data_ptr(),), (5,), _current())
    expected = [100 * size + number for _ in range(5) for number in range(size)]
    assert result.tolist() == [*expected, -1]


def test_workspaces_are_zero_and_stay_so(device: Device) -> None:
    kernel = make(SUM, device)
    results = torch.zeros(50, dtype=torch.int64, device="cuda")
    for i in range(50):
        kernel.launch((results[i].data_ptr(),), (i, 1 + 40 * i), _current())
    expected = [sum(range(i, i + 1 + 40 * i)) for i in range(50)]
    assert results.tolist() == expected
    assert memory.workspaces(device).buffers == 1


def test_streams_at_the_same_time(device: Device) -> None:
    kernel = make(SUM, device)
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = torch.zeros(4, 100, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for i in range(100):
        for number, stream in enumerate(streams):
            result = results[number, i].data_ptr()
            kernel.launch((result,), (1000 * number, 20 + i), stream.cuda_stream)
    torch.cuda.synchronize()
    for number in range(4):
        first = 1000 * number
        expected = [sum(range(first, first + 20 + i)) for i in range(100)]
        assert results[number].tolist() == expected
    assert memory.workspaces(device).buffers == len({s.cuda_stream for s in streams})


def test_threads_without_a_context(device: Device) -> None:
    kernel = make(SUM, device)
    results = torch.zeros(4, 50, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def run(number: int, stream: int) -> None:
        try:
            for i in range(50):
                kernel.launch((results[number, i].data_ptr(),), (number, 10 + i), stream)
        except BaseException as error:
            failures.append(error)

    streams = [torch.cuda.Stream() for _ in range(4)]
    threads = [
        threading.Thread(target=run, args=(number, stream.cuda_stream))
        for number, stream in enumerate(streams)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not failures
    for number in range(4):
        expected = [sum(range(number, number + 10 + i)) for i in range(50)]
        assert results[number].tolist() == expected


def test_programmatic_launches(device: Device) -> None:
    kernel = make(CHAIN, device)
    number = torch.zeros(1, dtype=torch.int64, device="cuda")
    for _ in range(200):
        kernel.launch((number.data_ptr(),), (1,), _current())
    assert number.item() == 200


def test_graph(device: Device, modules: Callable[[], int]) -> None:
    kernels = {"copy": make(COPY, device), "sum": make(SUM, device), "chain": make(CHAIN, device)}
    source, target = _random(100, 72), _random(100, 72)
    numbers = torch.zeros(2, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()

    def run() -> None:
        _copy(kernels["copy"], source, target)
        for _ in range(3):
            kernels["chain"].launch((numbers[1].data_ptr(),), (1,), _current())
        kernels["sum"].launch((numbers[0].data_ptr(),), (7, 100), _current())

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    assert numbers.tolist() == [0, 0]
    use = memory.workspaces(device)
    assert (use.buffers, use.bytes) == (1, use.graph_bytes)
    for replay in range(1, 4):
        source.copy_(_random(100, 72))
        graph.replay()
        assert torch.equal(source, target)
        assert numbers.tolist() == [sum(range(7, 107)), 3 * replay]
    # The graph holds the code and the workspace, nothing else does.
    kernels.clear()
    gc.collect()
    memory.release_workspaces(device)
    assert modules() == 3
    assert memory.workspaces(device) == use
    for replay in range(4, 6):
        numbers[0] = 0
        graph.replay()
        assert numbers.tolist() == [sum(range(7, 107)), 3 * replay]
    del graph
    gc.collect()
    torch.cuda.synchronize()
    eventually(lambda: modules() == 0)
    eventually(lambda: memory.workspaces(device).buffers == 0)


def test_graphs_at_the_same_time(device: Device) -> None:
    """Two graphs of one stream, replayed in two others."""
    kernel = make(SUM, device)
    results = torch.zeros(2, dtype=torch.int64, device="cuda")
    graphs = []
    for number in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(20):
                kernel.launch((results[number].data_ptr(),), (number, 50), _current())
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(20):
        results.zero_()
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert results.tolist() == [sum(range(50)), sum(range(1, 51))]


def test_branches_of_a_graph(device: Device) -> None:
    kernel = make(SUM, device)
    results = torch.zeros(2, 20, dtype=torch.int64, device="cuda")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        for i in range(20):
            for number, stream in enumerate((main, side)):
                result = results[number, i].data_ptr()
                kernel.launch((result,), (number, 50 + i), stream.cuda_stream)
        main.wait_stream(side)
    assert memory.workspaces(device).buffers == 2
    expected = [[sum(range(number, number + 50 + i)) for i in range(20)] for number in range(2)]
    for _ in range(10):
        results.zero_()
        graph.replay()
        assert results.tolist() == expected


def test_loading_and_unloading_during_a_capture(device: Device) -> None:
    """What a thread in the background does leaves a capture intact."""
    kernel, number = make(CHAIN, device), torch.zeros(1, dtype=torch.int64, device="cuda")
    failures: list[BaseException] = []

    def background() -> None:
        try:
            for _ in range(3):
                other = make(replace(SUM, grid=replace(SUM.grid, ctas_per_sm=1)), device)
                other.reserve(side.cuda_stream)
                del other
                memory.release_workspaces(device)
        except BaseException as error:
            failures.append(error)

    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.launch((number.data_ptr(),), (1,), _current())
        thread = threading.Thread(target=background)
        thread.start()
        thread.join()
        make(SUM, device)  # in the capturing thread too
        kernel.launch((number.data_ptr(),), (1,), _current())
    assert not failures
    graph.replay()
    assert number.item() == 2


def test_unloading_waits_for_launches(device: Device, modules: Callable[[], int]) -> None:
    result = torch.zeros(3, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream().cuda_stream
    for i in range(3):
        kernel = make(SPIN, device)
        kernel.launch((result[i].data_ptr(),), (200_000_000, 1), stream)
        del kernel
        gc.collect()
        assert modules() == 0
    torch.cuda.synchronize()
    assert result.tolist() == [1, 1, 1]


def test_freeing_a_workspace_waits_for_launches(device: Device) -> None:
    spin, kernel = make(SPIN, device), make(SUM, device)
    result = torch.zeros(2, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream().cuda_stream
    spin.launch((result[0].data_ptr(),), (100_000_000, 1), stream)
    kernel.launch((result[1].data_ptr(),), (5, 200), stream)
    memory.release_workspaces(device)
    torch.cuda.synchronize()
    assert result[1].item() == sum(range(5, 205))


def test_block_form(device: Device) -> None:
    kernel = make(COPY_BLOCK, device)
    entry = torch.zeros(COPY_BLOCK.block_bytes, dtype=torch.uint8, device="cuda")
    assert entry.data_ptr() % 128 == 0
    for rows, columns in ((1, 8), (100, 72), (1000, 4096)):
        source, target = _random(rows, columns), _random(rows, columns)
        host = torch.zeros(COPY_BLOCK.block_bytes, dtype=torch.uint8).pin_memory()
        values = (rows, columns, rows, columns, columns)
        operands = (source.data_ptr(), target.data_ptr())
        kernel.fill_block(operands, values, host.data_ptr(), None)
        entry.copy_(host, non_blocking=True)
        kernel.launch_block(entry.data_ptr(), _current())
        assert torch.equal(source, target)


def test_ptx_is_taken_too(device: Device) -> None:
    try:
        module = Module(PTX.read_bytes(), device)
    except DriverCallError as error:
        if "JIT_COMPILER_NOT_FOUND" not in str(error):
            raise
        pytest.skip(str(error))
    number = torch.zeros(1, dtype=torch.int64, device="cuda")
    Kernel(CHAIN, module).launch((number.data_ptr(),), (1,), _current())
    assert number.item() == 1


def test_errors_name_what_is_wrong(device: Device) -> None:
    kernel, source = make(COPY, device), _random(100, 80)
    with pytest.raises(LaunchError, match=r"rows = 4294967296 .*kernel copy"):
        kernel.launch((source.data_ptr(), source.data_ptr()), (1 << 32, 80, 100, 80, 80))
    with pytest.raises(LaunchError, match=r"stride of source = 77 elements .*16 bytes"):
        kernel.launch((source.data_ptr(), source.data_ptr()), (100, 72, 100, 77, 72))
    with pytest.raises(LaunchError, match="must be a multiple of 16 bytes"):
        kernel.launch((source.data_ptr() + 8, source.data_ptr()), (100, 72, 100, 80, 80))
    with pytest.raises(KernelInterfaceError, match="parameter 2 takes 4 bytes in its function"):
        parameters = (*COPY.parameters[:2], replace(SUM.parameters[1], value=0))
        make(replace(COPY, parameters=parameters), device)
    with pytest.raises(KernelInterfaceError, match="no such function"):
        make(replace(COPY, entry="other"), device)
    with pytest.raises(KernelInterfaceError, match="bytes of dynamic and 4104 of static"):
        make(replace(COPY, shared_bytes=device.shared_bytes_per_block), device)
    with pytest.raises(DriverCallError, match="cuModuleLoadDataEx failed"):
        Module(b"\x7fELF" + bytes(4096), device)
    make(replace(CHAIN, shared_bytes=device.shared_bytes_per_block), device).launch(
        (source.data_ptr(),), (1,), _current()
    )
    torch.cuda.synchronize()


def test_the_driver_refuses_a_launch(device: Device) -> None:
    """Its words, and the call; the context stays usable."""
    kernel, number = make(PICKY, device), torch.zeros(1, dtype=torch.int64, device="cuda")
    for _ in range(2):
        text = r"cuLaunchKernelEx failed with CUDA_ERROR_.*kernel picky, 3 CTAs.*32 threads.*1 = 3"
        with pytest.raises(DriverCallError, match=text):
            kernel.launch((number.data_ptr(),), (3,), _current())
    make(CHAIN, device).launch((number.data_ptr(),), (1,), _current())
    assert number.item() == 1


def test_the_second_device(device: Device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    from shapejit.gpu.driver import driver

    kernel = make(CHAIN, driver().device(1))
    number = torch.zeros(1, dtype=torch.int64, device="cuda:1")
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    kernel.launch((number.data_ptr(),), (1,), torch.cuda.current_stream(1).cuda_stream)
    assert torch.cuda.current_device() == 0
    assert number.item() == 1
    with pytest.raises(DriverCallError, match="primary context of the kernel's device"):
        kernel.launch((number.data_ptr(),), (1,), torch.cuda.Stream(0).cuda_stream)
