"""Count words: a running count of every word in some text files, exactly once whatever fails.

python examples/word_count.py 'corpus/**/*.txt'         (by itself, starts a local Spark)
crosscut run examples/word_count.py:flow                (counts the words of the examples)

Start it again after a kill or Ctrl-C, and it goes on from its last checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import crosscut as cc


def word_count(pattern: str, out: str) -> cc.Flow:
    """Write (word, how often it was seen so far) for every word of the files."""
    flow = cc.Flow("word-count")
    (
        flow.source(cc.files.read_text(pattern, errors="replace"))
        .named("lines")
        .flat_map(str.split)
        .key_by(lambda word: word)
        .count()
        .named("counts")
        .sink(cc.files.write_jsonl(out))
        .named("out")
    )
    return flow


flow = word_count(f"{Path(__file__).parent}/*.py", "word-count-out")


def main(pattern: str) -> None:
    flow = word_count(pattern, "word-count-out")
    job = flow.start(cc.Settings(parallelism=2))
    job.wait()
    print(f"{job.status}, {len(job.checkpoints())} checkpoints")
    # Counts only grow, so the last update of a word is its count.
    counts: Counter[str] = Counter()
    for path in Path("word-count-out").glob("*.jsonl"):
        for line in path.open(encoding="utf-8"):
            word, count = json.loads(line)
            counts[word] = max(counts[word], count)
    for word, count in counts.most_common(10):
        print(f"{count:8}  {word}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else f"{Path(__file__).parent}/*.py")
