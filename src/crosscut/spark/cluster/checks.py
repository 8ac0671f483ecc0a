"""Checks of Spark and of the settings before a job starts. They change nothing.

A start that passes them may still be refused, when it opens the store or claims the job. It leaves behind
the directories of the store, what it has copied of a savepoint, and, on a cluster with local directories,
tokens in these (`crosscut.store.shared_directories`); the next start goes on with what it finds.
"""

from __future__ import annotations

import inspect
import os
import socket
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark import SparkContext

from crosscut.contracts.settings import Encryption, Settings
from crosscut.driver.engine_run import Network
from crosscut.errors import SettingsError
from crosscut.foundation.urls import local_path, shown_url
from crosscut.savepoints.tables import NUMBERED
from crosscut.spark.cluster.batch_retries import FAILURES_MAX
from crosscut.spark.cluster.local_dirs import open_local_dirs
from crosscut.spark.cluster.session import (
    LOOPBACK,
    encrypts_traffic,
    has_session,
    is_local,
    is_own,
    slots,
)
from crosscut.spark.cluster.slots import Holding, hold, holders
from crosscut.store.log_key import VARIABLE
from crosscut.store.owners import foreign_write
from crosscut.store.shared_directories import SharedDirectory


def check_checkpoint_dir(url: str) -> None:
    """Refuse a checkpoint directory that the workers would not share."""
    if url.startswith("memory:"):
        raise SettingsError(
            f"checkpoint_dir={shown_url(url)!r}: each worker process has a memory file system "
            f"of its own; use a directory or an object store that all of them see"
        )


def check_directories_are_shared(
    directories: Sequence[SharedDirectory], given: object, *, is_said: bool
) -> None:
    """Refuse local directories on a cluster, unless somebody says that its hosts share them.

    Args:
        given: `Settings.checkpoint_dir`.

    Raises:
        SettingsError: A directory may be another one on each host.
    """
    if not directories:
        return
    if not is_said:
        shown = ", ".join(f"{one.user}: {one.path}" for one in directories)
        raise SettingsError(
            f"on a cluster each host may have a directory of its own at these paths: {shown}. If all hosts "
            f"share them, as on NFS, say shared=True: each worker then checks it; else use an object store"
        )
    path = local_path(os.fspath(given)) if isinstance(given, str | os.PathLike) else ""
    if path is not None and not os.path.isabs(path):
        _warn(
            f"the checkpoint directory is relative to the directory that this program was started in: on all "
            f"hosts it is {directories[0].path}; give its absolute path as checkpoint_dir"
        )


def held_slots(job: str, parallelism: int, context: SparkContext) -> Holding:
    """Take the slots for a job's workers.

    Raises:
        SettingsError: Spark has not so many, or other jobs of this process hold them.
    """
    total = slots(context)
    needed = parallelism + sum(one.count for one in holders(context))
    if not is_own(context):
        advice = f"or give Spark more cores (local mode: master 'local[{needed},1000000]')"
    elif has_session(context):
        advice = (
            "or stop the SparkSession, which is on a Spark made for an earlier flow: a larger one is made"
        )
    else:
        advice = f"or bring a SparkSession of your own, with master 'local[{needed},1000000]'"
    return hold(context, job, parallelism, total, advice)


def warn_of_single_attempts(context: SparkContext) -> None:
    """Say so if Spark gives up on all workers when it has lost one: its default in local mode."""
    master = context.master or ""
    if is_local(context) and not master.startswith("local-cluster") and "," not in master:
        _warn(
            f"Spark's master is {master!r}, which allows a Spark task one attempt: if a worker is lost, "
            f"Spark ends all of them and the job submits them again, which takes seconds and counts as two "
            f"failures; with master '{_with_attempts(master)}' Spark would replace the lost one"
        )
    elif not is_local(context) and (losses := losses_borne(context.getConf().get)) < LOSSES_MIN:
        _warn(
            f"spark.task.maxFailures={losses}: at the {ordinal(losses)} loss of a worker in the life of the "
            f"job Spark ends all workers, and the job submits them again; set it to 1000000 when you make "
            f"the SparkSession, so that the restart strategy decides"
        )


LOSSES_MIN = 100
"""Losses of one worker that a job has in a long life, and should not end all others for."""


def losses_borne(conf: Callable[[str], str | None]) -> int:
    """Return how often Spark replaces one worker; it counts for the life of its Spark job."""
    configured = (conf("spark.task.maxFailures") or "").strip()
    return int(configured) if configured.isdecimal() else FAILURES_MAX


def ordinal(number: int) -> str:
    """Return 1 as "1st", 2 as "2nd", ..."""
    is_teen = number % 100 // 10 == 1
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def check_local_dirs_are_private(settings: Settings, context: SparkContext) -> None:
    """Complain if other users of this machine can read what batches put into Spark's shuffle files.

    Raises:
        SettingsError: They can, and `strict` is set.
    """
    is_one_process = is_local(context) and not (context.master or "").startswith("local-cluster")
    if settings.engine_name == "continuous" or not is_one_process:
        return
    found = open_local_dirs(context)
    if not found:
        return
    text = (
        f"other users of this machine can read Spark's local directory {', '.join(found)}, where "
        f"engine={settings.engine_name!r} puts records and state: set spark.local.dir (or SPARK_LOCAL_DIRS) "
        f"to a directory with mode 0700, or spark.io.encryption.enabled=true, when you make the SparkSession"
    )
    if settings.strict:
        raise SettingsError(text)
    _warn(text)


