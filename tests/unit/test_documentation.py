"""The documentation is whole: its snippets run, its links lead somewhere, its settings exist."""

from __future__ import annotations

import html
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from tests import guide_pictures

import crosscut as cc

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)]+)\)")


def names_of(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page are called in links."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", names_of([*PAGES, *(ROOT / "bench").glob("*.md")]))
def test_every_link_to_a_file_leads_to_one_and_to_a_heading_that_it_has(page: str) -> None:
    for link in LINK.findall(text_of(page)):
        if link.startswith(("http://", "https://")):
            continue
        assert " " not in link, f"Markdown takes {link!r} for text"
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", names_of([*PAGES, *(ROOT / "bench").glob("*.md")]))
def test_every_row_of_a_table_stands_below_its_headings(page: str) -> None:
    """An empty line ends a table: a row after it is shown as it is written, with its bars."""
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    for block in re.split(r"\n[ \t]*\n", text):
        rows = [line.strip() for line in block.splitlines() if line.lstrip().startswith("|")]
        assert not rows or re.fullmatch(r"\|[-:| ]+\|", "".join(rows[1:2])), rows[0]


SOURCES = ROOT / "src" / "crosscut"
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("page", names_of(PAGES))
def test_every_source_file_that_is_named_is_there(page: str) -> None:
    rooms = "|".join(path.name for path in SOURCES.iterdir() if path.is_dir())
    for name in re.findall(rf"`((?:{rooms})/[\w/]+\.py)`", text_of(page)):
        assert (SOURCES / name).exists(), name


@pytest.mark.parametrize("page", ["docs/protocol.md", "docs/reliability.md", "docs/explorer.md"])
def test_every_test_that_is_named_is_there(page: str) -> None:
    """By its file, or by the beginning of its name."""
    tests = [path.read_text(encoding="utf-8") for path in TESTS]
    known = {name for text in tests for name in re.findall(r"def (test_\w+)", text)}
    known |= {path.stem for path in TESTS}
    named = re.findall(r"\btest_\w+", text_of(page))
    missing = {one for one in named if not any(name.startswith(one) for name in known)}
    assert not missing
    for name in re.findall(
        r"`(?:tests/)?((?:unit|property|simulation|process|conformance)/\w+\.py)`", text_of(page)
    ):
        assert (ROOT / "tests" / name).exists(), name


@pytest.mark.parametrize("page", [page for page in names_of(PAGES) if "```python" in text_of(page)])
def test_every_snippet_runs_and_every_flow_compiles(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands behind `if __name__ == "__main__"` needs Spark and is not run here."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for snippet in re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL):
        exec(compile(snippet, page, "exec", dont_inherit=True), names)  # noqa: S102 - our own text
        for value in list(names.values()):
            if isinstance(value, cc.Flow):
                value.compile(2, 128)


def test_the_picture_is_what_its_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    assert text_of("docs/picture.svg") == importlib.import_module("picture").svg()


def test_every_picture_of_the_guide_is_one_that_a_test_takes_and_as_it_takes_it() -> None:
    taken = {one.name for one in guide_pictures.PICTURES}
    named = set(re.findall(r'"docs/guide/([^"]+\.png)"', text_of("README.md")))
    for path in guide_pictures.GUIDE.glob("*.md"):
        named |= guide_pictures.named_in(path.read_text())
    assert named == taken == {path.name for path in guide_pictures.GUIDE.glob("*.png")}
    for one in guide_pictures.PICTURES:
        one.check(guide_pictures.GUIDE)


def test_pictures_of_conversations_are_what_their_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    drawn = importlib.import_module("sequences").pictures()
    assert drawn.keys() == {path.stem for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    for name, svg in drawn.items():
        assert text_of(f"docs/pictures/{name}.svg") == svg, "make tables"


def test_a_picture_of_a_conversation_has_each_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    module = importlib.import_module("sequences")
    for name in module.NAMES:
        title, steps = module.steps(text_of(f"tests/conversations/{name}.txt"))
        svg = module.picture(text_of(f"tests/conversations/{name}.txt"))
        assert f'aria-label="{title}"' in svg
        assert svg.count("<polygon") + svg.count("<circle") == sum(len(one.targets) or 1 for one in steps)
        told = re.sub(
            r"\s+", " ", " ".join(html.unescape(one) for one in re.findall(r"<tspan[^>]*>([^<]*)", svg))
        )
        for step in steps:
            assert step.words in told, step


def test_no_page_of_the_site_has_the_browser_load_anything_from_elsewhere() -> None:
    """As a mermaid diagram would: its script comes from a content delivery network."""
    for page in names_of(sorted((ROOT / "docs").rglob("*.md"))):
        assert not re.search(
            r"^```mermaid|<script|src=.http|!\[[^]]*\]\(http", text_of(page), re.MULTILINE
        ), page
    assert "font: false" in text_of("mkdocs.yml")


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = text_of("mkdocs.yml").partition("\nnav:")[2]
    for page in names_of(sorted((ROOT / "docs").rglob("*.md"))):
        if not page.startswith("docs/decisions/"):
            assert page.removeprefix("docs/") in navigation, page


def test_every_public_name_is_in_the_reference() -> None:
    named = set(re.findall(r"^::: crosscut\.(\w+)$", text_of("docs/api.md"), re.MULTILINE))
    assert named == set(cc.__all__)


def test_every_page_of_the_guide_is_in_the_list_of_guides() -> None:
    linked = set(LINK.findall(text_of("docs/guides.md")))
    for path in (ROOT / "docs" / "guide").glob("*.md"):
        assert f"guide/{path.name}" in linked, path.name


def test_the_readme_fits_on_two_screens() -> None:
    assert len(text_of("README.md").splitlines()) <= 100


def test_every_decision_has_a_number_of_its_own_and_says_so() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [path.name[:4] for path in records]
    assert len(set(numbers)) == len(numbers)
    for path in records:
        assert path.read_text(encoding="utf-8").startswith(f"# {path.name[:4]}: ")


RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))


@pytest.mark.parametrize("record", names_of(RECORDS))
def test_every_decision_has_the_four_parts_on_one_page(record: str) -> None:
    """Context, decision, consequences, alternatives: a part may be left out, and no other one added."""
    text = text_of(record)
    parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
    known = ["Context", "Decision", "Consequences", "Alternatives"]
    assert parts == [one for one in known if one in parts], "in this order, each once"
    assert {"Context", "Decision"} <= set(parts)
    assert len(re.findall(r"[^\s|]+", text)) <= 500, "a page at most: about 450 words"


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {cc.__version__}\n" in text_of("CHANGELOG.md")


GENERATED = ("docs/protocol.md", "docs/generated-flows.md")
"""What is generated in them stands in one line."""


def test_lines_of_prose_wrap_at_100() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
    long = []
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        is_code = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            is_prose = not is_code and not line.startswith("    ") and line.lstrip()[:1] not in tuple("|#!<")
            if name not in GENERATED and is_prose and len(line) > 100 and len(line.split(" ")) > 3:
                long.append(f"{name}:{number}")
    assert long == []
