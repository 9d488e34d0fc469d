# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Keys: equal problems have one key, and a change of anything gives another."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapejit.cache import fingerprint
from shapejit.cache.key import (
    TargetKey,
    VariantKey,
    canonical_json,
    record_digest,
    sorted_items,
    split_features,
)
from unit.cache_samples import TARGET, examples, sample_key

# Texts that try to break out of their field.
names = st.text(
    st.one_of(st.sampled_from('",:[]{}\\\0\n +-'), st.characters(exclude_categories=["Cs"])),
    max_size=6,
)
scalars = st.one_of(st.integers(-4, 2**70), st.booleans(), names)
items = st.dictionaries(names, scalars, max_size=3).map(sorted_items)
strings = st.lists(names, max_size=3).map(tuple)
targets = st.builds(TargetKey, names, names, strings, st.integers(0, 64))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "kind": names,
    "dtypes": strings,
    "layouts": strings,
    "math_mode": names,
    "epilogue": names,
    "text": names,
    "schedule": items,
    "alignment": st.integers(0, 2**40),
    "parameters": names,
    "index_bits": st.integers(0, 128),
    "target": targets,
    "opt_level": st.integers(0, 3),
    "toolchain": items,
    "passes": names,
}
keys = st.builds(VariantKey, **FIELDS)


def test_the_strategies_cover_every_field() -> None:
    assert FIELDS.keys() == {field.name for field in dataclasses.fields(VariantKey) if field.init}


@examples(80)
@given(keys, keys)
def test_two_keys_have_one_digest_only_if_they_are_equal(
    one: VariantKey, other: VariantKey
) -> None:
    assert (one.digest == other.digest) == (
        canonical_json(one.record()) == canonical_json(other.record())
    )
    if one != other:
        assert one.digest != other.digest


@examples(80)
@given(keys, st.data())
def test_a_change_of_any_field_changes_the_digest(key: VariantKey, data: st.DataObject) -> None:
    for name, strategy in FIELDS.items():
        value = data.draw(strategy, name)
        changed = dataclasses.replace(key, **{name: value})
        same = canonical_json(changed.record()) == canonical_json(key.record())
        assert (changed.digest == key.digest) == same
        assert same == (repr(getattr(changed, name)) == repr(getattr(key, name)))


@examples(80)
@given(st.sampled_from([f.name for f in dataclasses.fields(TargetKey)]), st.data())
def test_a_change_of_any_field_of_the_target_changes_the_digest(
    name: str, data: st.DataObject
) -> None:
    kinds = {"triple": names, "cpu": names, "features": strings, "vector_bytes": st.integers(0, 64)}
    value = data.draw(kinds[name])
    changed = sample_key(target=dataclasses.replace(TARGET, **{name: value}))
    assert (changed.digest == sample_key().digest) == (value == getattr(TARGET, name))


@examples(80)
@given(st.lists(names, min_size=2, max_size=6), st.data())
def test_text_moved_between_fields_changes_the_digest(
    parts: list[str], data: st.DataObject
) -> None:
    """No collisions by concatenation: the same characters, split differently."""
    whole = "".join(parts)
    cuts = st.lists(st.integers(0, len(whole)), min_size=1, max_size=4).map(sorted)

    def split() -> tuple[str, ...]:
        edges = [0, *data.draw(cuts), len(whole)]
        return tuple(whole[a:b] for a, b in itertools.pairwise(edges))

    one, other = split(), split()
    by_list = sample_key(dtypes=one).digest == sample_key(dtypes=other).digest
    assert by_list == (one == other)
    cut, cut2 = len(one[0]), len(other[0])
    by_field = (
        sample_key(kind=whole[:cut], math_mode=whole[cut:]).digest
        == sample_key(kind=whole[:cut2], math_mode=whole[cut2:]).digest
    )
    assert by_field == (cut == cut2)


@examples(80)
@given(keys, st.randoms(use_true_random=False))
def test_order_without_meaning_does_not_change_the_digest(
    key: VariantKey, rng: random.Random
) -> None:
    schedule, toolchain = list(key.schedule), list(key.toolchain)
    rng.shuffle(schedule)
    rng.shuffle(toolchain)
    again = dataclasses.replace(key, schedule=tuple(schedule), toolchain=tuple(toolchain))
    assert again == key
    assert again.digest == key.digest


@examples(80)
@given(keys)
def test_the_digest_is_that_of_the_stored_record(key: VariantKey) -> None:
    stored = json.loads(json.dumps(key.record(), indent=1))
    assert record_digest(stored) == key.digest


def test_the_digest_is_fixed() -> None:
    """Entries of one version are found by another process, and by the next run."""
    assert sample_key().digest == (
        "a6a2b1301547ce92259b30a65a2e6de1eec51f13538faf0929ca7bf6f3a06594"
    )


