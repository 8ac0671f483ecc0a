"""Which versions of PySpark are taken, and what is said of the others."""

from __future__ import annotations

import pyspark
import pytest

from crosscut.errors import SettingsError
from crosscut.spark.cluster.versions import check_version, version


@pytest.mark.parametrize("found", ["4.1.0", "4.1.4", "4.2.1", "4.3.0", "4.3.1.dev0"])
def test_supported_versions_are_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", found)
    check_version()


@pytest.mark.parametrize("found", ["3.5.9", "4.0.5", "4.4.0", "5.0.0"])
def test_others_are_refused_by_name_before_anything_starts(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark, "__version__", found)
    with pytest.raises(SettingsError, match=rf"PySpark {found} is not supported: expected 4\.1 to 4\.3"):
        check_version()


def test_the_installed_one_is_supported() -> None:
    check_version()
    assert version() >= (4, 1)
