"""Entry point; see bench/run --help."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import (
    against, breakdown_suite, checkpoint_suite, collectives_suite, gallery, gpu_suite, hosts_suite, machine,
    memory_suite, optimizers_suite, options, process, report, restarts_suite, scaling_suite, startup_suite,
    train_suite, two_hosts,
)
from .bench import Bench
from .failure import BenchFailure, NotRun, Stopped
from .journal import Journal
from .registry import Programs

_ROOT = Path(__file__).resolve().parents[2]
_TEXT_BYTES = 8 << 20
_NOT_RUN = 77  # ctest reports this code as a skipped test


def main(arguments: Sequence[str]) -> int:
    """Runs the suites that the command line names. Returns the exit code."""
    asked = options.parse(arguments, _ROOT)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    process.adopt_orphans()
    try:
        if "gpu" in asked.suites:
            gpu_suite.present()  # before anything is installed or measured
        if "hosts" in asked.suites:
            two_hosts.TwoHosts().close()
        peers = _ROOT / "bench" / "peers"
        needs_peers = not asked.against and not set(asked.suites) <= {"breakdown", "scaling", "optimizers"}
        python = asked.python or (_peers_python(peers) if needs_peers else "")
        programs = Programs(asked.build, peers, python)
        missing = programs.missing()
        if asked.against:
            missing += Programs(asked.against, peers, python).missing()
        if missing:
            raise BenchFailure("not built or not there: " + ", ".join(missing))
        _run(asked, programs, shlex.join(["bench/run", *arguments]))
        return 0
    except NotRun as why:
        print(f"bench/run: --suite hosts: not run: {why}", file=sys.stderr)
        return _NOT_RUN
    except BenchFailure as failure:
        print(f"bench/run: {failure}", file=sys.stderr)
        return 1
    except (Stopped, KeyboardInterrupt):
        print("bench/run: stopped", file=sys.stderr)
        return 130
    finally:
        process.kill_orphans()


def _run(asked: options.Options, programs: Programs, command: str) -> None:
    place = machine.look(_ROOT, asked.build, programs.python or None)
    usual = asked.build / "against" if asked.against else _ROOT / "docs" / "benchmarks" / place.folder_name
    out = asked.out or usual
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out / "results.jsonl")
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        text = asked.text or _own_sources(Path(folder) / "text")
        bench = Bench(programs, text, asked.build / "bench-logs", journal, blocks=asked.blocks,
                      quick=asked.quick, pinned=asked.pinned, wanted=asked.wanted,
                      against=asked.against)
        try:
            _run_suites(asked, bench)
        finally:
            journal.close()
            # After a failure the journal keeps what was measured, but no report is written.
            if sys.exc_info()[0] is None:
                _publish(bench, place, command, out, asked)


def _run_suites(asked: options.Options, bench: Bench) -> None:
    """Runs the suites in the order in which they disturb each other least."""
    if "train" in asked.suites:
        train_suite.run(bench, asked.models)
    if "hooks" in asked.suites:
        train_suite.run_hooks(bench, asked.models)
    if "breakdown" in asked.suites:
        breakdown_suite.run(bench, asked.breakdown_models)
    if "memory" in asked.suites:
        memory_suite.run(bench, [m for m in asked.models if not asked.quick or m == "A"])
    if "collectives" in asked.suites:
        collectives_suite.run(bench)
    if "startup" in asked.suites:
        startup_suite.run(bench)
    if "checkpoint" in asked.suites:
        checkpoint_suite.run(bench)
    if "restarts" in asked.suites:
        restarts_suite.run(bench)
    if "scaling" in asked.suites:
        scaling_suite.run(bench)
    if "optimizers" in asked.suites:
        optimizers_suite.run(bench)
    if "hosts" in asked.suites:
        hosts_suite.run(bench)
    if "gpu" in asked.suites:
        gpu_suite.run(bench, asked.gpu_models)


def _publish(
    bench: Bench, place: machine.Machine, command: str, out: Path, asked: options.Options
) -> None:
    cpu = f"{place.cores}-core {place.cpu}"
    if asked.against:
        found = against.comparisons(bench.findings)
        (out / "against.md").write_text(against.write(found, command, cpu), encoding="utf-8")
        bench.say(f"written: {out / 'against.md'}")
        misses = [comparison.what for comparison in found if comparison.is_miss]
        if misses:
            raise BenchFailure("slower than the other build: " + "; ".join(misses))
        return
    charts = gallery.draw(bench.findings, cpu)
    for name, svg in charts.items():
        (out / name).write_text(svg, encoding="utf-8")
    minutes = (time.monotonic() - bench.began) / 60
    page = report.write(bench.findings, place, command, bench.ranks, minutes, list(charts),
                        asked.quick, asked.pinned)
    (out / "results.md").write_text(page, encoding="utf-8")
    bench.say(f"written: {out}")


def _peers_python(peers: Path) -> str:
    """Creates the peers' environment if it is missing; its progress goes to stderr."""
    try:
        done = subprocess.run([peers / "setup.sh"], stdout=subprocess.PIPE, text=True)
    except OSError as error:
        raise BenchFailure(f"{peers / 'setup.sh'}: {error}") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise BenchFailure(f"{peers / 'setup.sh'}: {process.describe_end(done.returncode)}")
    return lines[-1]


def _own_sources(path: Path) -> Path:
    """A text that every copy of the tree has: its sources, in order of their names."""
    folders = ("include", "core", "ddp", "fsdp", "optim", "zero")
    files = sorted(f for d in folders for f in (_ROOT / d).rglob("*") if f.suffix in (".h", ".cc"))
    path.write_bytes(b"".join(f.read_bytes() for f in files)[:_TEXT_BYTES])
    return path


def _stop(*_: object) -> None:
    raise Stopped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
