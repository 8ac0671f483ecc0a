"""Mutants of the shipped code, each with the tests that have to find it.

`python -m tests.proof.mutants [WORD ...]` runs those with one of the words in file or name, by default all. A
mutant replaces one piece of text in one file of a copy of the tree, and runs its tests there. A rule whose
mutant survives has no test. Prints a line of JSON for each, and exits with 1 if one survives.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "crosscut"
TIMEOUT_S = 600


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        name: What is wrong with it.
        file: Below `src/crosscut`.
        old: Text that stands there exactly once.
        new: What stands there instead.
        tests: Arguments for pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def mutated(self) -> str:
        """The file with the bug in it."""
        text = (PACKAGE / self.file).read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.file} has {text.count(self.old)} times {self.old!r}: expected one"
            )
        return text.replace(self.old, self.new)


JOIN, LATEST = "operators/joins/interval.py", "operators/joins/latest.py"
BOUNDARIES = "tests/unit/test_join_boundaries.py"
THREADS, TAKEOVER = "tests/unit/test_sink_threads.py", "tests/unit/test_file_sink_takeover.py"
MARKER = "tests/unit/test_kafka_marker.py"
PROBING, PROBED = "operators/probing.py", "tests/unit/test_probing.py"
POSTS, POSTED = "connectors/http/sink.py", "tests/conformance/test_http.py"
UNIT_LOG, SEGMENT_FILES = "store/unit_log.py", "store/segment_files.py"
UNIT_STORES, UNIT_OBJECTS = "tests/conformance/test_unit_log_store.py", "tests/unit/test_unit_log_store.py"
UNIT_FILES, UNIT_CRASHES = "tests/unit/test_segment_files.py", "tests/unit/test_unit_log_crashes.py"

RESTARTS, COORDINATED = "protocol/job/restarts.py", "tests/unit/test_coordinator.py"
SHARED, SHARING = "store/shared_directories.py", "tests/unit/test_shared_directories.py"

MUTANTS = (
    Mutant(
        "each worker that can't start is a failure of its own",
        RESTARTS,
        "if self._round and worker not in self._round and not cause.is_final:",
        "if False:",
        COORDINATED,
    ),
    Mutant(
        "a round of failed starts goes on in the next epoch",
        RESTARTS,
        "        self.end_round()\n        forget,",
        "        forget,",
        COORDINATED,
    ),
    Mutant(
        "a worker that can't start is not told to wait",
        "protocol/job/coordinator.py",
        "failed=True, after_ms=decision.delay_ms",
        "failed=True, after_ms=0",
        COORDINATED,
    ),
    Mutant(
        "a module that is missing is tried as often as a service that is down",
        RESTARTS,
        "bool(one.operator or one.kind in IMPORTS)",
        "bool(one.operator)",
        COORDINATED,
    ),
    Mutant(
        "a driver replaces the token of another one",
        SHARED,
        "if not path.exists():",
        "path.unlink(missing_ok=True)\n        if True:",
        SHARING,
    ),
    Mutant(
        "a file system in trouble counts as another directory",
        SHARED,
        "except (FileNotFoundError, UnicodeDecodeError):",
        "except (OSError, UnicodeDecodeError):",
        SHARING,
    ),
    Mutant(
        "an interval join drops a record while its last partner may come",
        JOIN,
        "earliest + last < self.watermark",
        "earliest + last <= self.watermark",
        BOUNDARIES,
    ),
    Mutant(
        "an interval join does not keep a record whose interval ends at the watermark",
        JOIN,
        "time + last >= self.watermark",
        "time + last > self.watermark",
        BOUNDARIES,
    ),
    Mutant(
        "an interval join calls a record of the time of the watermark late",
        JOIN,
        "if time < self.watermark",
        "if time <= self.watermark",
        BOUNDARIES,
    ),
    Mutant(
        "a join with the latest calls a record of the time of the watermark late",
        LATEST,
        "if time < self.watermark",
        "if time <= self.watermark",
        BOUNDARIES,
    ),
    Mutant(
        "a join with the latest does not wait for a version of the time of the watermark",
        LATEST,
        "earliest < self.watermark",
        "earliest <= self.watermark",
        BOUNDARIES,
    ),
    Mutant(
        "a join with the latest keeps the first of two versions of one time",
        LATEST,
        "time < min(latest, self.watermark)",
        "time <= min(latest, self.watermark)",
        BOUNDARIES,
    ),
    Mutant(
        "a join with the latest keeps versions that nothing asks for",
        LATEST,
        "[0] <= self.watermark",
        "[0] < self.watermark",
        BOUNDARIES,
    ),
    Mutant(
        "sequence numbers of frames wrap",
        "wire/frames.py",
        "if sequence != expected",
        "if sequence & 0xFFFFFFFF != expected & 0xFFFFFFFF",
        "tests/unit/test_wire_frames.py",
    ),
    Mutant(
        "older checkpoints under way are never aborted",
        "protocol/checkpoint/scheduler.py",
        "effects += self._abort(older)",
        "pass",
        "tests/unit/test_two_in_flight.py",
    ),
    Mutant(
        "a refused entry takes the newer one behind it with it",
        "protocol/log/writer.py",
        "if not isinstance(verdict, (Durable, Refused)):",
        "if not isinstance(verdict, Durable):",
        "tests/unit/test_two_in_flight.py",
    ),
    Mutant(
        "the pieces of all long batches of a channel count together",
        "net/channels.py",
        "        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0",
        "        pieces, self._pieces = self._pieces, []",
        "tests/unit/test_pieces_of_batches.py",
    ),
    Mutant(
        "a long batch begins with the one before",
        "net/channels.py",
        "        pieces, self._pieces, self._pieces_bytes = self._pieces, [], 0",
        "        pieces, self._pieces_bytes = list(self._pieces), 0",
        "tests/unit/test_pieces_of_batches.py",
    ),
    Mutant(
        "the rest of a long batch goes behind the next one",
        "wire/send_queues.py",
        "send_queue.appendleft((kind, whole[self.piece_bytes :]))",
        "send_queue.append((kind, whole[self.piece_bytes :]))",
        "tests/unit/test_pieces_of_batches.py",
    ),
    Mutant(
        "slots are rolled back from the oldest layer on",
        "state/slots.py",
        "for newer in reversed(self._changes_after(checkpoint_id)):",
        "for newer in self._changes_after(checkpoint_id):",
        "tests/unit/test_slot_roll_back.py",
    ),
    Mutant(
        "slots are rolled back by the newest layer alone",
        "state/slots.py",
        "for newer in reversed(self._changes_after(checkpoint_id)):",
        "for newer in [self._changes]:",
        "tests/unit/test_slot_roll_back.py",
    ),
    Mutant(
        "a timer that is set twice takes a new place",
        "state/timers.py",
        "        if self._table.has(row):\n            return False\n",
        "",
        "tests/conformance/test_timers.py",
    ),
    Mutant(
        "a driver restores output that was dropped",
        "protocol/checkpoint/retention.py",
        "self.completed = restored(tail)",
        "self.completed = self.retained[-1] if completed else None",
        "tests/unit/test_dropping.py",
    ),
    Mutant(
        "a lost answer to COMMIT PREPARED is a lost transaction",
        "connectors/postgres/two_phase.py",
        "if checkpoint_id <= max(marker.checkpoint_id if marker else 0, self._newest(session)):",
        "if checkpoint_id <= (marker.checkpoint_id if marker else 0):",
        "tests/conformance/test_postgres.py -k answer",
    ),
    Mutant(
        "dead letters are committed with the checkpoint before",
        "contracts/refused_records.py",
        "        return {_RECORDS: handle, _DEAD_LETTERS: dead_letter_handles}",
        "        return handle",
        "tests/conformance/test_refusing_sinks.py",
    ),
    Mutant(
        "refusals of a later transaction are letters of the one before",
        "contracts/refused_records.py",
        "        dead_letters, self._open = self._open, []\n",
        "        dead_letters = self._open\n",
        "tests/conformance/test_refusing_sinks.py",
    ),
    Mutant(
        "a commit does not wait for the writer's other thread",
        "worker/background.py",
        "async with self._writer_lock:\n                await self",
        "if True:\n                await self",
        THREADS,
    ),
    Mutant(
        "a prepare does not wait for the writer's other thread",
        "worker/background.py",
        "            async with self._writer_lock:\n                handle =",
        "            if True:\n                handle =",
        THREADS,
    ),
    Mutant(
        "held records are forgotten before their commit",
        "worker/background.py",
        '        self._host.failpoints("commit.before")\n',
        "        self._held.forget(commit.permit.checkpoint_id)\n",
        THREADS,
    ),
    Mutant(
        "a file sink's zombie sweeps the files of its successor",
        "connectors/files/staged_files.py",
        "epoch is not None and epoch < self._context.epoch",
        "epoch is not None and epoch != self._context.epoch",
        TAKEOVER,
    ),
    Mutant(
        "a file sink looks for others only once",
        "connectors/files/staged_files.py",
        "            self._check_history(permit, after, handles)\n            known",
        "            known",
        TAKEOVER,
    ),
    Mutant(
        "a file sink that is tried again reads its own ledger alone",
        "connectors/files/staged_files.py",
        "known = joined(self._storage.ledgers(workplace.stage))",
        "known = workplace.ledger.published",
        TAKEOVER,
    ),
    Mutant(
        "the older state of a ledger counts",
        "connectors/files/ledger.py",
        "return max(states, key=lambda one: one[0])",
        "return min(states, key=lambda one: one[0])",
        TAKEOVER,
    ),
    Mutant(
        "a ledger with a torn state is damaged",
        "connectors/files/ledger.py",
        "    if states:\n",
        "    if len(states) == 2:\n",
        TAKEOVER,
    ),
    Mutant(
        "all states of a ledger go into one slot",
        "connectors/files/ledger.py",
        "SLOT_BYTES * (self._number % _SLOTS)",
        "0",
        TAKEOVER,
    ),
    Mutant(
        "the checksum of a state is not looked at",
        "connectors/files/ledger.py",
        " and check == _checksum(content)",
        "",
        TAKEOVER,
    ),
    Mutant(
        "an epoch that begins again forgets its ledger",
        "connectors/files/ledger.py",
        "published = published.joined(found)",
        "pass",
        TAKEOVER,
    ),
    Mutant(
        "a Kafka marker of this epoch is taken for that of a newer one",
        "connectors/kafka/marker.py",
        "if marker.epoch > context.epoch",
        "if marker.epoch >= context.epoch",
        MARKER,
    ),
    Mutant(
        "what Kafka has confirmed to this writer is not looked at",
        "connectors/kafka/marker.py",
        ", location, confirmed=confirmed)",
        ", location)",
        MARKER,
    ),
    Mutant(
        "a Kafka marker that is gone is none that was never there",
        "connectors/kafka/marker.py",
        "if has_pending and permit is not None",
        "if False",
        MARKER,
    ),
    Mutant(
        "one dead copy convicts a record",
        PROBING,
        "        if again.died is None:\n            return 1\n",
        "        again = again if again.died else tried\n",
        PROBED,
    ),
    Mutant(
        "copies that are killed convict a record on a machine without memory",
        PROBING,
        "if self._next_passes(operator, batch) else 1",
        "if again.died else 1",
        PROBED,
    ),
    Mutant(
        "the record after a deadly one is lost",
        "task/chain.py",
        "_, rest = batch.drop(len(batch)).split(1)",
        "_, rest = batch.drop(len(batch)).split(min(2, len(batch)))",
        PROBED,
    ),
    Mutant(
        "a silent worker counts as one that has died",
        "protocol/job/coordinator.py",
        "self.registry.why_silent(place.link), has_died=False",
        "self.registry.why_silent(place.link), has_died=True",
        "tests/unit/test_coordinator.py -k silence",
    ),
    Mutant(
        "an owner of a segment file does not look for the seal",
        SEGMENT_FILES,
        "writing.is_sealed = self._is_sealed(index.segment)",
        "writing.is_sealed = False",
        f"{UNIT_STORES} -k zombie",
    ),
    Mutant(
        "an owner of a segment file looks for the seal before its group is durable",
        SEGMENT_FILES,
        """            self._fdatasync(writing.descriptor)
            writing.is_sealed = self._is_sealed(index.segment)
