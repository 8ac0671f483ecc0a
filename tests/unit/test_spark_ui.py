"""The page under Spark's UI, beside a Spark that only counts what it is asked."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.unit.watched import Watched

import crosscut as cc
from crosscut.errors import SettingsError
from crosscut.spark.cluster.job_views import Seeing
from crosscut.spark.cluster.ui import InSparkUi


class AddressMap(dict[str, str]):
    """As Scala's."""

    def lift(self) -> AddressMap:
        return self

    def putIfAbsent(self, name: str, address: str) -> Any:
        found = MagicMock()
        found.isDefined.return_value = self.setdefault(name, address) is not address
        return found

    def remove(self, name: str) -> None:
        del self[name]


class CountingSpark:
    """A SparkContext: which maps its UI was given to look into, and what is set for them."""

    uiWebUrl = "http://driver:4040"
    applicationId = "app-7"
    version = "4.3.0"

    def __init__(self, master: str = "local[2]") -> None:
        self.master = master
        self.attached: list[AddressMap] = []
        self.parameters: dict[str, str] = {}
        self._jvm, self._jsc, self.getConf = MagicMock(), MagicMock(), MagicMock()
        self.getConf().get = {}.get
        self._jvm.scala.collection.concurrent.TrieMap = AddressMap
        self._jvm.org.apache.spark.ui.JettyUtils.createProxyHandler = self._handler
        self._jsc.sc().ui().get().attachHandler = lambda handler: self.attached.append(handler.addresses)

    def _handler(self, addresses: AddressMap) -> Any:
        time.sleep(0.05)
        handler, servlet = MagicMock(addresses=addresses), MagicMock()
        servlet.setInitParameter = self.parameters.__setitem__
        handler.getServletHandler().getServlets.return_value = [servlet]
        return handler


def in_ui(spark: Any, name: str) -> InSparkUi:
    return InSparkUi(spark, name, f"http://127.0.0.1/{name}/")


def test_pages_of_jobs_that_start_at_the_same_time_are_all_found_until_each_is_closed() -> None:
    spark = CountingSpark()
    with ThreadPoolExecutor(4) as threads:
        pages = list(threads.map(lambda name: in_ui(spark, name), ("a", "b", "c", "d")))
    # Of several, the UI would ask the first only.
    assert spark.attached == [
        {name: f"http://127.0.0.1/{name}/crosscut/{name}" for name in ("a", "b", "c", "d")}
    ]
    again = in_ui(spark, "a")
    assert again.url == "http://driver:4040/crosscut/a-2/"
    for page in (*pages, again):
        page.close()
    assert spark.attached == [{}]


def test_who_asks_for_a_savepoint_is_given_the_time_that_it_takes() -> None:
    spark = CountingSpark()
    in_ui(spark, "a").close()
    assert (spark.parameters["timeout"], spark.parameters["idleTimeout"]) == ("600000", "600000")


def test_on_yarn_it_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    spark = CountingSpark("yarn")
    with pytest.raises(SettingsError, match=r"YARN's proxy.*leave web_in_spark_ui out.*web_url"):
        seeing(spark, tmp_path)
    assert spark.attached == []


def seeing(spark: Any, directory: Path) -> Seeing:
    settings = cc.Settings(web=True, web_port=0, web_in_spark_ui=True)
    return Seeing(
        "payments", Watched().metrics, lambda: "running", MagicMock(), str(directory), settings, spark
    )


def test_the_link_leads_to_the_page_itself_once_spark_is_stopped(tmp_path: Path) -> None:
    spark = CountingSpark()
    seen = seeing(spark, tmp_path)
    assert seen.link.startswith("http://driver:4040/crosscut/payments/#")
    token = seen.link.partition("#")[2]
    spark._jsc = None
    assert seen.page is not None
    assert seen.link == f"{seen.page.address}#{token}"
    seen.close_page()
    assert (seen.link, spark.attached) == ("", [{}])


def test_a_page_that_spark_fails_to_show_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = MagicMock()
    monkeypatch.setattr("crosscut.web.page.PageServer", lambda *given: closed)
    spark: Any = CountingSpark()
    spark._jvm.scala.collection.concurrent.TrieMap = MagicMock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        seeing(spark, tmp_path)
    closed.close.assert_called_once_with()
