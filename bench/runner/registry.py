"""The entries of each suite."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .entry import Entry, Role

RANKS = 2  # of training
FLOORS = ("pytorch local", "pytorch local, mmap_max 0", "tessera local")
THREADS = "libtorch threads"  # one process: a thread for each rank, and the batches of all ranks

# Of the optimizers suite.
EIGHT_BITS = "tessera, 8 bits"
MUON_ALONE = "tessera, one rank"
MUON_THREADS = "tessera, one rank of two threads"
MUON_SPLIT = "tessera zero2, two ranks"
ITERATIONS = "iterations"
PRODUCTS = "products"
PRODUCTS_OF_TWO = "products, two processes"

# Of the hooks suite: the form of the gradients under ddp, and PyTorch's family that does the same.
HOOKS = {"weights": "", "noop": "DDP noop", "bf16": "DDP bf16", "powersgd": "DDP PowerSGD"}
_OTHER_CURVES = ("ddp-noop", "ddp-powersgd")  # ranks drift apart; matrices are drawn at random

# Of the hosts suite. Variants that send less than ddp run only where that matters most, over the
# slowest link.
_HOSTS = ("pytorch local, mmap_max 0", "tessera local", "pytorch ddp, mmap_max 0", "pytorch fsdp2, mmap_max 0",
          "tessera ddp", "tessera zero1", "tessera zero2", "tessera zero3")
_SENDS_LESS = ("bf16", "powersgd")

# Settings that make the peers fastest without changing code.
_NO_MMAP = ("MALLOC_MMAP_MAX_", "0")
_LARGE_MMAP = ("MALLOC_MMAP_THRESHOLD_", "1048576")

# Otherwise Gloo in a second attempt may find the first one's addresses in the store, and fail (PyTorch 2.11).
_NEW_STORE = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

_SLOW = ("pytorch ddp-default", "pytorch fsdp2, mmap_threshold 1 MiB")
_QUICK = ("pytorch local", "tessera local", THREADS, "pytorch ddp", "pytorch fsdp2", "tessera ddp",
          "tessera zero3", "tessera zero3-apart")


@dataclasses.dataclass(frozen=True)
class Programs:
    """The location of the entries' programs."""

    build: Path
    peers: Path
    python: str

    @property
    def launcher(self) -> str:
        return str(self.build / "bin" / "tessera-run")

    @property
    def cpp_trainer(self) -> str:
        return str(self.build / "bin" / "macro_train")

    @property
    def cpp_collectives(self) -> str:
        return str(self.build / "bin" / "macro_collectives")

    @property
    def cpp_optimizers(self) -> str:
        return str(self.build / "bin" / "macro_optimizers")

    @property
    def cpp_muon(self) -> str:
        return str(self.build / "bin" / "macro_muon")

    @property
    def cpp_gpt(self) -> str:
        return str(self.build / "bin" / "gpt")

    def missing(self) -> list[str]:
        """The missing programs."""
        wanted = [self.launcher, self.cpp_trainer, self.cpp_collectives, self.cpp_optimizers,
                  self.cpp_muon, self.cpp_gpt]
        wanted += [str(self.peers / name) for name in ("train.py", "collectives.py", "resume.py")]
        return [path for path in wanted if not Path(path).is_file()]


def training(programs: Programs, model: str, text: Path, quick: bool) -> list[Entry]:
    """Floors, peers with default and best settings, and ours, for one model."""
    everyone = _everyone(programs, model, text)
    if quick:
        return [c for c in everyone if c.name in _QUICK]
    if model in ("S", "MLP"):
        return [c for c in everyone if c.family not in ("ZeRO", "FSDP1")
                and "keep" not in c.name and "in-backward" not in c.name]
    if model in ("B", "C"):  # rounds take minutes: leave out the slow settings
        return [c for c in everyone if c.name not in _SLOW]
    return everyone


