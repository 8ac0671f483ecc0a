"""A program that runs jobs with every log at DEBUG, and looks for what it must not find.

Started by `test_secrets.py` in a process of its own: log levels, Spark's configuration and the directory for
temporary files hold for a whole process. Prints what it has found, as JSON.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs import DEADLINE_S, NumberedJob, until
from pyspark import SparkConf, SparkContext

from crosscut.net.connections import Credentials
from crosscut.store.log_key import VARIABLE

ALIGNMENTS = 3
"""Base64 turns three bytes into four characters, so there are as many ways to write the same bytes down."""

LOG4J = """
rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""


def forms_of(secret: bytes) -> set[bytes]:
    """Return what `secret` looks like: raw, in hex, as Python shows it, in base64 wherever it begins."""
    forms = {secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode()}
    for before in range(ALIGNMENTS):
        # The first and the last characters depend on what stands around.
        whole = secret[-before % ALIGNMENTS :]
        encoded = base64.b64encode(whole[: len(whole) // 3 * 3])
        forms |= {encoded, encoded.translate(bytes.maketrans(b"+/", b"-_"))}
    return forms


def secrets_of(credentials: Credentials) -> dict[str, bytes]:
    """Return what nobody may find of the credentials of a job."""
    if credentials.certificate is None:
        return {"secret": credentials.secret}
    lines = credentials.certificate._key.strip().splitlines()
    # The first line, and the first bytes, are the same in all keys of this kind.
    binary = base64.b64decode(b"".join(lines[1:-1]))[32:]
    return {"secret": credentials.secret, "key as PEM": lines[2], "key as DER": binary}


def found_in(directory: Path, secrets: dict[str, bytes]) -> Iterator[str]:
    """Yield which of `secrets` stand in which file below `directory`."""
    forms = {name: forms_of(secret) for name, secret in secrets.items()}
    for path in sorted(directory.rglob("*")):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        for name, several in forms.items():
            if any(one in content for one in several):
                yield f"{name} in {path.relative_to(directory)}"


class Loud:
    """Writes down what its process logs; called with each record, on the workers. Has a secret of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.password = os.urandom(32)

    def __call__(self, record: Any) -> Any:
        # Those of the worker are there already.
        if not any(isinstance(one, logging.FileHandler) for one in logging.getLogger().handlers):
            log_everything(self.directory / f"worker-{os.getpid()}.log")
            logging.getLogger("worker").debug("heard in a worker")
        return record


def looked_through(directory: Path, spark: SparkContext, name: str, encryption: str) -> dict[str, list[str]]:
    """Run a job; return what was looked for below `directory`, and what was found while it ran or later."""
    place = directory / name
    place.mkdir()
    hook = Loud(place)
    numbered = NumberedJob(place, count=2_000, held=True, hook=hook, settings={"encryption": encryption})
    job = numbered.start(spark)
    until(lambda: len(job.checkpoints()) >= 1, "a checkpoint")
    log_key = os.environ[VARIABLE].encode()
    secrets = {**secrets_of(job._run.driver._credentials), "the user's": hook.password, "log key": log_key}
    while_it_runs = list(found_in(directory, secrets))
    numbered.open_gate()
    job.wait(DEADLINE_S)
    found = {*while_it_runs, *found_in(directory, secrets)}
    return {"looked for": sorted(secrets), "found": sorted(found)}


def log_everything(path: Path) -> None:
    logging.basicConfig(filename=path, level=logging.DEBUG, force=True)


def main(directory: Path) -> None:
    log_everything(directory / "driver.log")
    settings = directory / "log4j2.properties"
    settings.write_text(LOG4J.format(path=directory / "java.log"))
    conf = SparkConf().setMaster("local[3,1000000]").setAppName("debugged")
    conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
    conf.set("spark.ui.enabled", "false").set("spark.local.dir", str(directory / "spark"))
    conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={settings.as_uri()}")
    report: dict[str, Any] = {}
    with SparkContext(conf=conf) as spark:
        report["plain"] = looked_through(directory, spark, "plain", "off")
        report["encrypted"] = looked_through(directory, spark, "encrypted", "on")
        # From here on every closure is written to a file.
        spark._jsc.sc().conf().set("spark.broadcast.UDFCompressionThreshold", "1b")
        report["in files"] = looked_through(directory, spark, "in-files", "on")
    logging.shutdown()
    control = {
        "a command": b"Command to send: c\n",
        "Spark": b"DEBUG org.apache.spark",
        "a worker": b"heard in a worker",
    }
    report["control"] = sorted({one.split(" in ")[0] for one in found_in(directory, control)})
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