""",
        """            writing.is_sealed = self._is_sealed(index.segment)
            self._fdatasync(writing.descriptor)
""",
        f"{UNIT_FILES} -k seal",
    ),
    Mutant(
        "a group is reported before it is durable",
        SEGMENT_FILES,
        "            self._fdatasync(writing.descriptor)\n",
        "",
        f"{UNIT_CRASHES} -k power",
    ),
    Mutant(
        "the name of a new segment file is not made durable",
        SEGMENT_FILES,
        "            self._files.settle(self._directory)\n",
        "            pass\n",
        f"{UNIT_CRASHES} -k power",
    ),
    Mutant(
        "a claimant does not make durable what it has read",
        SEGMENT_FILES,
        "        groups = self._groups_in(segment)\n        if not groups:",
        "        groups: list[StoredEntry] = []\n        if not groups:",
        f"{UNIT_FILES} -k written_again",
    ),
    Mutant(
        "a damaged group before whole ones is taken for a torn tail",
        SEGMENT_FILES,
        "if self._has_later(data, offset, index):",
        "if False:",
        f"{UNIT_FILES} -k whole_one_after",
    ),
    Mutant(
        "groups after the cut count",
        SEGMENT_FILES,
        "(cut is None or len(found) < cut.number)",
        "True",
        f"{UNIT_FILES} -k void",
    ),
    Mutant(
        "a segment file is deleted while a group in it is needed",
        SEGMENT_FILES,
        "if number >= head.cut.number:",
        "if True:",
        f"{UNIT_FILES} -k last_group",
    ),
    Mutant(
        "the log of a unit is not read again when it was compacted meanwhile",
        UNIT_LOG,
        "                if not self._has_head(newest + 1):\n                    self._remember",
        "                if True:\n                    self._remember",
        f"{UNIT_FILES} -k compacted",
    ),
    Mutant(
        "an entry of a unit that does not follow the one before is believed",
        UNIT_LOG,
        "if next_one.before != one.digest:",
        "if False:",
        f"{UNIT_OBJECTS} -k replaced",
    ),
    Mutant(
        "a head goes into a directory that is not durable",
        UNIT_LOG,
        """            if index.number == 0:
                self._make_directories(path.rpartition("/")[0])
