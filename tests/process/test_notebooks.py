"""Notebooks, in a real kernel: one with a job that is defined in its cells.

It is driven by a process of its own: what drives kernels leaves event loops behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
from jobs import DEADLINE_S, until
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

from crosscut import errors
from crosscut.protocol.log.entries import CheckpointCompleted
from crosscut.store.checkpoint_store import open_store

DEFINITION = """
import os
import crosscut as cc
from dataclasses import dataclass

@dataclass
class Price:
    of: int
    cents: int

def priced(n):
    return Price(n % 3, n)

class Highest(cc.KeyedProcess):
    seen = cc.ValueState(default=0)

    def on_record(self, price, ctx):
        self.seen.set(max(self.seen.get(), price.cents))

def defined():
    flow = cc.Flow("prices")
    prices = flow.source(cc.generate(lambda n: n, rate=300)).map(priced)
    prices.key_by(lambda price: price.of).process(Highest()).named("highest").sink(cc.collect("out"))
    return flow

settings = cc.Settings(parallelism=2, checkpoint_dir="prices", checkpoint_interval="200ms")
"""

WAITED = """
import time
def until(condition):
    while not condition():
        assert job.status not in ("failed", "stopped", "finished"), job.status
        time.sleep(0.05)
"""

WAITING = ("job.wait()", "await job", "time.sleep(600)")
INTERRUPTED = ("KeyboardInterrupt", "CancelledError")
"""What a cell ends with when it is interrupted; the second one while it awaits something."""

STOPPED = "job.stop(); print(job.status)"


class Notebook:
    """A kernel, and a notebook that grows by a cell at a time, as people use it."""

    def __init__(self, directory: Path) -> None:
        self.notebook = nbformat.v4.new_notebook()
        self.client = NotebookClient(
            self.notebook, timeout=int(DEADLINE_S), resources={"metadata": {"path": str(directory)}}
        )
        self.client.create_kernel_manager()
        self.client.start_new_kernel()
        self.client.start_new_kernel_client()

    def run(self, source: str, *, raises: tuple[str, ...] = ()) -> Any:
        """Run a new cell; return it.

        Args:
            raises: It is to end with one of these.
        """
        cell = nbformat.v4.new_code_cell(source)
        if raises:
            cell.metadata["tags"] = ["raises-exception"]
        self.notebook.cells.append(cell)
        self.client.execute_cell(cell, len(self.notebook.cells) - 1)
        failures = [one.ename for one in cell.outputs if one.output_type == "error"]
        assert len(failures) == bool(raises) and set(failures) <= set(raises), cell.outputs
        return cell

    def text(self, source: str) -> str:
        """Run a new cell; return what it prints."""
        return "".join(one.text for one in self.run(source).outputs if one.get("name") == "stdout")

    def interrupt(self) -> None:
        run_sync(self.client.km.interrupt_kernel)()

    def restart(self) -> None:
        run_sync(self.client.km.restart_kernel)(now=True)

    def close(self) -> None:
        self.client.kc.stop_channels()
        run_sync(self.client.km.shutdown_kernel)(now=True)
        run_sync(self.client.km.cleanup_resources)()


def html(cell: Any) -> str:
    (output,) = [one for one in cell.outputs if "text/html" in one.get("data", {})]
    return str(output.data["text/html"])


def newest_checkpoint(directory: Path) -> int:
    entries = [entry for _, entry in open_store(str(directory), create=False).tail(1)]
    return max(one.checkpoint_id for one in entries if isinstance(one, CheckpointCompleted))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_job_of_a_notebook_is_shown_alive_and_survives_interrupts_but_not_the_kernel(
    tmp_path: Path,
) -> None:
    path = os.pathsep.join(str(one) for one in (Path(errors.__file__).parents[1], Path(__file__).parent))
    ran = subprocess.run(
        [sys.executable, "-P", __file__, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


def use(notebook: Notebook, directory: Path) -> None:
    """Do what people do in notebooks."""
    notebook.run(DEFINITION)
    notebook.run("job = defined().start(settings)")
    shown = notebook.run("job")
    assert "<b>prices</b>" in html(shown)
    notebook.run(WAITED)
    notebook.run("until(lambda: job.checkpoints() and job.values('highest', 'seen'))")

    # A cell that waits is interrupted: the job is not.
    for waiting in WAITING:
        interrupt(notebook, directory / "waits", waiting)
    notebook.run(
        "n = job.checkpoints()[-1].checkpoint_id\nuntil(lambda: job.checkpoints()[-1].checkpoint_id > n)"
    )

    # The cell that has started it is run again.
    replaced = notebook.run("before = job\njob = defined().start(settings)\nprint(before.status, job.status)")
    texts = "".join(one.text for one in replaced.outputs if one.output_type == "stream")
    assert "it is stopped with a last checkpoint, from which the new one resumes" in texts
    assert "stopped " in texts
    notebook.run("until(lambda: job.checkpoints() and job.values('highest', 'seen'))")

    assert notebook.text(STOPPED) == "stopped\n"
    until_shown(notebook, shown, "stopped")

    # Another definition under the same names: what the workers run is the new one.
    notebook.run("def priced(n):\n    return Price(n % 3, -n - 1)\n")
    notebook.run(
        "second = cc.Settings(parallelism=2, checkpoint_dir='second', checkpoint_interval='200ms')\n"
        "job = defined().start(second)\n"
        "until(lambda: job.checkpoints() and job.values('highest', 'seen'))"
    )
    assert notebook.text("print(set(job.values('highest', 'seen').values()))") == "{0}\n"

    pids = [int(one) for one in notebook.text("print(*[one.pid for one in job.workers()])").split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    before = newest_checkpoint(directory / "second")
    notebook.restart()
    until(lambda: not any(map(alive, pids)), "the end of the workers")
    assert newest_checkpoint(directory / "second") >= before


def interrupt(notebook: Notebook, runs: Path, waiting: str) -> None:
    """Run a cell that waits, and interrupt the kernel once the cell has made the file `runs`."""
    runs.unlink(missing_ok=True)
    source = f"open({str(runs)!r}, 'w').close()\n{waiting}"

    def interrupt() -> None:
        until(runs.exists, "a cell that waits")
        notebook.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    notebook.run(source, raises=INTERRUPTED)
    thread.join()


def until_shown(notebook: Notebook, cell: Any, text: str) -> None:
    """Let the kernel go on until the panel under `cell` holds `text`: it is renewed while others run."""

    def is_shown() -> bool:
        notebook.run("import time; time.sleep(0.2)")
        return text in html(cell)

    until(is_shown, f"a panel with {text!r}")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    used = Notebook(place)
    try:
        use(used, place)
    finally:
        used.close()
