"""What mkdocs needs to build the site: the texts beside docs/ are pages too, and links to them lead there.

The files are written to be read in the repository; mkdocs knows only what is below docs/.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
HOME = "README.md"
BESIDE = (
    HOME,
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "bench/README.md",
    "bench/measurements.md",
)
RECORDS = "decisions/index.md"
_LINK = re.compile(r"(?P<before>\]\()(?P<link>[^)\s#]+)(?P<after>[^)\s]*\))")
_FENCED = re.compile(r"(^```.*?^```\s*$)", re.MULTILINE | re.DOTALL)


def place_of(path: str) -> str:
    """Return where the site has the file at `path` in the repository."""
    if path == HOME:
        return "index.md"
    if path == "docs/decisions":
        return RECORDS
    return path.removeprefix("docs/")


def on_files(files: Files, config: Any) -> Files:
    """Add what stands beside docs/."""
    conversations = (path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/conversations/*.txt"))
    for path in (*BESIDE, *conversations):
        text = (ROOT / path).read_text(encoding="utf-8")
        content = _relinked(text, path) if path.endswith(".md") else text
        files.append(File.generated(config, place_of(path), content=content))
    for path in ROOT.glob("bench/plots/*.svg"):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    files.append(File.generated(config, RECORDS, content=_records()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Have links lead to where the site has what they name."""
    source = page.file.src_uri
    # What this module has added is done.
    return markdown if page.file.generated_by else _relinked(markdown, f"docs/{source}")


def _relinked(text: str, path: str) -> str:
    """Return the text of the file at `path` in the repository, with the links of its place in the site."""
    here = posixpath.dirname(place_of(path))

    def changed(match: re.Match[str]) -> str:
        link = match["link"]
        if "://" in link or link.startswith("mailto:"):
            return match[0]
        named = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
        return f"{match['before']}{posixpath.relpath(place_of(named), here or '.')}{match['after']}"

    parts = _FENCED.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(changed, part) for part in parts)


def _records() -> str:
    lines = ["# Decisions", "", "Why it is like this and not otherwise.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"
