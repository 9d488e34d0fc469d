# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Inline assembly of the simulated GPU: the few PTX instructions that emitters write themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from reference.hopper import register_products
from reference.hopper.machine import Steps, Wait, Warp
from reference.hopper.memory import WINDOW, SimulationError
from reference.hopper.scalars import round_bf16, signed

_TYPES: dict[str, Any] = {
    "b8": np.uint8,
    "u8": np.uint8,
    "b16": np.uint16,
    "u16": np.uint16,
    "s32": np.uint32,
    "b32": np.uint32,
    "u32": np.uint32,
    "b64": np.uint64,
    "u64": np.uint64,
    "f32": np.float32,
    "f64": np.float64,
}
_CONSTRAINTS: dict[str, Any] = {
    "h": np.uint16,
    "r": np.uint32,
    "l": np.uint64,
    "f": np.float32,
    "d": np.float64,
    "b": np.bool_,
}


@dataclass(frozen=True)
class Instruction:
    """An instruction: guard, dotted parts of the name, operands (a list for a vector)."""

    guard: str | None
    negated: bool
    parts: tuple[str, ...]
    operands: tuple[Any, ...]


def parse(text: str) -> list[Instruction]:
    """The instructions of a text; a loop that awaits a flag or a phase becomes one, ``await``."""
    spin = re.search(r"(\w+): *(ld\.acquire\S+) \w+, \[([^\]]+)\];.*bra \1;", text)
    if spin:
        return [Instruction(None, False, ("await", "flag"), (f"[{spin[3]}]",))]
    spin = re.search(
        r"(\w+): *mbarrier\.try_wait\.parity\S* \w+, \[([^\]]+)\], (\S+), \d+;.*bra \1;", text
    )
    if spin:
        return [Instruction(None, False, ("await", "phase"), (f"[{spin[2]}]", spin[3]))]
    program = []
    body = re.sub(r"//.*", "", text).strip()
    if body.startswith("{"):
        body = body[1:].rsplit("}", 1)[0]
    for statement in body.split(";"):
        statement = statement.strip()
        if not statement or statement.startswith((".reg", ".pragma")):
            continue
        match = re.fullmatch(r"(?:@(!?)([\w$%]+)\s+)?([\w.:]+)\s*(.*)", statement, re.S)
        assert match is not None, statement
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", match[4])
        made: list[Any] = []
        for operand in operands:
            if operand.startswith("{"):
                made.append([part.strip() for part in operand[1:-1].split(",")])
            else:
                made.append(operand)
        parts = tuple(match[3].replace("::", "_").split("."))
        program.append(Instruction(match[2], match[1] == "!", parts, tuple(made)))
    return program


class _State:
    """Registers of one execution of a text."""

    def __init__(self, warp: Warp, outputs: int, operands: Sequence[Any], kinds: list[str]) -> None:
        self.warp = warp
        self.values: dict[str, Any] = {}
        plain = [kind for kind in kinds if not kind.startswith(("=", "~"))]
        ties = {number: int(kind) for number, kind in enumerate(plain) if kind.isdigit()}
        for number, value in enumerate(operands):
            self.values[f"${number + outputs}"] = value
            if number in ties:
                self.values[f"${ties[number]}"] = value

    def get(self, name: str, kind: Any = None) -> Any:
        if name in self.values:
            value = self.values[name]
        elif name.startswith("0f"):
            value = np.array([int(name[2:], 16)], np.uint32).view(np.float32)[0]
        else:
            value = int(name, 0) & 0xFFFF_FFFF_FFFF_FFFF
            return np.uint64(value).astype(kind or np.uint64)
        if kind is None or isinstance(value, register_products.PendingSum):
            return value
        value = np.broadcast_to(value, 32)
        if value.dtype == kind:
            return value
        if value.dtype.itemsize == np.dtype(kind).itemsize:
            return np.ascontiguousarray(value).view(kind)
        return value.astype(kind)

    def address(self, text: str) -> Any:
        base, _, offset = text[1:-1].partition("+")
        value = self.get(base.strip())
        address = np.asarray(value).astype(np.uint64)
        if offset:  # it may be negative
            address = address + np.uint64(int(offset, 0) & 0xFFFF_FFFF_FFFF_FFFF)
        return address