def _everyone(programs: Programs, model: str, text: Path) -> list[Entry]:
    common = ("--model", model, "--text", str(text), "--strategy")
    peer_trainer = (programs.python, str(programs.peers / "train.py"), *common)
    our_trainer = (programs.cpp_trainer, *common)

    def peer(strategy: str, family: str, *environment: tuple[str, str], tuned: str = "") -> Entry:
        role = Role.PEER if family else Role.FLOOR
        name = f"pytorch {strategy}" + (f", {tuned}" if tuned else "")
        return Entry(name, role, (*peer_trainer, strategy), environment, family)

    def ours(strategy: str) -> Entry:
        role = Role.FLOOR if strategy == "local" else Role.OURS
        return Entry(f"tessera {strategy}", role, (*our_trainer, strategy))

    return [
        peer("local", ""),
        peer("local", "", _NO_MMAP, tuned="mmap_max 0"),
        ours("local"),
        Entry(THREADS, Role.PEER, (*our_trainer, "local", "--threads", str(RANKS)), family="threads",
              alone=True),
        peer("ddp-default", "DDP"),
        peer("ddp", "DDP"),
        peer("ddp", "DDP", _NO_MMAP, tuned="mmap_max 0"),
        peer("zero", "ZeRO"),
        peer("zero", "ZeRO", _NO_MMAP, tuned="mmap_max 0"),
        peer("fsdp1", "FSDP1"),
        peer("fsdp2", "FSDP2"),
        peer("fsdp2", "FSDP2", _LARGE_MMAP, tuned="mmap_threshold 1 MiB"),
        peer("fsdp2", "FSDP2", _NO_MMAP, tuned="mmap_max 0"),
        peer("fsdp2-keep", "FSDP2"),
        peer("fsdp2-keep", "FSDP2", _NO_MMAP, tuned="mmap_max 0"),
        *(ours(strategy) for strategy in ("ddp", "zero1", "zero2", "zero3", "zero1-apart", "zero2-apart",
                                         "zero3-apart", "zero3-keep", "zero2-in-backward",
                                         "zero3-in-backward")),
    ]


def hooks(programs: Programs, model: str, text: Path, quick: bool) -> list[Entry]:
    """Gradients in other forms under ddp: weighted, not sent, in bf16, by PowerSGD; and PyTorch's DDP with
    the hook that does the same, with default and tuned malloc. Also the floors."""
    common = ("--model", model, "--text", str(text), "--strategy")
    everyone = [c for c in _everyone(programs, model, text)
                if c.name in (*FLOORS, "pytorch ddp", "pytorch ddp, mmap_max 0", "tessera ddp")]
    for variant, family in HOOKS.items():
        strategy = f"ddp-{variant}"
        if family:
            command = (programs.python, str(programs.peers / "train.py"), *common, strategy)
            everyone.append(Entry(f"pytorch {strategy}", Role.PEER, command, (), family))
            everyone.append(Entry(f"pytorch {strategy}, mmap_max 0", Role.PEER, command, (_NO_MMAP,), family))
        everyone.append(Entry(f"tessera {strategy}", Role.OURS, (programs.cpp_trainer, *common, strategy)))
    return [c for c in everyone if not quick or "mmap_max" not in c.name]


def hosts(programs: Programs, per_host: int, text: Path, quick: bool) -> list[Entry]:
    """Floors, PyTorch's best, ours under mpirun; with one rank per host also variants that send less."""
    chosen = [c for c in training(programs, "A", text, quick=False) if c.name in _HOSTS]
    if per_host == 1:
        wanted = [f"{who} ddp-{variant}" for who in ("pytorch", "tessera") for variant in _SENDS_LESS]
        chosen += [c for c in hooks(programs, "A", text, quick=False)
                   if c.name.removesuffix(", mmap_max 0") in wanted
                   and (c.role is Role.OURS or c.name.endswith("mmap_max 0"))]
    else:  # zero1 takes minutes and sends the same as zero2
        chosen = [c for c in chosen if c.name != "tessera zero1"]
    if quick:
        chosen = [c for c in chosen if c.name not in ("tessera zero1", "tessera zero2")]
    return [dataclasses.replace(c, mpi=c.name.startswith("tessera ")) for c in chosen]


def is_over(name: str, slowest: bool) -> bool:
    """Whether an entry of the hosts suite runs over a link. `slowest`: it is the slowest link."""
    return slowest or not any(variant in name for variant in _SENDS_LESS)


def families() -> dict[str, str]:
    """Maps each peer in training to its family."""
    everyone = _everyone(Programs(Path(), Path(), ""), "A", Path())
    return {c.name: c.family for c in everyone if c.family}


def has_usual_curve(name: str) -> bool:
    """Whether an entry of the hooks suite trains like all others, within the tolerance of losses."""
    return not any(strategy in name for strategy in _OTHER_CURVES)


def memory(programs: Programs, model: str, text: Path, quick: bool) -> list[Entry]:
    """As `training`, but PyTorch only with malloc's default and with the setting that makes memory smallest.
    FSDP2, whose memory depends most on malloc, also with the setting that makes it fastest."""
    all_of_them = _everyone(programs, model, text)
    wanted = {c.name for c in training(programs, model, text, quick)} if quick else None
    return [
        c
        for c in all_of_them
        if (_NO_MMAP not in c.environment or c.name == "pytorch fsdp2, mmap_max 0")
        and c.name not in ("pytorch ddp-default", THREADS)
        and (wanted is None or c.name in wanted)
    ]


def breakdown(programs: Programs, model: str, text: Path, quick: bool) -> list[Entry]:
    """Our floor and all our strategies."""
    names = ("tessera local", "tessera ddp", "tessera zero3") if quick else None
    return [
        c
        for c in _everyone(programs, model, text)
        if c.name.startswith("tessera ") and (names is None or c.name in names)
    ]


