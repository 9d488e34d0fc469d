# Part of shapejit, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Traces of requests with varying shapes through shapejit and through what one would use instead.

Each system serves the trace once in order of arrival, cold, and then several times warm, in a
process of its own that starts with empty caches of compiled code. Measured are the wall time of
each request until its result is there, the host's share of it, device memory with all that a
system takes, sizes never seen before, and whether the results are right.

    python bench/traces.py minilm                          # all systems, as far as time allows
    python bench/traces.py bert --peers compile-auto       # one, beside eager and shapejit
    python bench/traces.py minilm --peers floor,checks     # against exact-shape graphs; accuracy
    python bench/traces.py resnet resnet_odd unet video --peers floor
    python bench/traces.py video: llama:buckets,compile-dynamic   # the peers of each model
    python bench/traces.py tiny --device cpu --dtype f32 --peers buckets

A run starts no system when `--seconds` are over and goes on where the last one stopped: results are
kept in ``bench/results/traces-<GPU>.json``, with plots beside it. Eager PyTorch and shapejit are
measured in every run, for ratios within it, and of all models before anything else. At the end each
model's goals are printed beside what was measured. The exit status is 1 if a system failed or gave
a wrong result, whatever the figures are. `trace_merge.py` joins the results of several machines or
calls in one file.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peers import ANCHORS, CHECKS, DISK, EAGER, FLOOR, LARGEST, OURS
from trace_criteria import criteria_text
from trace_exact import Exact
from trace_models import DTYPES, WORKLOADS, real_weights
from trace_report import dumps, plot, table
from trace_results import SYSTEMS, measured, merged, of_all_workloads, plot_path
from trace_worker import Task

HERE = Path(__file__).parent
RESULTS = HERE / "results"
WORKER = HERE / "trace_worker.py"
#: What defines models, inputs and what is kept of exact results.
SOURCES = (
    *(HERE / f"trace_{name}.py" for name in ("models", "images", "workload", "exact")),
    HERE.parent / "test" / "model" / "vision.py",
    HERE / "traces.json",
)
_LEAST_SECONDS = 30.0
_GRACE_SECONDS = 45.0


@dataclass(frozen=True)
class Session:
    """One run of this script over one model.

    Attributes:
        scratch: exact results and caches; kept between runs on the same machine.
        end: of `time.monotonic`, when no system is started any more.
    """

    arguments: argparse.Namespace
    workload: str
    scratch: Path
    end: float

    def measure(self, peer: str) -> dict[str, Any]:
        """What a process measured of a system; says under "error" what went wrong."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            result = Path(folder, "result.json")
            task = self._task(peer, result)
            Path(folder, "task.json").write_text(json.dumps(asdict(task)))
            start = time.monotonic()
            log, status = self._process(peer, Path(folder), task.seconds + _GRACE_SECONDS)
            record: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        record["process_s"] = round(time.monotonic() - start, 1)
        if status is None:
            record["stopped"] = f"after {record['process_s']} s"
        if status and "error" not in record:
            record["error"] = f"the process ended with {status}: {log.strip()[-300:]}"
        if "error" in record:
            print(log[-2000:], flush=True)
        return record

    @property
    def exact(self) -> Exact:
        """The exact results, which all systems of a setting share."""
        given = setting(self.arguments, self.workload)
        sources = [path.read_bytes() for path in SOURCES]
        facts = json.dumps([given, self.arguments.device, torch.__version__]).encode()
        digest = hashlib.sha256(b"".join([facts, *sources])).hexdigest()[:16]
        return Exact(self.scratch / f"exact-{self.workload}-{digest}")

    def _task(self, peer: str, result: Path) -> Task:
        given = self.arguments
        return Task(
            workload=self.workload,
            peer=peer,
            device=given.device,
            dtype=given.dtype,
            requests=given.requests,
            passes=given.passes,
            seconds=max(self.end - time.monotonic(), _LEAST_SECONDS),
            seed=given.seed,
            exact=str(self.exact.folder),
            result=str(result),
        )

    def _process(self, peer: str, folder: Path, seconds: float) -> tuple[str, int | None]:
        """Output and status of a worker, None for one that took too long."""
        command = [sys.executable, str(WORKER), str(folder / "task.json")]
        process = subprocess.Popen(
            command, env=self._environment(peer, folder), start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            log, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Its own children too, which torch.compile has.
            os.killpg(process.pid, signal.SIGKILL)
            log, _ = process.communicate()
            return log, None
        return log, process.returncode

    def _environment(self, peer: str, folder: Path) -> dict[str, str]:
        """Empty caches, but for what measures no compile: it may have shapejit's kernels."""
        caches = folder
        if peer in (OURS, FLOOR, CHECKS, LARGEST, DISK):
            caches = self.scratch / f"kernels-{self.workload}"
        if peer == OURS:
            shutil.rmtree(caches, ignore_errors=True)
        # A CPU serves to try this out, beside whatever else runs there.
        threads = {"OMP_NUM_THREADS": "1"} if self.arguments.device == "cpu" else {}
        return {
            **os.environ,
            **threads,
            "SHAPEJIT_CACHE_DIR": str(caches / "shapejit"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
        }


# ---------------------------------------------------------------------------
# What a run is
# ---------------------------------------------------------------------------


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """GPU, versions and commit of a run."""
    gpu = arguments.device == "cuda"
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True,
        check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "commit": arguments.commit or described or "unknown",
    }


