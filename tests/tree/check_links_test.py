"""Control of check_links.py: what it must find, and what it must not."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_links  # noqa: E402

_PAGE = """# A page: `Engine::step()` & its "results", 100 %
## Same
## Same
### `with_trainable(bool)` and [a link](../README.md) _here_
```sh
# not a heading
```
"""


class Links(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "tree"
        (self.root / "docs/deep").mkdir(parents=True)
        (self.root / "README.md").write_text("[page](docs/page.md)\n")
        (self.root / "docs/page.md").write_text(_PAGE)
        (self.root.parent / "outside.md").write_text("")

    def found(self, text, page="docs/deep/other.md"):
        (self.root / page).write_text(text)
        count, offences = check_links.offences(self.root)
        self.assertGreaterEqual(count, 1)
        return offences

    def test_anchors_are_githubs(self):
        self.assertEqual(check_links.anchors(_PAGE),
                         {"a-page-enginestep--its-results-100-", "same", "same-1",
                          "with_trainablebool-and-a-link-here"})

    def test_good_links_pass(self):
        self.assertEqual(self.found(
            "# Top\n[a](../page.md#same-1), [b](#top) ![c](../../README.md \"title\"), [d](https://no.where/x#y)\n"
            "`code [e](no.md)`, ``[f](`no.md)``, <!-- [g](no.md) -->\n\n```cpp\nauto f = [h](int) {};\n```\n"
            "[folder](../deep), [line](../page.md)\n"), [])

    def test_each_break_is_caught(self):
        for link, problem in (("no.md", "no such file"), ("../Page.md", "no such file"), ("no.svg", "no such file"),
                              ("../page.md#same-2", "no such heading"), ("../page.md#Same", "no such heading"),
                              ("../page.md#not-a-heading", "no such heading"), ("#top", "no such heading"),
                              ("../../../outside.md", "out of the tree"), ("/docs/page.md", "out of the tree")):
            for form in ("one\n\n[`a` b]({})", "| ![x]({}) | `y` |", "- `open\n\n  [x]({} \"title\") close`"):
                offences = self.found(form.format(link))
                self.assertEqual(len(offences), 1, (link, form))
                self.assertRegex(offences[0], f"docs/deep/other.md:[13]: .*{problem}")
        self.assertEqual(self.found("[x]()"), ["docs/deep/other.md:1: : leads nowhere"])
        self.assertEqual(self.found("[x](no.md)", "README.md")[0], "README.md:1: no.md: there is no such file")


if __name__ == "__main__":
    unittest.main()