def scaling(programs: Programs, text: Path, quick: bool) -> list[Entry]:
    """Our strategies over the floor, model A."""
    names = ["tessera local", "tessera zero3"]
    names += [] if quick else ["tessera ddp", "tessera zero2"]
    return [c for c in training(programs, "A", text, quick=False) if c.name in names]


def checkpoints(programs: Programs, model: str, text: Path, quick: bool) -> list[Entry]:
    """Ours, and torch.distributed.checkpoint over FSDP2."""
    names = ["pytorch fsdp2", "tessera zero3"] + ([] if quick else ["tessera zero1", "tessera ddp"])
    return [c for c in _everyone(programs, model, text) if c.name in names]


def restarts(programs: Programs, model: str, text: Path) -> list[Entry]:
    """Programs that go on from their newest checkpoint: ours, and torch.distributed.checkpoint over FSDP2."""
    context, batch = {"A": ("128", "4"), "S": ("64", "1")}[model]
    gpt = (programs.cpp_gpt, "--layers", "8", "--heads", "4", "--width", "256", "--context", context,
           "--batch", batch, "--clip", "0", "--data", str(text), "--log_every", "1", "--keep", "2", "--strategy")
    resume = (programs.python, str(programs.peers / "resume.py"), "--model", model, "--text", str(text))
    return [
        Entry("pytorch fsdp2", Role.PEER, resume, (_NEW_STORE,), "FSDP2"),
        Entry("tessera ddp", Role.OURS, (*gpt, "ddp")),
        Entry("tessera zero3", Role.OURS, (*gpt, "zero3")),
    ]


def collectives(programs: Programs) -> list[Entry]:
    """Ours, and Gloo through PyTorch."""
    gloo = (programs.python, str(programs.peers / "collectives.py"))
    return [
        Entry("pytorch gloo", Role.PEER, gloo, family="Gloo"),
        Entry("tessera", Role.OURS, (programs.cpp_collectives,)),
    ]


def optimizers(programs: Programs) -> list[Entry]:
    """Our updates, also with states in 8 bits, LibTorch's own optimizers, and a pass over as much memory."""
    ours = programs.cpp_optimizers
    return [
        Entry("tessera", Role.OURS, (ours,)),
        Entry(EIGHT_BITS, Role.OURS, (ours, "--by", "tessera8bit")),
        Entry("libtorch", Role.PEER, (ours, "--by", "libtorch"), family="LibTorch"),
        Entry("libtorch, mmap_max 0", Role.PEER, (ours, "--by", "libtorch"), (_NO_MMAP,), "LibTorch"),
        Entry("memory", Role.FLOOR, (ours, "--by", "memory")),
    ]


def muon(programs: Programs) -> list[Entry]:
    """Updates by Muon on one rank and on two, and the work that bounds them."""
    ours = programs.cpp_muon
    return [
        Entry(MUON_ALONE, Role.OURS, (ours,), ranks=1),
        Entry(MUON_THREADS, Role.OURS, (ours, "--threads", "2"), alone=True, ranks=2),
        Entry(MUON_SPLIT, Role.OURS, (ours, "--strategy", "zero2"), ranks=2),
        Entry(ITERATIONS, Role.FLOOR, (ours, "--by", "iterations"), ranks=1),
        Entry(PRODUCTS, Role.FLOOR, (ours, "--by", "products"), ranks=1),
        Entry(PRODUCTS_OF_TWO, Role.FLOOR, (ours, "--by", "products"), ranks=2),
    ]


def gpu(programs: Programs, model: str, text: Path, quick: bool) -> list[Entry]:
    """One rank on one GPU in bf16: unwrapped, PyTorch's, and ours eager, as graphs and offloaded."""
    common = ("--model", model, "--text", str(text), "--device", "cuda")
    train = str(programs.peers / "train.py")

    def peer(strategy: str) -> Entry:
        return Entry(f"pytorch {strategy}", Role.PEER,
                          (programs.python, train, *common, "--strategy", strategy), (), "GPU")

    def ours(strategy: str, *flags: str, tuned: str = "") -> Entry:
        role = Role.FLOOR if strategy == "local" else Role.OURS
        name = "libtorch local" if strategy == "local" else f"tessera {strategy}" + tuned
        return Entry(name, role, (programs.cpp_trainer, *common, "--bf16", "--strategy", strategy, *flags))

    strategies = ("ddp", "zero3") if quick else ("ddp", "zero1", "zero2", "zero3")
    peers = ("local", "fsdp2") if quick else ("local", "local-compiled", "ddp", "fsdp2", "fsdp2-compiled")
    return [
        ours("local"),
        *(peer(strategy) for strategy in peers),
        *(ours(strategy) for strategy in strategies),
        # A world of one splits nothing, so every strategy can be captured.
        *(ours(strategy, "--graph", tuned=", graph") for strategy in strategies),
        ours("zero1-offload"),
    ]
