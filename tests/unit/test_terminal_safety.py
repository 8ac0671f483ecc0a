"""Nothing that others have written is an order to a terminal, and no secret link is in a file."""

from __future__ import annotations

import io
import logging
import os
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from crosscut.cli.links import page_for_terminal
from crosscut.cli.view import LineView, make_console
from crosscut.connectors.simple.printing import printing
from crosscut.errors import StoreError
from crosscut.foundation.logs import TextLogFormatter
from crosscut.net.causes import failure_cause
from crosscut.testing.sinks import open_writer, permit, stage
from crosscut.web.record import NAME, read_record, write_record

ORDER = "\x1b]0;owned\x07\x9b2J"
"""Sets the title of a terminal, and clears it."""
WRITTEN = "\\x1b]0;owned\\x07\\x9b2J"


def test_a_console_writes_out_control_characters_in_tables_texts_and_notes() -> None:
    console = make_console()
    console.file = io.StringIO()
    table = Table("title")
    table.add_row(Text(ORDER))
    console.print(table)
    console.print(Text(ORDER))
    LineView(console).note(ORDER)
    out = console.file.getvalue()
    assert "\x1b]" not in out and "\x07" not in out and "\x9b" not in out
    assert out.count("\\x1b]0;own") == 3


def test_a_log_line_writes_them_out() -> None:
    record = logging.LogRecord("crosscut", logging.INFO, "", 1, "record %s\nnext", (ORDER,), None)
    text = TextLogFormatter().format(record)
    assert text.endswith(f"record {WRITTEN}\nnext")


def test_what_a_job_failed_of_writes_them_out() -> None:
    cause = failure_cause(ValueError(ORDER))
    assert cause.message == WRITTEN
    assert "\x1b" not in cause.traceback
    assert "ValueError" in cause.traceback


def test_a_printed_record_writes_them_out(capsys: pytest.CaptureFixture[str]) -> None:
    writer = open_writer(printing("look"), 1)
    handle = stage(writer, [ORDER, "plain"], 1)
    writer.commit(permit(1), [handle])
    writer.close()
    assert capsys.readouterr().out == f"look: {WRITTEN}\nlook: plain\n"


def test_the_token_is_printed_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    link = "http://127.0.0.1:4400/#secret-token"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert page_for_terminal(link) == link
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert "secret-token" not in page_for_terminal(link)
    assert page_for_terminal(link).startswith("http://127.0.0.1:4400/")


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "device"])
def test_a_record_that_is_no_regular_file_neither_hangs_nor_is_followed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / NAME
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "link":
            (tmp_path / "secret").write_text('{"format": 1}')
            path.symlink_to(tmp_path / "secret")
        case "directory":
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="can't be read"):
        read_record(str(tmp_path))


def test_a_fifo_in_the_way_of_a_record_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"temporary-{NAME}")
    write_record(str(tmp_path), {"job": {}})
    assert read_record(str(tmp_path))["job"] == {}