def run(
    program: Sequence[Instruction],
    warp: Warp,
    outputs: int,
    operands: Sequence[Any],
    constraints: list[str],
) -> Steps:
    """Executes the text; returns the values of its outputs."""
    state = _State(warp, outputs, operands, constraints)
    saved = warp.mask
    for instruction in program:
        if instruction.guard is not None:
            guard = np.broadcast_to(state.get(instruction.guard), 32).astype(bool)
            warp.mask = saved & (~guard if instruction.negated else guard)
        if warp.mask.any() or instruction.guard is None:
            before = dict(state.values) if instruction.guard is not None else None
            yield from _execute(state, instruction)
            if before is not None:
                for name, value in before.items():
                    if state.values[name] is not value:
                        state.values[name] = np.where(warp.mask, state.values[name], value)
        warp.mask = saved
    kinds = [_CONSTRAINTS[c[-1]] for c in constraints if c.startswith("=")]
    return tuple(state.get(f"${number}", kind) for number, kind in enumerate(kinds))


def _execute(state: _State, instruction: Instruction) -> Steps:
    name = instruction.parts[0]
    if name == "await":
        if instruction.parts[1] == "flag":
            yield from _await_flags(state, instruction.operands[0])
            return
        address = state.warp.one(state.address(instruction.operands[0]))
        if instruction.parts[1] == "phase":
            barrier = state.warp.barrier_at(address)
            phase = state.warp.one(state.get(instruction.operands[1], np.uint32))
            yield Wait(lambda: barrier.passed(phase), f"mbarrier {address:#x}, parity {phase}")
        return
    if name not in _INSTRUCTIONS:
        raise NotImplementedError(f"the simulated GPU does not know PTX {instruction}")
    _INSTRUCTIONS[name](state, instruction.parts[1:], *instruction.operands)


def _await_flags(state: _State, operand: str) -> Steps:
    """Each lane may await a flag of its own."""
    memory = state.warp.cta.machine.memory
    found = np.broadcast_to(state.address(operand), 32)[state.warp.mask]
    addresses = sorted({int(address) for address in found})
    yield Wait(
        lambda: all(memory.read(address, 4).any() for address in addresses),
        f"flags at {', '.join(f'{address:#x}' for address in addresses)}",
    )


# Instructions -------------------------------------------------------------------------------------


def _layout(parts: Sequence[str]) -> tuple[str, int, Any]:
    """Memory space, elements and type of a load or store."""
    shared = any(part.startswith("shared") for part in parts)
    count = next((int(part[1:]) for part in parts if re.fullmatch(r"v\d", part)), 1)
    return ("shared" if shared else "global"), count, _TYPES[parts[-1]]


def _load(state: _State, parts: Sequence[str], target: Any, address: str) -> None:
    space, count, kind = _layout(parts)
    width = np.dtype(kind).itemsize * count
    values = state.warp.load(space, state.address(address), width).view(kind)
    names = target if isinstance(target, list) else [target]
    for number, name in enumerate(names):
        state.values[name] = values[:, number]


def _load_matrices(state: _State, parts: Sequence[str], targets: list[str], address: str) -> None:
    """The lanes' addresses are those of the lines of the matrices, eight each."""
    if not state.warp.mask.all():
        raise SimulationError("matrices are loaded with lanes that do not take part")
    shared, offsets = state.warp.shared_of(state.address(address))
    lines = shared.load(offsets[: 8 * len(targets)], 16).view(np.uint16)
    for number, name in enumerate(targets):
        matrix = lines[8 * number : 8 * number + 8]
        matrix = np.ascontiguousarray(matrix.T if "trans" in parts else matrix)
        state.values[name] = matrix.view(np.uint32).reshape(32)


