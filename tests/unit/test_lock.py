"""What the tests run with: names, versions and hashes, and no place to get them from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
RENEW = "run `make lock`"


def entries() -> dict[str, tuple[Requirement, list[str]]]:
    """Return the requirement and the hashes of each package in the lock file."""
    found = {}
    for entry in LOCK.replace("\\\n", " ").splitlines():
        requirement, *hashes = re.split(r"\s+--hash=", entry.strip())
        parsed = Requirement(requirement)
        found[canonicalize_name(parsed.name)] = (parsed, hashes)
    return found


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_the_lock_file_and_the_constraints_name_the_same_versions() -> None:
    locked = {name: str(parsed.specifier).removeprefix("==") for name, (parsed, _) in entries().items()}
    assert locked.items() <= constraints().items(), RENEW


def test_all_that_the_project_and_its_tests_ask_for_is_in_the_lock_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (chosen,) = re.findall(r"^DEVELOPMENT := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    wanted = [*project["dependencies"], *(one for extra in chosen.split() for one in extras[extra])]
    locked = entries()
    for one in map(Requirement, wanted):
        found = locked.get(canonicalize_name(one.name))
        assert found is not None, f"{one.name}: {RENEW}"
        (pinned,) = found[0].specifier
        assert one.specifier.contains(pinned.version), f"{one}: {RENEW}"


def test_every_package_has_the_hashes_of_its_files_and_nothing_says_where_they_are() -> None:
    assert len(entries()) > 30
    for name, (parsed, hashes) in entries().items():
        assert [one.operator for one in parsed.specifier] == ["=="], name
        assert parsed.url is None, name
        assert hashes, name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), name
    assert "://" not in LOCK
    assert not re.search(r"^\s*-", LOCK.replace("    --hash=", ""), re.MULTILINE), "options of pip"
