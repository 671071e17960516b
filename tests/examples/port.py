"""Runs one example of examples/port on data made here: the plain program, and the sharded one on
one rank and on more under ddp and zero3.

    port.py <example> <folder of the programs>

On one rank the sharded program prints what the plain one does, but for rounding. On any number of
ranks zero3 prints what ddp does, to the last digit of the hash. On two and more ranks the losses
are those of the plain program only where the model has no dropout (drawn per rank) and no
BatchNorm (statistics per rank): wgan_gp, torchscript.
"""

import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

NUMBER = re.compile(r"-?\d+\.\d+")
IMAGES, TESTS, PIXELS = 60000, 10000, 28 * 28  # LibTorch's MNIST takes nothing else


class Job:
    """Runs the programs of one example in a folder."""

    def __init__(self, example: str, programs: pathlib.Path, folder: pathlib.Path):
        self.example, self.programs, self.folder = example, programs, folder

    def run(self, program: list, strategy: str = "") -> list[str]:
        environment = os.environ | ({"STRATEGY": strategy} if strategy else {})
        done = subprocess.run([str(part) for part in program], cwd=self.folder, env=environment,
                              text=True, capture_output=True)
        if done.returncode != 0:
            raise SystemExit(f"port.py: {program} under {strategy or 'nothing'} ended with "
                             f"{done.returncode}:\n{done.stdout}{done.stderr}")
        return [re.sub(r"^\[\d+\] ", "", line) for line in done.stdout.splitlines()]

    def plain(self, *arguments) -> list[str]:
        return self.run([self.programs / f"port_{self.example}_plain", *arguments])

    def sharded(self, ranks: int, strategy: str, *arguments) -> list[str]:
        launcher = [self.programs / "tessera-run", "--standalone", "--nproc-per-node", ranks, "--"]
        return self.run([*(launcher if ranks > 1 else []),
                         self.programs / f"port_{self.example}_sharded", *arguments], strategy)

    def all_strategies(self, ranks: int, *arguments) -> list[str]:
        """The output of every strategy; the last line has the hash."""
        ddp = self.sharded(ranks, "ddp", *arguments)
        expect(re.fullmatch(r"parameters( [0-9a-f]{16})+", ddp[-1]), "no hash", ddp)
        zero3 = self.sharded(ranks, "zero3", *arguments)
        expect(zero3 == ddp, f"zero3 is not ddp on {ranks} ranks", ddp, zero3)
        return ddp


def expect(right, what: str, *outputs: list[str]) -> None:
    if not right:
        raise SystemExit(f"port.py: {what}:\n" + "\n---\n".join("\n".join(o) for o in outputs))


def close(got: list[str], expected: list[str]) -> bool:
    """True if both outputs have the same text and the same numbers except for rounding."""
    if [NUMBER.sub("#", line) for line in got] != [NUMBER.sub("#", line) for line in expected]:
        return False
    numbers = [NUMBER.findall("\n".join(lines)) for lines in (got, expected)]
    return all(abs(float(a) - float(b)) <= 2e-4 + 1e-3 * abs(float(b)) for a, b in zip(*numbers))


def expect_like_plain(sharded: list[str], plain: list[str]) -> None:
    expect(close(sharded[:-1], plain), "the sharded program is not the plain one", plain, sharded)
    expect(NUMBER.search(plain[-1]), "no number to compare", plain)
    wrong = NUMBER.sub(lambda match: str(float(match[0]) * 1.02 + 0.001), plain[-1])
    expect(not close(sharded[:-1], [*plain[:-1], wrong]), "the comparison sees nothing", plain)


def expect_learning(lines: list[str]) -> None:
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", "\n".join(lines))]
    expect(losses[-1] < 0.9 * losses[0], "nothing was learned", lines)


