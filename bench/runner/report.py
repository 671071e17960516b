"""results.md: all findings of a run in tables."""

from __future__ import annotations

from . import (
    breakdown_report, goal, gpu_report, hosts_goal, hosts_report, optimizers_report, scaling_model, training_report,
)
from .findings import Findings
from .gallery import size_text
from .machine import Machine
from .markdown import bullets, table
from .spread import Spread, medians, ratio
from .training_report import cell, minima


def write(
    findings: Findings, machine: Machine, command: str, ranks: int, minutes: float,
    charts: list[str], quick: bool, pinned: bool,
) -> str:
    """The whole page."""
    parts = [_header(machine, command, minutes, quick, pinned)]
    for title, body in (
        ("Summary", training_report.summary(findings)),
        ("Goals", _goals(findings)),
        ("Charts", "\n".join(f"![{name}]({name})" for name in charts)),
        ("Training", training_report.models(findings, ranks)),
        ("Where the time goes", breakdown_report.text(findings, ranks)),
        ("Memory", _memory(findings)),
        ("Collectives", _collectives(findings)),
        ("Start-up", _startup(findings)),
        ("Checkpoints", _checkpoints(findings)),
        ("Restarts", _restarts(findings)),
        ("Scaling", _scaling(findings)),
        ("Optimizers", optimizers_report.text(findings)),
        ("Two hosts", hosts_report.text(findings)),
        ("GPU", gpu_report.text(findings)),
        ("Quality of this run", _quality(findings)),
    ):
        if body:
            parts.append(f"## {title}\n\n{body.rstrip()}\n")
    return "\n".join(parts)


