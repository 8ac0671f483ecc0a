"""The exhaustive explorer: every state that a small world can be in, and what must hold in each.

A world is one of a few small graphs under one snapshot protocol, with at most so many records,
checkpoints and faults. The search goes through it breadth first, so the first violation that it finds is one
of the shortest; it is told as a conversation. `python -m tests.proof.explorer --help` runs one world.

**Real**: everything in `crosscut.protocol`. The snapshot protocol of each task, its committer, and one
coordinator for each driver with all that it is made of: the writer of the job log, the books of the
checkpoints, registry and admission, claims and restarts, retention, termination. Each machine is run on a
copy, once for each pair of state and event, and looked up from then on (`machines`).

**Model**, since the real thing does I/O or holds user code:

* `tasks`: what `crosscut.task.task` does with the effects of a protocol. A task counts the records it
  has seen, so its state is a multiset; batches hold one record; operators do nothing else.
* `store`: job log, parts, and the stage of the sinks, as values; with the invariants (I1 to I10, F3, F5 of
  docs/reliability.md), which know nothing of the protocol.
* `draft`: what worker, driver and Spark do with the effects: links, inboxes, deployment, replacement. All
  workers hear of a halt at once, and a replacement registers at once.
* `driver`: which timers fire. Those that limit phases (gather, restore, finish, restart, liveness) do not:
  no phase lasts, a crash shows at once, and a restart has no delay.

Not explored, and left to the simulator and to the tests on real processes: jobs that go on at another
parallelism or begin with a savepoint, records of more than one batch, credit and back pressure, spilling,
stops on request, silent workers, two workers for one place.
"""