@examples(80)
@given(
    st.lists(st.sampled_from(["avx", "avx2", "fma", "sse4a"]), max_size=5),
    st.randoms(use_true_random=False),
)
def test_features_of_one_sign_may_change_places(features: list[str], rng: random.Random) -> None:
    on = [f"+{name}" for name in features]
    shuffled = rng.sample(on, len(on))
    assert split_features(",".join(on)) == split_features(",".join(shuffled))


def test_features_of_two_signs_may_not_change_places() -> None:
    # The first has no avx512f: LLVM drops what needs avx with it.
    assert split_features("+avx512f,-avx") != split_features("-avx,+avx512f")
    assert split_features("+fma,+avx2,+fma,-b,-a,+c") == ("+avx2", "+fma", "-a", "-b", "+c")
    assert split_features("") == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"opt_level": True},
        {"opt_level": 2.0},
        {"kind": b"gemm"},
        {"dtypes": ["f32"]},
        {"dtypes": (1,)},
        {"schedule": (("panel", 1.5),)},
        {"target": None},
    ],
)
def test_a_value_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(changes))):
        sample_key(**changes)


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="schedule of a key names something twice"):
        sample_key(schedule=(("panel", 16), ("panel", 32)))


def test_surrogates_cannot_pass_for_the_character_that_they_spell() -> None:
    assert sample_key(text="\U0001f600").digest
    with pytest.raises(UnicodeEncodeError):
        sample_key(text="\ud83d\ude00")


def test_records_are_readable() -> None:
    record = sample_key().record()
    assert record["schedule"] == {"panel": 16}
    assert record["target"]["cpu"] == "znver4"
    assert record["toolchain"]["llvm"] == "22.1.8.2"


# The fingerprint of the compiler.


def test_the_toolchain_names_all_that_generates_code() -> None:
    assert [name for name, _ in fingerprint.toolchain()] == ["llvm", "mlir", "shapejit"]


def test_the_digest_of_the_passes_covers_what_generates_code() -> None:
    named = [name for name, _ in fingerprint._sources(fingerprint._PARTS)]
    assert len(named) == len(set(named))
    assert {
        "passes/lower_to_cpu.py",
        "passes/cpu/gemm.py",
        "codegen/__init__.py",
        "symbolic/expr.py",
        "cache/cubins.py",
        "cache/kernels.py",
        "gpu/interface.py",
        "passes/nvgpu/schedule.py",
        "_libs/libshapejit.so",
        "/ir.py",
        "/pass_host.py",
        "/pipeline.py",
    } <= set(named)


def test_the_digest_of_the_passes_changes_with_a_source(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_PROCESS_START", 2.0**40)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(f"# {name}")

    def digest(*named: str) -> str:
        sources = [(name, tmp_path / name) for name in named]
        monkeypatch.setattr(fingerprint, "_sources", lambda _parts: iter(sources))
        return fingerprint.pass_digest.__wrapped__()

    before = digest("a.py", "b.py")
    assert digest("a.py", "b.py") == before
    assert digest("a.py") != before
    (tmp_path / "b.py").write_text("# c.py")
    assert digest("a.py", "b.py") != before


def test_sources_newer_than_the_process_give_a_digest_of_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The modules in memory may be older than the files."""
    (tmp_path / "a.py").write_text("")
    monkeypatch.setattr(fingerprint, "_sources", lambda _parts: iter([("a.py", tmp_path / "a.py")]))
    assert fingerprint.pass_digest.__wrapped__() != fingerprint.pass_digest.__wrapped__()


def test_the_digest_of_programs_covers_the_importer_as_well() -> None:
    named = {name for name, _ in fingerprint._sources(fingerprint._PROGRAM_PARTS)}
    kernels = {name for name, _ in fingerprint._sources(fingerprint._PARTS)}
    assert {name.lstrip("/") for name in kernels} <= {name.lstrip("/") for name in named}
    assert {"/importer/convert.py", "/artefacts.py", "/weights.py"} <= named
    assert "passes/buckets/data/h200.json" in named  # what choices of schedules follow from


def test_sources_that_cannot_be_read_give_a_digest_of_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_folder", lambda part: tmp_path)
    assert fingerprint.pass_digest.__wrapped__() != fingerprint.pass_digest.__wrapped__()


def test_a_tool_of_unknown_version_gives_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_DISTRIBUTIONS", {"llvm": "no-such-distribution"})
    versions = [dict(fingerprint.toolchain.__wrapped__()) for _ in range(2)]
    assert versions[0]["llvm"] != versions[1]["llvm"]