def write_mnist(folder: pathlib.Path, order=range(IMAGES)) -> None:
    """MNIST's four files, in `order`: a bright cell for each digit, and noise for each image."""
    cell = lambda digit: lambda i: 255 * (i // 28 // 7 == digit % 4 and i % 28 // 10 == digit // 4)
    patterns = [bytes(map(cell(digit), range(PIXELS - 84))) for digit in range(10)]
    noise = random.Random(7).randbytes(2000)
    label = lambda i: (i * 7 + i // 10) % 10
    image = lambda i: patterns[label(i)] + noise[i % 1900:i % 1900 + 84]
    number = lambda *values: b"".join(value.to_bytes(4, "big") for value in values)
    folder.mkdir()
    for name, which in (("train", order), ("t10k", range(TESTS))):
        with open(folder / f"{name}-images-idx3-ubyte", "wb") as file:
            file.write(number(0x803, len(which), 28, 28))
            file.writelines(image(i) for i in which)
        with open(folder / f"{name}-labels-idx1-ubyte", "wb") as file:
            file.write(number(0x801, len(which)) + bytes(label(i) for i in which))


def write_pictures(folder: pathlib.Path) -> None:
    draw = random.Random(7)
    patterns = [draw.randbytes(3 * 32 * 32) for _ in range(10)]
    folder.mkdir()
    lines = []
    for i in range(100):
        use = "test" if i >= 85 else "train"  # 85: no multiple of anything
        (folder / f"{i}.ppm").write_bytes(b"P6\n32 32\n255\n" + patterns[i % 10])
        lines.append(f"{i}.ppm {i % 10} {use}\n")
    (folder / "info.txt").write_text("".join(lines))


def mnist(job: Job) -> None:
    write_mnist(job.folder / "data")
    arguments = ("data", 1, 31)
    plain = job.plain(*arguments)
    expect_learning(plain)
    expect_like_plain(job.all_strategies(1, *arguments), plain)
    expect_learning(job.all_strategies(2, *arguments))


def dcgan(job: Job) -> None:
    write_mnist(job.folder / "data")
    arguments = ("data", 1, 2, 2)
    expect_like_plain(job.all_strategies(1, *arguments), job.plain(*arguments))
    # A checkpoint of two ranks continues under the other strategy and on another number of ranks.
    end = job.all_strategies(2, *arguments)[-1]
    for ranks in (2, 1):
        again = job.all_strategies(ranks, "data", 1, 0, 2, "restore")
        expect(again == [end], f"not restored on {ranks} ranks", [end], again)
    other = job.sharded(2, "ddp", "data", 1, 0)
    expect(other != [end], "training changed nothing", other)


def custom_dataset(job: Job) -> None:
    write_pictures(job.folder / "dataset")
    arguments = ("dataset", 3)
    expect_like_plain(job.all_strategies(1, *arguments), job.plain(*arguments))
    job.all_strategies(2, *arguments)


def wgan_gp(job: Job) -> None:
    write_mnist(job.folder / "data")
    arguments = ("data", 1, 21)
    plain = job.plain(*arguments)
    for ranks in (1, 2, 3):
        expect_like_plain(job.all_strategies(ranks, *arguments), plain)


def torchscript(job: Job) -> None:
    write_mnist(job.folder / "data")
    job.run([job.programs / "scripted_network_program", "network.pt"])
    arguments = ("network.pt", "data", 1, 31)
    plain = job.plain(*arguments)
    expect_learning(plain)
    expect_like_plain(job.all_strategies(1, *arguments), plain)
    # The plain program on batches whose halves are the batches of the two ranks.
    halves = [i for batch in range(31) for half in (0, IMAGES // 2)
              for i in range(half + 32 * batch, half + 32 * batch + 32)]
    rest = sorted(set(range(IMAGES)) - set(halves))
    write_mnist(job.folder / "halves", halves + rest)
    concatenated = job.plain("network.pt", "halves", 1, 31)
    two = job.all_strategies(2, *arguments)
    expect(close(two[-2:-1], concatenated[-1:]), "two ranks are not the batch of both",
           concatenated, two)
    expect(not close(two[-2:-1], plain[-1:]), "any batches would do", plain, two)
    # The saved file is a scripted module again, with trained parameters.
    tuned = job.plain("tuned.pt", "data", 1, 0)
    expect(close(tuned, two[-2:-1]), "what was saved is not what was trained", two, tuned)


if __name__ == "__main__":
    name, programs = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        {"mnist": mnist, "dcgan": dcgan, "custom_dataset": custom_dataset, "wgan_gp": wgan_gp,
         "torchscript": torchscript}[name](Job(name, programs, pathlib.Path(scratch)))
