#!/usr/bin/env python3
"""Whether all that the pages of a site refer to is in it: files, and the ids that links name. Prints
every offence; fails if there is one.

    check_site.py <folder of the site>
"""

import html.parser
import pathlib
import sys
import urllib.parse


class _Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag, name) == ("a", "name"):
                self.ids.add(value)
            elif name in ("href", "src", "data"):
                self.links.append((self.getpos()[0], value or ""))


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: _Page(path.read_text()) for path in sorted(root.glob("**/*.html"))}
    count = anchors = broken = 0
    for path, page in pages.items():
        for line, link in page.links:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                continue
            count += 1
            target = (path.parent / urllib.parse.unquote(url.path)).resolve() if url.path else path
            problem = ""
            if not target.is_relative_to(root) or not target.is_file():
                problem = "no such file"
            elif url.fragment and target in pages:
                anchors += 1
                if urllib.parse.unquote(url.fragment) not in pages[target].ids:
                    problem = "no such id"
            if problem:
                broken += 1
                print(f"{path.relative_to(root)}:{line}: {link}: {problem}")
    print(f"{len(pages)} pages, {count} links in the site, {anchors} of them to a place in a page, {broken} broken")
    return 1 if broken or not count else 0


if __name__ == "__main__":
    sys.exit(main())