def _store(state: _State, parts: Sequence[str], address: str, source: Any, *barrier: str) -> None:
    space, _, kind = _layout(parts)
    names = source if isinstance(source, list) else [source]
    lanes = np.stack([np.broadcast_to(state.get(n, kind), 32) for n in names], axis=-1)
    data = np.ascontiguousarray(lanes).view(np.uint8)
    if barrier:
        reports = state.warp.one(state.address(barrier[0]))
        state.warp.store_to_peer(state.address(address), data, reports)
        return
    state.warp.store(space, state.address(address), data)


def _map_address(state: _State, parts: Sequence[str], target: str, address: str, rank: str) -> None:
    inside = state.get(address, np.uint32) % np.uint32(WINDOW)
    state.values[target] = inside + state.get(rank, np.uint32) * np.uint32(WINDOW)


def _move(state: _State, parts: Sequence[str], target: Any, source: Any) -> None:
    kind = _TYPES[parts[-1]]
    if isinstance(source, list):
        half = {np.uint32: np.uint16, np.uint64: np.uint32}[kind]
        lanes = np.stack([np.broadcast_to(state.get(n, half), 32) for n in source], axis=-1)
        state.values[target] = np.ascontiguousarray(lanes).view(kind)[:, 0]
    elif isinstance(target, list):
        half = {np.uint32: np.uint16, np.uint64: np.uint32}[kind]
        value = np.ascontiguousarray(np.broadcast_to(state.get(source, kind), 32))
        halves = value.view(half).reshape(32, 2)
        for number, name in enumerate(target):
            state.values[name] = halves[:, number]
    else:
        state.values[target] = state.get(source, kind)


def _convert(state: _State, parts: Sequence[str], target: str, *sources: str) -> None:
    if parts[-2] in ("bf16x2", "f16x2"):
        high, low = (np.broadcast_to(state.get(name, np.float32), 32) for name in sources)
        make = round_bf16 if parts[-2] == "bf16x2" else lambda v: v.astype(np.float16)
        pair = np.stack([make(low).view(np.uint16), make(high).view(np.uint16)], axis=-1)
        state.values[target] = np.ascontiguousarray(pair).view(np.uint32)[:, 0]
        return
    if parts[-2:] in (["f32", "bf16"], ("f32", "bf16")):
        bits = state.get(sources[0], np.uint16).astype(np.uint32) << np.uint32(16)
        state.values[target] = bits.view(np.float32)
        return
    if tuple(parts[-2:]) == ("f32", "f16"):
        state.values[target] = state.get(sources[0], np.uint16).view(np.float16).astype(np.float32)
        return
    if tuple(parts[-2:]) in (("f32", "f32"), ("f64", "f64")) and parts[0] in _ROUNDINGS:
        _floats(_ROUNDINGS[parts[0]])(state, parts, target, *sources)
        return
    raise NotImplementedError(f"cvt.{'.'.join(parts)}")


_ROUNDINGS: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}

_COMPARISONS: dict[str, Any] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "hs": np.greater_equal,
}


def _compare(state: _State, parts: Sequence[str], target: str, a: str, b: str) -> None:
    kind = _TYPES[parts[-1]]
    lhs, rhs = state.get(a, kind), state.get(b, kind)
    if parts[-1].startswith("s"):
        lhs, rhs = signed(lhs), signed(rhs)
    state.values[target] = _COMPARISONS[parts[0]](lhs, rhs)


def _permute(state: _State, parts: Sequence[str], target: str, a: str, b: str, c: str) -> None:
    pair = np.stack([state.get(a, np.uint32), state.get(b, np.uint32)], axis=-1)
    data = np.ascontiguousarray(np.broadcast_to(pair, (32, 2))).view(np.uint8)
    chosen = np.broadcast_to(state.get(c, np.uint32), 32)
    picked = [data[np.arange(32), (chosen >> np.uint32(4 * i)) & np.uint32(7)] for i in range(4)]
    state.values[target] = np.ascontiguousarray(np.stack(picked, axis=-1)).view(np.uint32)[:, 0]


def _transpose(state: _State, parts: Sequence[str], target: str, source: str) -> None:
    halves = np.ascontiguousarray(np.broadcast_to(state.get(source, np.uint32), 32))
    matrix = halves.view(np.uint16).reshape(8, 8).T
    state.values[target] = np.ascontiguousarray(matrix).view(np.uint32).reshape(32)


