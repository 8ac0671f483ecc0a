"""What is checked of Spark and of the settings before a job starts; nothing has been changed by then."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import warnings

from pyspark import SparkContext

from crosscut.errors import SettingsError
from crosscut.settings import Settings
from crosscut.spark.session import LOOPBACK, encrypts_traffic, is_local, slots


def check_checkpoint_dir(url: str) -> None:
    """Refuse a checkpoint directory that the workers would not share."""
    if url.startswith("memory:"):
        raise SettingsError(
            f"checkpoint_dir={url!r}: each worker process has a memory file system "
            f"of its own; use a directory or an object store that all of them see"
        )


def checked_slots(settings: Settings, context: SparkContext) -> int | None:
    """Return how many workers Spark can run at once, where that is known: enough for the job."""
    found = slots(context)
    if found is not None and found < settings.parallelism:
        raise SettingsError(
            f"parallelism={settings.parallelism}, but Spark has {found} task slots in all "
            f"({context.master}): each worker needs one for as long as the job runs; lower parallelism, or "
            f"give Spark more cores (local mode: master 'local[{settings.parallelism},1000000]')"
        )
    master = context.master or ""
    if is_local(context) and not master.startswith("local-cluster") and "," not in master:
        raise SettingsError(
            f"Spark's master is {master!r}, which allows a task one attempt only: a lost worker "
            f"could not be replaced. Use 'local[{max(found or 0, settings.parallelism)},1000000]', or let "
            f"flow.start make the session"
        )
    return found


def check_python(context: SparkContext) -> None:
    """Refuse a local Spark that would run workers with the Python of another environment."""
    found = shutil.which(context.pythonExec) or context.pythonExec
    # Not resolved: in a virtual environment this is a link to an interpreter without its packages.
    if is_local(context) and os.path.dirname(found) != os.path.dirname(sys.executable):
        raise SettingsError(
            f"Spark would run workers with {context.pythonExec!r}, expected this program's {sys.executable}: "
            f"set PYSPARK_PYTHON to it before the SparkSession is made, or let flow.start make the session"
        )


def checked_host(settings: Settings, context: SparkContext) -> str:
    """Return the address to listen on; complain if secrets can be read on their way there."""
    if settings.host is not None:
        host = settings.host
    elif is_local(context):
        host = LOOPBACK
    else:
        host = context.getConf().get("spark.driver.host", None) or socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise SettingsError(f"host={host!r} can't be resolved: {error}") from error
    if address.startswith("127."):
        return address
    if (context.getConf().get("spark.authenticate", None) or "false") != "true":
        text = (
            f"job secrets travel through Spark, but spark.authenticate is off and the driver listens on "
            f"{address}: whoever can talk to this Spark can read them; set spark.authenticate=true"
        )
        if settings.strict:
            raise SettingsError(text)
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    return address


def checked_encryption(settings: Settings, context: SparkContext, host: str) -> bool:
    """Return whether connections are encrypted; complain if the key can be read on its way."""
    spark_encrypts = encrypts_traffic(context.getConf().get)
    if settings.encryption == "auto":
        return spark_encrypts
    if settings.encryption == "on" and not spark_encrypts and not host.startswith("127."):
        text = (
            "encryption='on', but the key travels through Spark, whose own encryption is off: whoever can "
            "read Spark's traffic can read it; set spark.ssl.rpc.enabled=true, or spark.authenticate=true "
            "and spark.network.crypto.enabled=true"
        )
        if settings.strict:
            raise SettingsError(text)
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    return settings.encryption == "on"
