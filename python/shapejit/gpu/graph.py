# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Programs of many launches under constant CUDA graphs.

The kernels of such a program read their parameters from a block in device memory, which a head
kernel refreshes at the start of every call from the call's *words*: its sizes and addresses. So the
graph of a *region* of sizes, in which every launch has its fixed kernel, serves all of them; see
``runtime/include/shapejit_rt/graph.h``.

A call is one native function, which works out region and words by functions of the compiled host
program. It never waits for a graph to be made: a thread in the background makes those that are
missing, and calls launch kernel by kernel until then.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, byref, c_int32, c_int64, c_void_p, cast
from dataclasses import dataclass
from typing import Any

from shapejit import logs
from shapejit.cache.cubins import CubinEntry
from shapejit.gpu.bindings import NativeProgram, NativeProgramLaunch, ProgramUse, Runtime
from shapejit.gpu.device import Device
from shapejit.gpu.errors import DriverCallError, KernelInterfaceError, NoDriverError
from shapejit.gpu.launch import Kernel
from shapejit.gpu.module import Module

_LOG = logs.logger("runtime")

# ShapejitRtCudaAnswer
_GRAPH_MISSING = -1
_REGION_MISSING = -2

#: Version of the records that head kernels follow, and of how they share them among threads. Head
#: kernels are part of saved programs, while the records are made by the runtime that loads them.
RECORDS = 3

#: ``ShapejitRtCudaRegionOf``
_REGION_OF = ctypes.CFUNCTYPE(c_int64, c_void_p)

#: Streams of a program that have blocks and graphs of their own.
MOST_INSTANCES = 8


@dataclass(frozen=True)
class GraphLaunch:
    """A launch of a region.

    Attributes:
        kernel: in block form.
        operands: numbers of the words that are the operands' addresses, in the kernel's order.
        values: numbers of the words that are the values of the kernel's interface.
        ctas: of the grid, in whole clusters, if no size of the region has work for more; 0 for as
            many as the device runs at once. A grid that is larger than its work takes longer to
            start.
        waits: numbers of the launches ahead of it that it waits for, ascending; None: of the one
            just ahead of it.
    """

    kernel: Kernel
    operands: tuple[int, ...]
    values: tuple[int, ...]
    ctas: int = 0
    waits: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Head:
    """A head kernel on a device; `shapejit.passes.nvgpu.head` emits them.

    Attributes:
        module: its machine code.
        entry: name of the function.
        threads: of a CTA.
        words: how many words it takes.
    """

    module: Module
    entry: str
    threads: int
    words: int

    @staticmethod
    def load(entry: CubinEntry, device: Device) -> Head:
        """Loads a head kernel, whose name is ``head_<records>_<words>``.

        Raises:
            KernelInterfaceError: it was made for a runtime of another version.
            DriverCallError: the driver refuses the machine code.
        """
        interface = entry.interface
        _, records, words = interface.entry.split("_")
        if int(records) != RECORDS:
            raise KernelInterfaceError(
                f"the head kernel {interface.entry} follows records of version {records}, and this "
                f"runtime makes those of version {RECORDS}: compile the program again"
            )
        return Head(Module(entry.cubin, device), interface.entry, interface.threads, int(words))


@dataclass(frozen=True)
class GraphUse:
    """What a program has and did.

    Attributes:
        regions: that are known.
        instances: streams with blocks and graphs of their own, and one that is ready for a stream.
        graphs: executable ones, of all instances.
        patches: parameters that a call changes, in the largest region.
        block_bytes: device memory of blocks, with scratch memory of kernels.
        table_bytes: device memory of what the head kernel follows.
        graph_calls: calls so far that were the launch of a graph.
        stream_calls: calls so far that were launched kernel by kernel.
        captured_calls: calls so far in streams that were captured.
        bindings: how often the fixed words were set or changed.
    """

    regions: int
    instances: int
    graphs: int
    patches: int
    block_bytes: int
    table_bytes: int
    graph_calls: int
    stream_calls: int
    captured_calls: int
    bindings: int