def setting(arguments: argparse.Namespace, workload: str) -> dict[str, Any]:
    """What has to be the same for results to stand side by side."""
    return {
        "workload": workload,
        "dtype": arguments.dtype,
        "requests": arguments.requests,
        "weights": "real" if workload == "minilm" and real_weights() else "random",
    }


def todo(
    arguments: argparse.Namespace, results: dict[str, Any], workload: str
) -> tuple[list[str], list[str]]:
    """Systems to measure first, and later.

    First come the anchors, and what the workload's own goals are about; later what was asked for
    and is not there.
    """
    peers = arguments.of_model.get(workload, arguments.peers)
    asked = list(SYSTEMS) if peers == ["all"] else peers
    done = set() if arguments.again else measured(results, setting(arguments, workload))
    if arguments.device == "cpu":
        done.add(FLOOR)
    first = list(ANCHORS)
    if WORKLOADS[workload]().memory_of_largest:
        first.append(LARGEST)
    elif peers == ["all"]:
        done.add(LARGEST)
    return first, [name for name in asked if name not in first and name not in done]


# ---------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------


def measure(
    session: Session, results: dict[str, Any], systems: dict[str, Any], names: Sequence[str]
) -> None:
    """Measures systems with one model, and writes the results after each."""
    workload = session.workload
    for name in names:
        if time.monotonic() > session.end - _LEAST_SECONDS:
            print(f"{workload} {name}: no time left", flush=True)
            continue
        record = session.measure(name)
        told = record.get("error") or record.get("stopped") or "done"
        print(f"{workload} {name}: {told}, {record['process_s']} s", flush=True)
        if name == EAGER and not session.exact.complete:
            record.setdefault("error", "it left no exact results to compare others with")
        systems[name] = record
        session.arguments.output.write_text(dumps(results) + "\n")


def report(session: Session, results: dict[str, Any], systems: dict[str, Any]) -> None:
    """Prints tables of this run and of all runs, and draws the plot."""
    workload, arguments = session.workload, session.arguments
    title = f"{workload}, {arguments.dtype}, {results['runs'][-1]['environment']['device']}"
    print(f"\n{title}: this run")
    print(table(systems))
    wanted = setting(arguments, workload)
    everything = merged(results, wanted)
    if set(everything) - set(systems):
        print("with the systems of earlier runs")
        print(table(everything))
    if goals := criteria_text(workload, of_all_workloads(results, wanted)):
        print(goals)
    try:
        plot(everything, title, plot_path(arguments.output, workload))
    except ModuleNotFoundError as error:  # hosts with a GPU may have little else
        print(f"no plot: {error}")


def run(arguments: argparse.Namespace, results: dict[str, Any]) -> bool:
    """Measures all workloads, of each first what matters most; whether all systems were right."""
    end = time.monotonic() + arguments.seconds
    sessions = [Session(arguments, name, arguments.scratch, end) for name in arguments.workloads]
    names = [todo(arguments, results, session.workload) for session in sessions]
    found: list[dict[str, Any]] = [{} for _ in sessions]
    for session, systems in zip(sessions, found, strict=True):
        wanted = setting(arguments, session.workload)
        results["runs"].append(
            {"environment": environment(arguments), "setting": wanted, "systems": systems}
        )
    for turn in range(2):
        for session, systems, both in zip(sessions, found, names, strict=True):
            if both[turn]:
                measure(session, results, systems, both[turn])
                report(session, results, systems)
    return not any("error" in record for systems in found for record in systems.values())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    models = f"{', '.join(WORKLOADS)}; after a colon its own peers, or none"
    parser.add_argument("workloads", nargs="+", metavar="MODEL[:PEERS]", help=models)
    parser.add_argument("--peers", default="all", help=f"all, or some of {', '.join(SYSTEMS)}")
    parser.add_argument("--seconds", type=float, default=420, help="start nothing after")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--requests", type=int, default=120, help="how much of the trace to use")
    parser.add_argument("--passes", type=int, default=5, help="warm passes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", help="of the sources, where they are no repository")
    parser.add_argument("--scratch", type=Path, help="folder for exact results and caches")
    parser.add_argument("--output", type=Path, help="file of results")
    given = parser.parse_args(arguments)
    given.peers = _names(given.peers)
    models = [each.partition(":") for each in given.workloads]
    given.workloads = [name for name, _, _ in models]
    given.of_model = {name: _names(peers) for name, own, peers in models if own}
    asked = [*given.peers, *itertools.chain(*given.of_model.values())]
    for kind, names, known in (
        ("model", given.workloads, WORKLOADS), ("peer", asked, (*SYSTEMS, "all"))
    ):  # fmt: skip
        if unknown := [name for name in names if name not in known]:
            parser.error(f"no such {kind}: {', '.join(unknown)}; there are {', '.join(known)}")
    if given.scratch is None:
        given.scratch = Path(tempfile.gettempdir()) / "shapejit-traces"
    given.scratch.mkdir(parents=True, exist_ok=True)
    if given.output is None:
        name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
        stem = name.replace("NVIDIA ", "").replace(" ", "-").lower()
        given.output = RESULTS / f"traces-{stem}.json"
    return given


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> int:
    arguments = parse()
    results: dict[str, Any] = {"runs": []}
    if arguments.output.exists():
        results = json.loads(arguments.output.read_text())
    return 0 if run(arguments, results) else 1


if __name__ == "__main__":
    sys.exit(main())
