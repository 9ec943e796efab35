"""The Markdown pages of the tree: links lead somewhere, every page is listed, examples print what they show, the language is plain."""

import contextlib
import importlib.util
import io
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
NOT_OURS = {"build", "dist", "out"}
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part in NOT_OURS for part in path.relative_to(ROOT).parts)
)
DOCS = ROOT / "docs"


def name_of(page):
    return str(page.relative_to(ROOT))


def prose(page):
    """The page without code blocks and inline code, its lines kept."""
    text = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def links(page):
    """(line number, target) of every link to something in the tree."""
    for number, line in enumerate(prose(page).splitlines(), 1):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            if not re.match(r"[a-z]+:", target):
                yield number, target


def anchors(page):
    """The fragments that the page's headings make, as GitHub forms them."""
    headings = re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_there_are_pages():
    assert len(PAGES) >= 10 and sum(len(list(links(page))) for page in PAGES) > 50


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    dead = []
    for number, target in links(page):
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or fragment and fragment not in anchors(file):
            dead.append(f"{name_of(page)}:{number}: {target}")
    assert not dead


def test_the_index_lists_every_page():
    """By itself, or by its folder."""
    index = DOCS / "README.md"
    listed = {(DOCS / target).resolve() for _, target in links(index)}
    pages = {page for page in PAGES if page.is_relative_to(DOCS)} - {index}
    assert not {name_of(page) for page in pages if page not in listed and page.parent not in listed}


def examples():
    for page in PAGES:
        if page.is_relative_to(DOCS):
            for number, (code, printed) in enumerate(
                re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", page.read_text(), re.S | re.M)
            ):
                yield pytest.param(code, printed, id=f"{name_of(page)}-{number}")


@pytest.mark.parametrize("code, printed", list(examples()))
def test_examples_print_what_they_show(code, printed):
    got = io.StringIO()
    with contextlib.redirect_stdout(got):
        exec(compile(code, "example", "exec"), {})
    assert got.getvalue() == printed


COLUMNS = 120


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_fit_a_screen(page):
    """Tables, code and lines that a program writes may be longer."""
    text = re.sub(
        r"^```.*?^```$|^<!-- made by.*?: begin -->.*?: end -->$",
        lambda block: "\n" * block[0].count("\n"),
        page.read_text(),
        flags=re.S | re.M,
    )
    long = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > COLUMNS and not line.startswith("    ") and not line.lstrip().startswith("|")
    ]
    assert not long, f"{name_of(page)}: lines {long} have more than {COLUMNS} columns"


@pytest.fixture(scope="module")
def plain_english():
    spec = importlib.util.spec_from_file_location("plain_english", ROOT / "tools" / "plain_english.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_and_messages_are_in_plain_english(plain_english):
    assert not plain_english.everything()


@pytest.mark.parametrize(
    "text, words",
    [
        ("fine\ncu_q: got a sum that falls", [(2, "sum that falls")]),
        ("expected a sum that never falls", [(1, "sum that never falls")]),
        ("a falling cu_seqlens_k", [(1, "falling cu_")]),
        ("page ids are asked for early", [(1, "asked for")]),
        ("variants by turns", [(1, "by turns")]),
        ("bytes that do not count", [(1, "that do not count")]),
        ("a page that does not exist", [(1, "page that does not exist")]),
        ("widened keys", [(1, "widened")]),
        ("the prefix sum decreases; it falls to the caller to ask", []),
    ],
)
def test_what_is_no_plain_english(plain_english, text, words):
    assert [(number, found) for number, found, _ in plain_english.findings(text)] == words


def test_all_kinds_of_text_are_read(plain_english):
    paths = {path.name for path, _ in plain_english.markdown()} | {path.name for path, _, _ in plain_english.strings()}
    assert {"README.md", "CONTRIBUTING.md", "block_scores.py", "must.py", "launcher.cc"} <= paths
