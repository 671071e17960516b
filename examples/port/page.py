#!/usr/bin/env python3
"""Writes the table and the diffs of docs/port.md from the programs beside this file.

    page.py            writes them
    page.py --check    changes nothing; fails if they are not what `diff -u plain.cc sharded.cc` is

Either fails if a sharded program has another optimizer than its plain one.
"""

import difflib
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs" / "port.md"
PART = re.compile(r"(<!-- port: (\w+) -->\n).*?(<!-- port: end -->)", re.DOTALL)


def diff(name: str) -> str:
    files = ["plain.cc", "sharded.cc"]
    labels = [f"--label={name}/{file}" for file in files]
    done = subprocess.run(["diff", "-u", *labels, *files], cwd=HERE / name, text=True,
                          capture_output=True)
    if done.returncode != 1:  # 0: no difference, 2: trouble
        raise SystemExit(f"page.py: diff of {name} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def optimizer(path: pathlib.Path) -> str:
    """The optimizer's options as they are made: SGDOptions(0.01).momentum(0.5)."""
    made = re.findall(r"optim::(\w+Options(?:\.?\w*\([^()]*\))+)", path.read_text())
    if len(made) != 1:
        raise SystemExit(f"page.py: {path} makes options of {len(made)} optimizers, expected one: {made}")
    return made[0]


def expect_own_optimizer(folder: pathlib.Path) -> None:
    plain, sharded = (optimizer(folder / file) for file in ("plain.cc", "sharded.cc"))
    if plain != sharded:
        raise SystemExit(f"page.py: {folder.name} trains with {plain}, but on ranks with {sharded}")


def table(names: list[str]) -> str:
    rows = ["| example | lines | removed | added |", "|---|--:|--:|--:|"]
    for name in names:
        lines = diff(name).splitlines()[2:]
        removed, added = (sum(line.startswith(sign) for line in lines) for sign in "-+")
        size = len((HERE / name / "plain.cc").read_text().splitlines())
        rows.append(f"| [{name}](#{name}) | {size} | {removed} | {added} |")
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    names = [name for _, name, _ in PART.findall(page) if name != "table"]
    missing = {path.parent.name for path in HERE.glob("*/plain.cc")} ^ set(names)
    if missing:
        raise SystemExit(f"page.py: in {PAGE.name} or beside page.py, but not in both: {missing}")

    for name in names:
        expect_own_optimizer(HERE / name)

    def part(match: re.Match) -> str:
        name = match[2]
        text = table(names) if name == "table" else f"```diff\n{diff(name)}```\n"
        return match[1] + text + match[3]

    return PART.sub(part, page)


def main() -> int:
    page = PAGE.read_text()
    new = written(page)
    if sys.argv[1:] == ["--check"]:
        old_and_new = page.splitlines(True), new.splitlines(True)
        sys.stdout.writelines(difflib.unified_diff(*old_and_new, "docs/port.md", "its new text"))
        return page != new
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