def _warn(text: str) -> None:
    """Warn at the line outside of this package that has led here."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "crosscut":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _with_attempts(master: str) -> str:
    cores = master.removeprefix("local").strip("[]") or "1"
    return f"local[{cores},1000000]"


def check_checkpoint_dir_is_private(url: str, *, strict: bool) -> None:
    """Complain if others may write to a local checkpoint directory: workers unpickle what stands there.

    Raises:
        SettingsError: They may, and `strict` is set.
    """
    if reason := foreign_write(url, ("log", "parts", "units")):
        _complain(
            f"{reason}: anyone who can write there can run code in the workers; chown it, chmod 700 it, or "
            f"choose another checkpoint_dir",
            strict=strict,
        )


def check_origin_is_private(path: str | os.PathLike[str], *, strict: bool) -> None:
    """Complain if others may write to a local savepoint or checkpoint directory: workers unpickle its state.

    Raises:
        SettingsError: They may, and `strict` is set.
    """
    where = os.fspath(path)
    if (numbered := NUMBERED.fullmatch(where)) is not None and not os.path.isdir(where):
        where = numbered[1]
    if reason := foreign_write(where):
        _complain(
            f"restore_from: {reason}: state is pickled, so anyone who can write there can run code in the "
            f"workers; chown it, chmod -R go-w it, or take a copy of it that you trust",
            strict=strict,
        )


def check_log_key_stays_here(context: SparkContext, *, strict: bool) -> None:
    """Complain if Spark hands the key of the job log on to its workers, in their environment.

    Raises:
        SettingsError: It does, and `strict` is set.
    """
    if VARIABLE not in os.environ:
        return
    if context.getConf().contains(f"spark.executorEnv.{VARIABLE}"):
        advice = f"remove spark.executorEnv.{VARIABLE} from its configuration"
    # Whether it is there, not what it is: py4j logs every answer.
    elif is_local(context) and context._jvm.System.getenv().containsKey(VARIABLE):  # type: ignore[union-attr]
        # The JVM is there already, and what it starts inherits its environment.
        advice = f"set {VARIABLE} in os.environ after the SparkSession is made, or let Crosscut start Spark"
    else:
        return
    _complain(
        f"this Spark has {VARIABLE} in the environment of its workers: an attacker who controls a worker "
        f"can forge entries of the job log; {advice}",
        strict=strict,
    )


def _complain(text: str, *, strict: bool) -> None:
    if strict:
        raise SettingsError(text)
    _warn(text)


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
    if is_loopback(address):
        return address
    if (context.getConf().get("spark.authenticate", None) or "false") != "true":
        text = (
            f"job secrets travel through Spark, but spark.authenticate is off and the driver listens on "
            f"{address}: anyone who can talk to this Spark can read them; set spark.authenticate=true"
        )
        if settings.strict:
            raise SettingsError(text)
        _warn(text)
    return address


def checked_network(settings: Settings, context: SparkContext) -> Network:
    """Return how the processes of a job reach each other; complain if somebody could listen."""
    host = checked_host(settings, context)
    is_encrypted = checked_encryption(settings, context, host)
    return Network(
        host=host,
        workers_host=LOOPBACK if is_local(context) else None,
        is_encrypted=is_encrypted,
        # On loopback only the administrator can come between.
        seals_frames=not is_encrypted and not is_loopback(host),
        is_local=is_local(context),
    )


def checked_encryption(settings: Settings, context: SparkContext, host: str) -> bool:
    """Return whether connections are encrypted; complain if somebody on the way could read or change them."""
    spark_encrypts = encrypts_traffic(context.getConf().get)
    found = protection(settings.encryption, spark_encrypts=spark_encrypts, is_loopback=is_loopback(host))
    if found.complaint:
        if found.is_refused or settings.strict:
            raise SettingsError(found.complaint)
        if settings.encryption != "off":
            _warn(found.complaint)
    return found.is_encrypted


@dataclass(frozen=True, slots=True)
class Protection:
    """What becomes of a setting of `encryption`.

    Attributes:
        is_encrypted: Whether connections are.
        complaint: The reason why that is wrong, or "".
        is_refused: It is always refused; else only under `strict`.
    """

    is_encrypted: bool
    complaint: str = ""
    is_refused: bool = False


def protection(encryption: Encryption, *, spark_encrypts: bool, is_loopback: bool) -> Protection:
    """Decide whether to encrypt, and what to say of it.

    Args:
        spark_encrypts: Whether Spark encrypts what its processes say to each other.
        is_loopback: Nothing leaves this machine.
    """
    is_encrypted = spark_encrypts if encryption == "auto" else encryption != "off"
    if is_loopback or (is_encrypted and spark_encrypts):
        return Protection(is_encrypted)
    if is_encrypted:
        text = "but the key travels through Spark, whose own encryption is off: anyone who can read Spark's "
        text += "traffic can read it"
    else:
        text = "and connections to other machines are not encrypted: anyone on the path can read all "
        text += "records, and anyone who can read Spark's traffic has the job's secret and can run code in "
        text += "the workers"
    remedy = (
        "set spark.ssl.rpc.enabled=true, or spark.authenticate=true and spark.network.crypto.enabled=true"
    )
    if encryption == "off":
        remedy += ", and leave encryption at 'auto'"
    return Protection(
        is_encrypted, f"encryption={encryption!r}, {text}; {remedy}", is_refused=encryption == "required"
    )


def is_loopback(host: str) -> bool:
    """Return whether what is said to this address stays on this machine."""
    return host.startswith("127.")