""",
        "",
        f"{UNIT_OBJECTS} -k durable",
    ),
    Mutant(
        "what has closed a segment is deleted as a group",
        UNIT_LOG,
        " and index != closing[index.segment]",
        "",
        f"{UNIT_STORES} -k left_behind",
    ),
    Mutant(
        "a claimant closes a segment where its owner was when the claimant began to read",
        UNIT_LOG,
        "range(_FOLLOWED_MAX if cut is None else 0)",
        "range(0)",
        f"{UNIT_OBJECTS} -k appended_while",
    ),
    Mutant(
        "answered requests are not noted",
        POSTS,
        "                    self._context.progress.note(note)\n",
        "",
        f"{POSTED} -k another_process",
    ),
    Mutant(
        "a refused record is noted before its dead letter is written",
        "contracts/refused_records.py",
        "        if not self._unwritten:\n            self._progress",
        "        if True:\n            self._progress",
        f"{POSTED} -k dead_letter",
    ),
    Mutant(
        "a note counts for other records with the same key",
        POSTS,
        "if key == noted and digest == sha256(self._context.held.data(checkpoint_id)).hexdigest():",
        "if key == noted:",
        f"{POSTED} -k names",
    ),
    Mutant(
        "checkpoints before the noted one are posted again",
        POSTS,
        "                self._committed = committed\n",
        "",
        f"{POSTED} -k another_process",
    ),
    Mutant(
        "a note without the job's signature is believed",
        "worker/commit_progress.py",
        "if not self._key or hmac.compare_digest(mac, self._mac(text)):",
        "if True:",
        f"{POSTED} -k signed",
    ),
    Mutant(
        "a record that ends the process is taken with those before it",
        "contracts/decoding.py",
        "            self._safe_count = outcome\n",
        "            self._safe_count = len(self._found)\n",
        "tests/unit/test_probing.py -k decod",
    ),
)


def survivors(words: list[str]) -> list[str]:
    """Run the tests of each mutant; return the names of those that they don't find."""
    found = []
    for one in MUTANTS:
        if words and not any(word in one.file or word in one.name for word in words):
            continue
        outcome = judged(one)
        print(json.dumps({"mutant": one.name, "file": one.file, "outcome": outcome}), flush=True)
        if outcome != "killed":
            found.append(one.name)
    return found


def judged(mutant: Mutant) -> str:
    """Return "killed", "survived", or why its tests could not be run."""
    with tempfile.TemporaryDirectory(prefix="crosscut-mutant-") as directory:
        shutil.copytree(ROOT / "src", Path(directory, "src"), ignore=shutil.ignore_patterns("__pycache__"))
        Path(directory, "src", "crosscut", mutant.file).write_text(mutant.mutated)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            *mutant.tests.split(),
        ]
        environment = {**os.environ, "PYTHONPATH": str(Path(directory, "src"))}
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return "killed"
    # 1: a test has failed. Anything else than 0 is a mistake in the list.
    return {0: "survived", 1: "killed"}.get(code, f"pytest exited with {code}")


if __name__ == "__main__":
    sys.exit(bool(survivors(sys.argv[1:])))
