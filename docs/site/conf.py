"""Makes the site of README.md, docs/, tests/README.md and the public headers with Sphinx; build.sh runs it.

The pages are the files of the tree themselves, where they lie, so that their links to each other hold.
A header is shown as what Doxygen read in it, another source file as its text.
"""

import logging
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import docutils.nodes

ROOT = pathlib.Path(__file__).resolve().parents[2]
XML = ROOT / "build/docs/xml"
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def _links(page):
    """The files of the tree that `page` links to, in its order, relative to the root."""
    text = (ROOT / page).read_text()
    targets = (((ROOT / page).parent / link).resolve() for link in _LINK.findall(text) if "://" not in link)
    return list(dict.fromkeys(str(target.relative_to(ROOT)) for target in targets if target.is_file()))


PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")), "tests/README.md"]
HEADERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("include/tessera/*.h"))
SOURCES = sorted({link for page in PAGES for link in _links(page) if link.endswith((".cc", ".h"))} - {*HEADERS})

project = "Tessera"
html_title = "Tessera"
extensions = ["myst_parser", "breathe"]
root_doc = "README"
# Of two files of one name the first counts: no .cc lies beside a public header.
source_suffix = {".md": "markdown", ".cc": "restructuredtext", ".h": "restructuredtext"}
include_patterns = PAGES + HEADERS + SOURCES
exclude_patterns = [".*", "build"]
primary_domain = "cpp"
highlight_language = "none"
myst_heading_anchors = 6
breathe_projects = {"tessera": str(XML)}
breathe_default_project = "tessera"
breathe_default_members = ("members", "protected-members", "undoc-members")
breathe_show_include = False
toc_object_entries = False
html_theme = "furo"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_copyright = False
html_use_index = False


def _toctree(pages, caption=""):
    options = [":hidden:", f":caption: {caption}" if caption else ":titlesonly:"]
    return "\n".join(["", "```{toctree}", *options, *(f"/{page}" for page in pages), "```", ""])


def _navigation(page):
    """What lies below `page` at the side of the site: docs/README.md is the order of all."""
    if page == "README.md":
        seen = {page}
        trees = _toctree(["docs/README.md"])
        for section in re.split(r"^## ", (ROOT / "docs/README.md").read_text(), flags=re.M)[1:]:
            title, text = section.split("\n", 1)
            pages = [f"docs/{link}" for link in dict.fromkeys(_LINK.findall(text)) if link.endswith(".md")]
            trees += _toctree([page for page in pages if page not in seen], title)
            seen.update(pages)
        return trees
    below = []
    if page == "docs/api.md":
        below = [header for header in _links(page) if header in HEADERS]
        below += [header for header in HEADERS if header not in below]
    if page == "docs/benchmarks/README.md":
        below = [other for other in PAGES if re.fullmatch(r"docs/benchmarks/[^/]+/.*", other)]
    if page == "docs/testing.md":
        below = ["tests/README.md"]
    return _toctree(below) if below else ""


def _text(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def _descriptions(definition):
    """What is said of it, without the links of the pages that breathe makes."""
    for name in ("briefdescription", "detaileddescription"):
        yield from (re.sub(r"([*`_|\\])", r"\\\1", _text(definition.find(name))), "")


def _declared(header):
    """What `header` declares outside of classes, in its order: (line, name, lines of the page)."""
    file = header.removeprefix("include/")
    for compound in ElementTree.parse(XML / "index.xml").getroot():
        kind = compound.get("kind")
        if kind not in ("class", "struct", "concept", "namespace"):
            continue
        definition = ElementTree.parse(XML / f"{compound.get('refid')}.xml").getroot()[0]
        qualified = definition.findtext("compoundname")
        place = definition.find("location")
        if kind == "namespace":
            for member in definition.iter("memberdef"):
                place = member.find("location")
                if place.get("file") == file:
                    name = member.findtext("name")
                    arguments = member.findtext("argsstring") if member.get("kind") == "function" else ""
                    yield (int(place.get("line")), name + ("()" if arguments else ""),
                           [f".. doxygen{member.get('kind')}:: {qualified}::{name}{arguments}"])
        elif place.get("file") == file and kind == "concept":
            code = _text(definition.find("initializer"))
            code = code.replace(" concept ", "\n   concept ", 1).replace(" && ", " &&\n       ")
            yield (int(place.get("line")), qualified.split("::")[-1],
                   [".. code-block:: cpp", "", "   " + code, "", *_descriptions(definition)])
        elif place.get("file") == file and "::" not in qualified.removeprefix("tessera::"):
            yield int(place.get("line")), qualified.split("::")[-1], [f".. doxygen{kind}:: {qualified}"]


def _file(name):
    index = ElementTree.parse(XML / "index.xml").getroot()
    refid = next(file.get("refid") for file in index if file.findtext("name") == pathlib.Path(name).name)
    return ElementTree.parse(XML / f"{refid}.xml").getroot()[0]


def _header_page(header):
    name = header.removeprefix("include/")
    lines = [pathlib.Path(header).name, "=" * 80, "", f"``#include <{name}>``", "", *_descriptions(_file(name))]
    title = None
    for _, heading, directive in sorted(_declared(header)):
        if heading != title:
            lines += [heading, "-" * 80, ""]
        title = heading
        lines += [*directive, ""]
    return "\n".join(lines)


def _source_page(source, text):
    return "\n".join([":orphan:", "", source, "=" * 80, "", ".. code-block:: cpp", "",
                      *("   " + line for line in text.splitlines()), ""])


def _read(app, document, source):
    page = str(pathlib.Path(app.env.doc2path(document)).relative_to(ROOT))
    if page in HEADERS:
        source[0] = _header_page(page)
    elif page in SOURCES:
        source[0] = _source_page(page, source[0])
    else:
        source[0] += _navigation(page)


def _name_headings(app, doctree):
    """GitHub's names for headings are Sphinx's names with exceptions; both lead there."""
    for section in doctree.findall(docutils.nodes.section):
        slug = section.get("myst-anchor", "").partition("#")[2]
        if slug not in ("", *section["ids"]):
            section["ids"].append(slug)


def setup(app):
    # Overloads that differ only in what they require are one to Sphinx, and would be a warning.
    logging.getLogger("sphinx.sphinx.domains.cpp").addFilter(
        lambda record: "Duplicate C++ declaration" not in record.getMessage())
    app.connect("source-read", _read)
    app.connect("doctree-read", _name_headings)
