"""The pages for who comes from elsewhere: the flow on each is lived under faults, and its names are there."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

import crosscut as cc
from crosscut.cli.commands import program
from crosscut.flow.connected_streams import ConnectedStreams
from crosscut.flow.keyed_stream import KeyedStream
from crosscut.flow.stream import Stream
from crosscut.flow.windowed_stream import WindowedStream
from crosscut.spark.cluster.job import Job

PAGES = sorted((Path(__file__).parents[2] / "docs" / "coming-from").glob("*.md"))
STREAMS = (cc.Flow, Stream, KeyedStream, WindowedStream, ConnectedStreams)
SETTINGS = {
    one.name
    for kind in (cc.Settings, cc.Aligned, cc.Continuous, cc.MicroBatch, cc.Auto)
    for one in fields(kind)
}
OWNERS = {"ctx": (cc.Context,), "job": (Job,), "flow": (cc.Flow,), "": STREAMS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_flow_of_each_page_is_exact_under_faults(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"app_for_{page.stem.replace('-', '_')}"
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / f"{name}.py"
    path.write_text("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)))
    try:
        done = CliRunner().invoke(program, ["simulate", f"{path}:flow", "--seeds", "3"])
    finally:
        sys.modules.pop(name, None)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_name_of_ours_on_a_page_is_there(page: Path) -> None:
    rows = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    ours = [code for row in rows[1:] for code in re.findall(r"`([^`]+)`", row[-1])]
    ours = [code for code in ours if not code.startswith("spark.")]
    assert len(ours) > 10
    checked = 0
    for code in ours:
        for dotted in re.findall(r"\bcc\.(\w+(?:\.\w+)*)", code):
            found: object = cc
            for part in dotted.split("."):
                found = getattr(found, part)
            checked += 1
        for owner, method in re.findall(
            r"(?:\b(ctx|job|flow))?(?<!cc)\.(\w+)\(", re.sub(r"cc(\.\w+)+", "", code)
        ):
            assert any(hasattr(kind, method) for kind in OWNERS[owner]), (code, method)
            checked += 1
        for setting in re.findall(r"\b(\w+)=\"", code):
            assert setting in SETTINGS or setting in ("out_of_orderness", "emit", "key"), (code, setting)
            checked += 1
    assert checked > 10
