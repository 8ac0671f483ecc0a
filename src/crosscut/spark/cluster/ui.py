"""A job's page under Spark's own pages: a browser that can open those needs no other port of the driver.

Spark has a reverse proxy, which its standalone master shows drivers' pages with; a driver's own UI is given
one here. That is Spark's code, and no interface that it promises: where it is called otherwise, that is said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError
from pyspark import SparkContext

from crosscut.errors import SettingsError

PATH = "/crosscut"
YARN = "yarn"
"""How its master is called, also as an old `yarn-client`."""
THREADS_MAX = 16
"""Of the proxy; up to eight of them wait for sockets."""

PATIENCE_MS = 600_000
"""So long the page waits for what it has asked for, as a savepoint. The proxy would for half a minute."""

_served: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()
"""By what is served where, in the JVM: a map that its proxy looks into at each request."""
_serving = threading.Lock()
"""Of two handlers under one path, Spark's UI asks the first only."""


class InSparkUi:
    """A page as it is found under Spark's UI, from its making until `close`.

    Args:
        name: Of the job; the next free name like it is taken.
        address: Where Spark's driver finds the page.

    Raises:
        SettingsError: This Spark has no UI, or none that can serve it, or one behind YARN's proxy.
    """

    def __init__(self, context: SparkContext, name: str, address: str) -> None:
        if (context.master or "").startswith(YARN):
            raise SettingsError(
                f"web_in_spark_ui=True, and Spark runs on {context.master}: YARN's proxy in front of its UI "
                f"does not let the page's token through; leave web_in_spark_ui out, and reach the page's own "
                f"port (web_port) through a tunnel, as `ssh -L`, or through a proxy (web_url)"
            )
        ui_url = context.uiWebUrl
        if ui_url is None:
            raise SettingsError(
                "web_in_spark_ui=True, and this Spark has no UI: set spark.ui.enabled=true, or leave "
                "web_in_spark_ui out"
            )
        self._context: Any = context
        try:
            self._addresses = _addresses(context)
            self._name, tried = name, 1
            # The page sees the path as browsers do, and so whether its last `/` is missing.
            while self._addresses.putIfAbsent(
                self._name, f"{address.rstrip('/')}{PATH}/{self._name}"
            ).isDefined():
                tried += 1
                self._name = f"{name}-{tried}"
        except (Py4JError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"web_in_spark_ui=True, and the UI of Spark {context.version} can't serve the page: {error}; "
                f"leave web_in_spark_ui out, and see web_host and web_url"
            ) from error
        self.url = url_in_ui(self._name, ui_url, context.applicationId, context.getConf().get)
        """Where browsers find it."""

    @property
    def is_there(self) -> bool:
        """Spark has not been stopped, and its UI with it."""
        return self._context._jsc is not None

    def close(self) -> None:
        """It is served there no longer."""
        # Spark may be gone, and its UI with it.
        with suppress(Py4JError, OSError):
            self._addresses.remove(self._name)


def url_in_ui(name: str, ui_url: str, application: str, conf: Callable[[str, str], str | None]) -> str:
    """Return where the page `name` is found: behind the proxy of Spark's master, if that is how its UI is."""
    proxy_url = conf("spark.ui.reverseProxyUrl", "") or ""
    if (conf("spark.ui.reverseProxy", "false") or "").lower() == "true" and proxy_url:
        ui_url = f"{proxy_url.rstrip('/')}/proxy/{application}"
    return f"{ui_url.rstrip('/')}{PATH}/{name}/"


def _addresses(context: SparkContext) -> Any:
    with _serving:
        found = _served.get(context)
        if found is None:
            jvm: Any = context._jvm
            java: Any = context._jsc
            found = jvm.scala.collection.concurrent.TrieMap()
            handler = jvm.org.apache.spark.ui.JettyUtils.createProxyHandler(found.lift())
            handler.setContextPath(PATH)
            for servlet in handler.getServletHandler().getServlets():
                # With threads of the UI's own, Spark would wait half a minute for them at its end.
                servlet.setInitParameter("maxThreads", str(THREADS_MAX))
                servlet.setInitParameter("timeout", str(PATIENCE_MS))
                servlet.setInitParameter("idleTimeout", str(PATIENCE_MS))
            java.sc().ui().get().attachHandler(handler)
            _served[context] = found
        return found