class GraphProgram:
    """A program on a GPU, to be called from any number of threads.

    The words of a call are int64: addresses, and values of expressions. The first `call_words` of
    them may differ from call to call, the others (constants, addresses of weights) are fixed; a
    call that brings other fixed words has everything made anew.

    Args:
        head: the head kernel, for as many words or more.
        call_words: words that differ from call to call.
        word_count: all words.
        region_of: address of ``int64_t (const int64_t *symbols)``, the key of a call's region.
        words_of: address of ``void (const int64_t *symbols, void *const *buffers, void *arena,
            int64_t *words)``.
        launches: the launches of a region by its key, asked for when it is first needed.
        most_instances: streams with blocks and graphs of their own; beyond it the one that called
            longest ago gives them up.

    Raises:
        KernelInterfaceError: the head kernel takes too few words, or a number is out of range.
        DriverCallError: a call of the driver failed.
    """

    def __init__(
        self,
        head: Head,
        *,
        call_words: int,
        word_count: int,
        region_of: int,
        words_of: int,
        launches: Callable[[int], Sequence[GraphLaunch]],
        most_instances: int = MOST_INSTANCES,
    ) -> None:
        self.head = head
        self._runtime: Runtime = head.module.device.runtime
        self._launches = launches
        self._region_of: Callable[[Any], int] = _REGION_OF(region_of)
        self._adding = threading.Lock()
        self._known: set[int] = set()
        self._kernels: dict[int, Kernel] = {}
        native = NativeProgram(
            head=head.module.handle,
            head_entry=head.entry.encode(),
            head_threads=head.threads,
            head_words=head.words,
            call_words=call_words,
            word_count=word_count,
            max_instances=most_instances,
            region_of=region_of,
            words_of=words_of,
        )
        handle = c_void_p()
        self._runtime.call("ProgramCreate", byref(native), byref(handle))
        self._handle = handle
        functions = self._runtime.functions
        # The arguments, which the native program refers to, live until it is gone.
        release = weakref.finalize(self, _release, functions, handle, self._kernels, head)
        release.atexit = False
        self._run = functions["ProgramRun"]
        self._making = _Making()

    def add_regions(self, keys: Iterable[int]) -> None:
        """Makes regions known, so that no call has to.

        Raises:
            KernelInterfaceError: a launch does not fit its kernel.
            LaunchError: a fixed word breaks a rule of a kernel.
            DriverCallError: a call of the driver failed.
        """
        for key in keys:
            self._add_region(key)

    def bind(self, symbols: Any, buffers: Any) -> None:
        """Sets the fixed words from those of a call; of the others, nothing is used.

        Raises:
            LaunchError: a fixed word breaks a rule of a kernel.
            DriverCallError: a call of the driver failed.
        """
        self._runtime.call("ProgramBind", self._handle, symbols, buffers)

    def prepare(self) -> None:
        """Makes all graphs that are missing: about a millisecond each. To be bound first.

        If one cannot be made, a warning is logged, and calls do without it.

        Raises:
            LaunchError: no weights are bound.
        """
        while self._try_prepare_one():
            pass

    def run(self, symbols: Any, buffers: Any, arena: Any, stream: int) -> None:
        """Queues a call in a stream, which may be captured.

        Args:
            symbols, buffers, arena: what the functions of the host program take.
            stream: handle of a stream of the device; 0 is the default stream.

        Raises:
            LaunchError: an operand or a size breaks a rule of a kernel; nothing is queued.
            DriverCallError: a call of the driver failed.
        """
        status = self._run(self._handle, symbols, buffers, arena, stream)
        if status:
            self.answer(
                status, symbols, lambda: self._run(self._handle, symbols, buffers, arena, stream)
            )

    @property
    def native(self) -> tuple[int, int]:
        """Address of the runtime's function ``shapejitRtCudaProgramRun`` and what it is called
        with first, for native code; valid while this object lives."""
        return cast(self._run, c_void_p).value or 0, self._handle.value or 0

    def use(self) -> GraphUse:
        """What the program has and did."""
        use = ProgramUse()
        self._runtime.functions["ProgramUse"](self._handle, byref(use))
        return GraphUse(*(getattr(use, name) for name, *_ in ProgramUse._fields_))

    def wait(self, seconds: float = 60.0) -> None:
        """Waits until the background thread has made what calls found missing.

        Raises:
            TimeoutError: it takes longer.
        """
        if not self._making.idle.wait(seconds):
            raise TimeoutError(f"graphs of a program are not made after {seconds:g} s")

    def answer(self, status: int, symbols: Any, again: Callable[[], int]) -> None:
        """Does what is to be done after a call whose status is not 0.

        Args:
            status: what the runtime's function returned.
            symbols: as for `run`.
            again: makes the same call, and gives its status.

        Raises:
            LaunchError, DriverCallError: as for `run`.
        """
        while status == _REGION_MISSING:
            self._add_region(self._region_of(symbols))
            status = again()
        if status != _GRAPH_MISSING:
            self._runtime.check(status)
        elif self._making.want():
            try:
                _worker().submit(_prepare, weakref.ref(self), self._making)
            except RuntimeError:  # the interpreter ends; the call is queued all the same
                self._making.idle.set()

    def _add_region(self, key: int) -> None:
        with self._adding:
            if key in self._known:
                return
            launches = self._launches(key)
            for launch in launches:
                self._kernels[id(launch.kernel)] = launch.kernel
            described = list(map(_native, launches))  # what an array has is copied
            native = (NativeProgramLaunch * len(launches))(*described)
            self._runtime.call("ProgramAddRegion", self._handle, key, native, len(launches))
            self._known.add(key)

    def _try_prepare_one(self) -> int:
        """The same, but 0 with a warning where a graph cannot be made: it is not tried again."""
        try:
            return self._prepare_one()
        except (DriverCallError, NoDriverError) as error:
            _LOG.warning("a graph cannot be made, calls launch kernel by kernel: %s", error)
            return 0

    def _prepare_one(self) -> int:
        """Makes a graph if one is missing; how many are still."""
        missing = c_int32()
        self._runtime.call("ProgramPrepare", self._handle, byref(missing))
        return missing.value