def _header(machine: Machine, command: str, minutes: float, quick: bool, pinned: bool) -> str:
    text = "# Results\n\n"
    if quick:
        text += "**A smoke test (`--quick`): one round, few steps. Quote none of these numbers.**\n\n"
    rows = [
        ("command", f"`{command}`"),
        ("date", f"{machine.date}, {minutes:.0f} minutes"),
        ("machine", f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB"),
        ("kernel", f"Linux {machine.kernel}, transparent huge pages: {machine.huge_pages}"),
        ("Tessera", f"{machine.commit}, {machine.compiler}, LibTorch {machine.libtorch}"),
        ("peers", "none" if machine.peers_torch == "none" else
         f"PyTorch {machine.peers_torch}, Gloo over the loopback interface"),
        ("each rank", "one process, one thread, "
         + ("pinned to a core if there are enough" if pinned else "on any core")),
    ]
    return text + "| | |\n|---|---|\n" + "".join(f"| {k} | {v} |\n" for k, v in rows)


def _goals(findings: Findings) -> str:
    rows, count = [], {"met": 0, "**missed**": 0, "not measured": 0}
    for one in [*goal.goals(), *hosts_goal.goals()]:
        seen = one.measure(findings)
        result = one.result(seen)
        count[result] += 1
        if seen is None:
            continue
        bound = f"{'>=' if one.at_least else '<='} {one.bound:g}{one.unit}"
        note = result
        if seen.low <= one.bound <= seen.high and seen.low < seen.high:
            note += ", bound within the range"
        rows.append([f"{one.number}. {one.name}", bound, seen.text(), minima(seen), note])
    if not rows:
        return ""
    text = (
        f"{count['met']} met, {count['**missed**']} missed, {count['not measured']} not measured "
        "here. By the median; what is quoted against a peer is against its fastest variant.\n\n"
    )
    return text + table(["goal", "bound", "measured [range]", "of minima", ""], rows)


def _memory(findings: Findings) -> str:
    text = ""
    for model, found in findings.memory.items():
        rows = []
        for name, memory in found.items():
            above = memory.peak_above_idle_mib
            after = (memory.after_kib - memory.idle_kib) / 1024
            rows.append([name, f"{memory.idle_kib / 1024:.0f}", f"{above:,.0f}", f"{after:,.0f}"])
        text += f"### Model {model}\n\n" + table(
            ["entry", "idle, MiB", "peak above idle, MiB", "after 10 steps, above idle, MiB"],
            rows) + "\n"
    if text:
        text = (
            "Private and shared memory per rank (PSS without files), mean over ranks; the peak is "
            "the highest of samples every 20 ms during 10 steps. Each entry alone.\n\n" + text
        )
    return text


def _collectives(findings: Findings) -> str:
    text = ""
    for world in sorted({call.world for call in findings.collectives}):
        rows = []
        for call in sorted(c for c in findings.collectives if c.world == world):
            found = findings.collectives[call]
            row = [f"{call.op}, {size_text(call.size_bytes)}, {call.dtype}"
                   if call.size_bytes else call.op]
            for name in ("tessera", "pytorch gloo"):
                row.append(medians(found[name]).text(1) if name in found else "-")
            gained = ratio(found.get("pytorch gloo", {}), found.get("tessera", {}))
            row += [cell(gained), minima(gained), _bandwidth(findings, call)]
            rows.append(row)
        text += f"### {world} ranks\n\n" + table(
            ["call", "Tessera, us [range]", "Gloo, us [range]", "times as fast [range]",
             "of minima", "algbw of Tessera, GB/s"], rows) + "\n"
    return text


def _bandwidth(findings: Findings, call: goal.Call) -> str:
    found = findings.collectives[call].get("tessera")
    if not found or not call.size_bytes:
        return "-"
    return f"{call.size_bytes / (medians(found).median * 1e-6) / 1e9:.1f}"


def _startup(findings: Findings) -> str:
    if not findings.startup:
        return ""
    rows = []
    for name, rounds in findings.startup.items():
        rows.append([name, medians(rounds).text()])
    return "Seconds from the start of the job to the end of the first step of A on all ranks, " \
        "page cache warm.\n\n" + table(["start", "seconds [range]"], rows)


def _checkpoints(findings: Findings) -> str:
    if not findings.checkpoints:
        return ""
    rows = []
    ours = findings.checkpoints.get("tessera zero3", {})
    for name, by_operation in findings.checkpoints.items():
        plain = by_operation.get("write", ours.get("write"))
        for what, saving in by_operation.items():
            spread = medians(saving.rounds)
            beside = ratio(saving.rounds, plain.rounds) if plain else None
            rows.append([name, what, spread.text(1),
                         f"{saving.size_bytes / 2**20 / (spread.median / 1e3):.0f}",
                         beside.text() if beside else "-",
                         Spread.of(kib / 1024 for kib in saving.grown_kib.values()).text(1)])
    return "Milliseconds of the slowest rank, the state on the disk of the build folder. `stall`: a save in " \
        "the background, up to where training goes on; `copy`: one memcpy of what a rank saves; `write`: as " \
        "many bytes into one file per rank, with an fsync; a peer's are compared with those of zero3. " \
        "`memory`: what the resident memory of a rank grows by meanwhile, at most.\n\n" + table(
            ["entry", "operation", "ms [range]", "MiB/s", "over `write`", "memory, MiB [range]"], rows)


def _restarts(findings: Findings) -> str:
    if not findings.restarts:
        return ""
    rows = [[name, str(len(found.restart)), medians(found.start).text(), medians(found.restart).text(),
             found.beyond().text()] for name, found in findings.restarts.items()]
    return "Seconds to the first step on all ranks, model A: from the start of the launcher; and from SIGKILL for one " \
        "rank in the middle of a step to the first step of the ranks that were started again. `beyond`: what the " \
        "second takes longer, round by round.\n\n" + table(
            ["entry", "faults", "start, s [range]", "restart, s [range]", "beyond, s [range]"], rows)


def _scaling(findings: Findings) -> str:
    if not findings.scaling:
        return ""
    worlds = sorted({w for by_world in findings.scaling.values() for w in by_world})
    rows = []
    for strategy, by_world in findings.scaling.items():
        rows.append([strategy, *(medians(by_world[w].cpu_ms).text(1) if w in by_world else "-"
                                 for w in worlds)])
    text = "CPU milliseconds per rank and step [range], model A, one thread per rank:\n\n"
    text += table(["strategy", *(f"{w} ranks" for w in worlds)], rows)
    if not findings.call_paces:
        return text
    rows = [
        [f"{e.what}, {e.world} ranks", f"{e.measured:.1f} {e.unit}", f"{e.expected:.1f} {e.unit}",
         e.ratio.text(),
         f"{e.measured - e.floor:+.1f} / {e.expected - e.floor:+.1f}" if e.floor else "-"]
        for e in scaling_model.expectations(findings)
    ]
    paces = [pace for by_round in findings.call_paces.values() for pace in by_round.values()]
    read = Spread.of(1e-9 / pace.read_s for pace in paces)
    copy = Spread.of(1e-9 / (pace.read_s + pace.write_s) for pace in paces)
    text += (
        f"\nAgainst the traffic model. While all cores do the same, a core reads {read.text(1)} and "
        f"copies {copy.text(1)} GB/s, measured before and after every call: a byte read costs the one, a byte "
        "written what copying takes longer. A collective lasts as long as its ranks' bytes, shared "
        "by the cores; a step costs the floor's CPU time in the same round plus its bytes.\n\n"
    )
    return text + table(
        ["what", "measured", "model", "measured / model, by round",
         "beyond the floor, measured / model"], rows)


def _quality(findings: Findings) -> str:
    return (
        "Loss curves:\n\n" + bullets(findings.agreements)
        + f"\nBlocks dropped and run again because of a disturbance: {len(findings.dropped)}.\n\n"
        + (bullets(findings.dropped) if findings.dropped else "")
        + f"\nBlocks kept although disturbed: {len(findings.noisy)}.\n\n"
        + (bullets(findings.noisy) if findings.noisy else "")
        + "\nWarnings:\n\n" + bullets(findings.warnings)
    )