def _floats(function: Callable[..., Any]) -> Callable[..., None]:
    def execute(state: _State, parts: Sequence[str], target: str, *sources: str) -> None:
        kind = np.float64 if parts[-1] == "f64" else np.float32
        values = [np.broadcast_to(state.get(name, kind), 32) for name in sources]
        state.values[target] = np.asarray(function(*values), kind)

    return execute


def _fused(lhs: Any, rhs: Any, addend: Any) -> Any:
    """``lhs * rhs + addend`` rounded once, but for ties: f32 in f64, f64 as sums of two."""
    if lhs.dtype == np.float32:
        return lhs.astype(np.float64) * rhs + addend
    product = lhs * rhs
    (high, low), (other_high, other_low) = _halves(lhs), _halves(rhs)
    lost = ((high * other_high - product) + high * other_low + low * other_high) + low * other_low
    total = product + addend
    back = total - product
    rounding = (product - (total - back)) + (addend - back)
    exact = total + (rounding + lost)
    return np.where(np.isfinite(exact), exact, total)


def _halves(number: Any) -> tuple[Any, Any]:
    """An f64 as a sum of two of 26 bits."""
    scaled = number * 134217729.0
    high = scaled - (scaled - number)
    return high, number - high


def _divide(state: _State, parts: Sequence[str], target: str, *sources: str) -> None:
    _floats(_divide_down if "rz" in parts else np.divide)(state, parts, target, *sources)


def _divide_down(lhs: Any, rhs: Any) -> Any:
    """The quotient of positive numbers rounded towards zero."""
    nearest = np.divide(lhs, rhs)
    made = []
    for a, b, q in zip(lhs, rhs, nearest, strict=True):
        known = np.isfinite(a) and np.isfinite(b) and np.isfinite(q) and b
        above = known and Fraction(float(q)) * Fraction(float(b)) > Fraction(float(a))
        made.append(np.nextafter(q, 0) if above else q)
    return np.array(made, lhs.dtype)


def _integers(function: Callable[..., Any]) -> Callable[..., None]:
    def execute(state: _State, parts: Sequence[str], target: str, *sources: str) -> None:
        kind = _TYPES[parts[-1]]
        state.values[target] = np.asarray(function(*[state.get(n, kind) for n in sources]), kind)

    return execute


def _nothing(state: _State, parts: Sequence[str], *operands: Any) -> None:
    if parts[:1] == ["proxy"] or "proxy" in parts:
        state.warp.cta.shared.fence(state.warp.identity)


def _minimum(state: _State, parts: Sequence[str], *operands: str) -> None:
    _floats(np.minimum if "NaN" in parts else np.fmin)(state, parts, *operands)


def _maximum(state: _State, parts: Sequence[str], *operands: str) -> None:
    _floats(np.maximum if "NaN" in parts else np.fmax)(state, parts, *operands)


def _atomic(state: _State, parts: Sequence[str], target: str, address: str, source: str) -> None:
    space = "shared" if "shared" in parts else "global"
    if "add" not in parts or state.warp.active != 1:
        raise NotImplementedError(f"atom.{'.'.join(parts)}, or by several lanes")
    place = state.address(address)
    before = state.warp.load(space, place, 4).view(np.uint32)[:, 0]
    after = np.asarray(before + state.get(source, np.uint32), np.uint32)
    state.warp.store(space, place, np.ascontiguousarray(after[:, None]).view(np.uint8))
    state.values[target] = before


def _complete_bytes(state: _State, parts: Sequence[str], address: str, count: str) -> None:
    if parts[0] != "complete_tx":
        raise NotImplementedError(f"mbarrier.{'.'.join(parts)}")
    barrier = state.warp.barrier_at(int(state.warp.one(state.address(address))))
    barrier.complete(int(state.warp.one(state.get(count, np.uint32))))


