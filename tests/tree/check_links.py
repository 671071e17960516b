#!/usr/bin/env python3
"""Whether every relative link and image of README.md and docs/ leads to a file that is there, and to
a heading if it names one, by GitHub's rules. Prints every offence; fails if there is one.

    check_links.py <root of the tree>
"""

import pathlib
import re
import sys

_FENCE = re.compile(r"^ *(```+|~~~+)")
_CODE = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)  # in one paragraph
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+[\"'(][^\n]*?[\"')])?\s*\)")
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$", re.MULTILINE)
_ID = re.compile(r"<[a-z]+\s[^>]*?\b(?:id|name)=[\"']([^\"']+)[\"']")


def prose(text):
    """`text` without comments and blocks of code: blank lines in their place, so that numbers of
    lines hold."""
    text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines, fence = [], None
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence is not None:
            if mark and mark[1].startswith(fence) and line.strip(" `~") == "":
                fence = None
            line = ""
        elif mark:
            fence, line = mark[1], ""
        lines.append(line)
    return "\n".join(lines)


def without_code(text):
    return _CODE.sub(lambda match: "\n" * match[0].count("\n"), text)


def anchor(heading):
    """GitHub's: of the text that is shown the letters, digits, "_", "-" and spaces; spaces as "-"."""
    heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    parts = re.split(r"(`+[^`]*`+)", heading)
    parts[::2] = [re.sub(r"(?<!\w)_+|_+(?!\w)", "", part) for part in parts[::2]]  # emphasis
    return re.sub(r"[^\w\- ]", "", "".join(parts).strip().lower()).replace(" ", "-")


def anchors(text):
    found = set(_ID.findall(text))
    counts = {}
    for heading in _HEADING.findall(prose(text)):
        name = base = anchor(heading)
        while name in counts:
            counts[base] += 1
            name = f"{base}-{counts[base]}"
        counts[name] = 0
        found.add(name)
    return found


def offences(root):
    """The number of links, and what is wrong with which."""
    known, found, count = {}, [], 0
    for page in [root / "README.md", *sorted((root / "docs").glob("**/*.md"))]:
        text = without_code(prose(page.read_text()))
        for match in _LINK.finditer(text):
            link = match[1]
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            count += 1
            path, _, fragment = link.partition("#")
            target = (page.parent / path if path else page).resolve()
            problem = ""
            if not link:
                problem = "leads nowhere"
            elif path.startswith("/") or not target.is_relative_to(root.resolve()):
                problem = "leads out of the tree"
            elif not target.exists():
                problem = "there is no such file"
            elif fragment and target.suffix == ".md":
                if target not in known:
                    known[target] = anchors(target.read_text())
                if fragment not in known[target]:
                    problem = "there is no such heading"
            if problem:
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{page.relative_to(root)}:{line}: {link}: {problem}")
    return count, found


def main():
    count, found = offences(pathlib.Path(sys.argv[1]))
    for offence in found:
        print(offence)
    print(f"{count} links, {len(found)} of them broken")
    return 1 if found or not count else 0


if __name__ == "__main__":
    sys.exit(main())
