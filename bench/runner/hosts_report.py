"""The report's section on two hosts."""

from __future__ import annotations

from . import hosts_goal
from .findings import Findings
from .hosts_findings import Hosts, Place
from .markdown import table
from .spread import medians
from .training_report import cell, minima

# The peer with which each of our strategies is compared.
_RIVALS = {"ddp": hosts_goal.DDP, "zero1": hosts_goal.DDP, "zero2": hosts_goal.DDP, "zero3": hosts_goal.FSDP2,
           "ddp-bf16": "pytorch ddp-bf16, mmap_max 0", "ddp-powersgd": "pytorch ddp-powersgd, mmap_max 0"}


def text(findings: Findings) -> str:
    """One table for each number of ranks and each link."""
    hosts = findings.hosts
    if not hosts.found:
        return ""
    page = (
        "Model A, fp32. A host is a network and UTS namespace of this machine; a veth pair joins them, limited by "
        "`tc tbf` in both directions. Ours over Open MPI's mpirun, PyTorch over Gloo on the same link, all "
        "in turn. Each host has half of the cores. Bytes: of the host that sent most, per step, counted by the "
        "interface with all headers; formula: of data alone.\n\n")
    for per_host, first in sorted(hosts.first_bucket_ms.items()):
        page += f"{per_host} per host: all ranks have the first bucket of `ddp` after {first.text(0)} ms.\n\n"
    return page + "\n".join(_place(findings, at) for at in hosts.found)


def _place(findings: Findings, at: Place) -> str:
    hosts = findings.hosts
    floor = hosts.floor(at)
    rows = []
    for name, hosted in hosts.found[at].items():
        strategy = name.removeprefix("tessera ") if name.startswith("tessera ") else ""
        expected = hosts_goal.sent_formula(findings, strategy)
        over = hosts.ratio(at, name, floor) if floor else None
        gained = hosts.ratio(at, _RIVALS.get(strategy), name)
        rows.append([
            name, medians(hosted.rounds).text(0), cell(over), f"{hosted.mean_sent_bytes / 1e6:.2f}",
            f"{expected / 1e6:.2f}" if expected is not None else "-",
            f"{at.wire_ms(hosted.mean_sent_bytes):.0f}", cell(gained), minima(gained)])
    return f"### {at.name}\n\nFloor: {floor or 'not measured'}.{_bound(hosts, at, findings)}\n\n" + table(
        ["entry", "step, ms [range]", "over the floor [range]", "MB sent per host", "formula", "their wire time, ms",
         "PyTorch's step over ours [range]", "of minima"], rows)


def _bound(hosts: Hosts, at: Place, findings: Findings) -> str:
    bound = hosts.bound(at, hosts_goal.sent_formula(findings, "ddp") or 0.0)
    return f" The larger of floor and (first bucket + wire): {medians(bound).text(0)} ms." if bound else ""