def _copy(state: _State, parts: Sequence[str], *operands: str) -> None:
    warp = state.warp
    if parts == ("async", "commit_group"):
        warp.commit_copies()
    elif parts == ("async", "wait_group"):
        warp.wait_copies(int(operands[0]))
    elif parts[:2] in (("async", "cg"), ("async", "ca")):
        target, source, width, *size = operands
        count = state.get(size[0], np.uint32) if size else np.uint32(int(width))
        warp.copy_line(state.address(target), state.address(source), int(width), count)
    elif parts[:4] == ("async", "bulk", "shared_cluster", "global"):
        target, source, width, barrier = operands
        places = [warp.one(state.address(each)) for each in (target, source, barrier)]
        size = warp.one(state.get(width, np.uint32))
        warp.global_copy(places[0], places[1], size, places[2])
    elif parts == ("async", "bulk", "prefetch", "L2", "global"):
        _fetch(state, *operands)
    else:
        raise NotImplementedError(f"cp.{'.'.join(parts)}")


def _fetch(state: _State, source: str, width: str) -> None:
    """Memory that is brought to a cache: all that can be seen of it is that it has to be there."""
    size = np.broadcast_to(state.get(width, np.uint32), 32)[state.warp.mask]
    if not size.all() or (size % 16).any():
        raise SimulationError("fetches bytes to a cache that are none or no multiple of 16")
    first = np.broadcast_to(state.address(source), 32)
    last = first + np.broadcast_to(state.get(width, np.uint64), 32) - np.uint64(16)
    for address in (first, last):
        state.warp.load("global", address, 16)


def _vote(state: _State, parts: Sequence[str], target: str, source: str, _: str) -> None:
    if parts != ("sync", "ballot", "b32") or not state.warp.mask.all():
        raise NotImplementedError(f"vote.{'.'.join(parts)}, or with lanes that do not take part")
    lanes = np.broadcast_to(state.get(source), 32).astype(np.uint64)
    state.values[target] = np.uint32((lanes << np.arange(32, dtype=np.uint64)).sum())


def _multiply(state: _State, parts: Sequence[str], *operands: Any) -> None:
    warp = state.warp
    match parts[0]:
        case "fence":
            return
        case "commit_group":
            warp.commit_products()
        case "wait_group":
            warp.wait_products(int(operands[0]))
            for name, register in state.values.items():
                state.values[name] = register_products.awaited(warp, register)
        case "mma_async":
            sums, lhs, rhs, keep, *signs = operands
            assert signs[:2] == ["1", "1"], signs
            left = [state.get(name) for name in lhs] if isinstance(lhs, list) else None
            made = register_products.multiply(
                warp,
                parts,
                [state.values.get(name) for name in sums],
                left or warp.one(state.get(lhs)),
                warp.one(state.get(rhs)),
                not warp.one(state.get(keep)),
                [int(each) for each in signs[2:]],
            )
            state.values.update(zip(sums, made, strict=True))
        case other:
            raise NotImplementedError(f"wgmma.{other}")


_INSTRUCTIONS: dict[str, Callable[..., None]] = {
    "ld": _load,
    "ldmatrix": _load_matrices,
    "st": _store,
    "atom": _atomic,
    "mapa": _map_address,
    "mov": _move,
    "cvt": _convert,
    "setp": _compare,
    "prmt": _permute,
    "movmatrix": _transpose,
    "mbarrier": _complete_bytes,
    "fence": _nothing,
    "griddepcontrol": _nothing,
    "ex2": _floats(np.exp2),
    "lg2": _floats(np.log2),
    "rcp": _floats(lambda a: 1 / a),
    "tanh": _floats(np.tanh),
    "rsqrt": _floats(lambda a: 1 / np.sqrt(a)),
    "sqrt": _floats(np.sqrt),
    "div": _divide,
    "fma": _floats(_fused),
    "abs": _floats(np.abs),
    "neg": _floats(np.negative),
    "copysign": _floats(lambda sign, number: np.copysign(number, sign)),
    "min": _minimum,
    "max": _maximum,
    "add": _integers(np.add),
    "bar": _nothing,
    "nanosleep": _nothing,
    "cp": _copy,
    "vote": _vote,
    "wgmma": _multiply,
    "xor": _integers(np.bitwise_xor),
}