def _native(launch: GraphLaunch) -> NativeProgramLaunch:
    """The native form of a launch, which keeps its arrays."""

    def numbers(words: Sequence[int]) -> Any:
        return ctypes.cast((c_int32 * max(len(words), 1))(*words), POINTER(c_int32))

    return NativeProgramLaunch(
        kernel=launch.kernel.handle,
        operands=numbers(launch.operands),
        values=numbers(launch.values),
        operand_count=len(launch.operands),
        value_count=len(launch.values),
        ctas=launch.ctas,
        waits=None if launch.waits is None else numbers(launch.waits),
        wait_count=len(launch.waits or ()),
    )


def _release(
    functions: dict[str, Any], handle: c_void_p, kernels: dict[int, Kernel], head: Head
) -> None:
    functions["ProgramRelease"](handle)
    kernels.clear()


# The background -----------------------------------------------------------------------------------


@functools.cache
def _worker() -> ThreadPoolExecutor:
    """The thread that makes graphs, for all programs in turn."""
    return ThreadPoolExecutor(1, thread_name_prefix="shapejit-graphs")


class _Making:
    """Whether the graphs of a program are being made.

    Attributes:
        idle: set while they are not.
    """

    def __init__(self) -> None:
        self.idle = threading.Event()
        self.idle.set()
        self._lock = threading.Lock()
        self._wanted = False

    def want(self) -> bool:
        """Notes that a graph is missing; whether the thread has to be told."""
        with self._lock:
            self._wanted = True
            was_idle = self.idle.is_set()
            self.idle.clear()
            return was_idle

    def begin(self) -> bool:
        """Whether something was found missing since this was last called; else it is idle."""
        with self._lock:
            wanted, self._wanted = self._wanted, False
            if not wanted:
                self.idle.set()
            return wanted


def _prepare(reference: weakref.ref[GraphProgram], making: _Making) -> None:
    """Makes the graphs that a program's calls found missing, as long as it is there."""
    try:
        while making.begin():
            while (program := reference()) is not None and program._try_prepare_one():
                del program  # others may end it meanwhile
    except Exception:
        _LOG.exception("graphs of a program cannot be made, calls launch kernel by kernel")
    finally:
        making.idle.set()


__all__ = ["MOST_INSTANCES", "GraphLaunch", "GraphProgram", "GraphUse", "Head"]
