"""The Spark that the options of `crosscut run`, or spark-defaults.conf, name."""

from __future__ import annotations

from pathlib import Path

import pytest

from crosscut.errors import SettingsError
from crosscut.spark.cluster.submitted import Submission, default_master


@pytest.mark.parametrize(
    "line",
    [
        "spark.master  spark://a:7077",
        "spark.master=spark://a:7077",
        "spark.master: spark://a:7077",
        "spark.master:spark://a:7077",
        "spark.master\tspark://a:7077  ",
    ],
)
def test_the_master_of_the_defaults_is_found_as_spark_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert default_master() is None
    (tmp_path / "spark-defaults.conf").write_text(
        f"# spark.master yarn\nspark.masters no\nspark.master yarn\n\n{line}\n"
    )
    assert default_master() == "spark://a:7077"


@pytest.mark.parametrize("given", ["spark.cores.max", "cores=3", "spark.cores.max=", "=3"])
def test_what_is_no_setting_of_spark_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"expected KEY=VALUE"):
        Submission.of(None, [given], None, None)


def test_files_are_shipped_and_found_by_this_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib.zip").touch()
    (tmp_path / "one.py").touch()
    found = Submission.of("yarn", ["spark.x=1=2"], "lib.zip,one.py,s3://bucket/far.zip", "env.tar.gz#env")
    assert found.configuration == {
        "spark.x": "1=2",
        "spark.submit.pyFiles": "lib.zip,one.py,s3://bucket/far.zip",
        "spark.archives": "env.tar.gz#env",
    }
    assert found.import_path == (str(tmp_path / "lib.zip"), str(tmp_path))
    with pytest.raises(SettingsError, match=r"there is no file 'missing.zip'"):
        Submission.of(None, [], "missing.zip", None)


def test_without_options_and_defaults_no_spark_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with Submission.of(None, [], None, None).context("a flow") as spark:
        assert spark is None
