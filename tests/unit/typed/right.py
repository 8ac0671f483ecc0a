"""What must pass under mypy --strict."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, assert_type

import crosscut as cc

flow = cc.Flow("right")
numbers = flow.source(cc.generate(lambda i: i, count=10))
assert_type(numbers, cc.Stream[int])
assert_type(numbers.map(str), cc.Stream[str])
assert_type(numbers.map(lambda n: (n, str(n))).filter(lambda pair: pair[1]), cc.Stream[tuple[int, str]])
assert_type(numbers.union(numbers.map(str)), cc.Stream[int | str])
assert_type(numbers.inspect(print).rebalance().broadcast(), cc.Stream[int])

assert_type(flow.source(cc.items(["a", "b"])), cc.Stream[str])
numbers.sink(cc.printing())

words = flow.source(cc.files.read_text("*.txt")).flat_map(str.split)
assert_type(words, cc.Stream[str])
keyed = words.key_by(lambda word: (word, len(word)))
assert_type(keyed, cc.KeyedStream[tuple[str, int], str])
assert_type(keyed.named("by word").count(emit="final"), cc.Stream[tuple[tuple[str, int], int]])

by_length = words.key_by(len)
assert_type(by_length.sum(lambda word: len(word) / 2), cc.Stream[tuple[int, float]])
assert_type(by_length.sum(), cc.Stream[tuple[int, str]])
assert_type(by_length.reduce(max), cc.Stream[tuple[int, str]])


def longest(found: list[str], word: str) -> list[str]:
    return [*found, word]


def add(total: tuple[int, int], word: str) -> tuple[int, int]:
    return total[0] + 1, total[1] + len(word)


assert_type(by_length.aggregate(list, longest), cc.Stream[tuple[int, list[str]]])
assert_type(by_length.aggregate(list, longest, len), cc.Stream[tuple[int, int]])
assert_type(by_length.aggregate((0, 0), add), cc.Stream[tuple[int, tuple[int, int]]])
assert_type(by_length.aggregate((0, 0), add, lambda total: total[1] / total[0]), cc.Stream[tuple[int, float]])
assert_type(by_length.aggregate(0, lambda total, word: total + len(word)), cc.Stream[tuple[int, int]])
words.map(json.loads).map(lambda anything: anything["key"]).sink(cc.files.write_jsonl("out")).named("out")


def step(loop: cc.Stream[int]) -> tuple[cc.Stream[int], cc.Stream[str]]:
    halved = loop.map(lambda n: n // 2)
    return halved.filter(lambda n: n > 1), halved.filter(lambda n: n <= 1).map(str)


assert_type(numbers.iterate(step), cc.Stream[str])


def untyped(loop: cc.Stream) -> tuple[cc.Stream, cc.Stream]:
    return loop.filter(bool), loop.map(str)


numbers.iterate(untyped).sink(cc.collect())


class Words(cc.Source[str]):
    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        return [cc.Split("only", 0)]

    def reader(self, split: cc.Split, position: cc.JSON) -> WordsReader:
        return WordsReader()


class WordsReader(cc.SplitReader[str]):
    @property
    def position(self) -> cc.JSON:
        return 0

    def read(self, limit: int) -> list[str] | cc.Wait | cc.EndOfSplit:
        return cc.EndOfSplit()


assert_type(flow.source(Words()), cc.Stream[str])


class Plain(cc.Source):
    def splits(self, parallelism: int) -> Sequence[cc.Split]:
        return [cc.Split("only", 0)]

    def reader(self, split: cc.Split, position: cc.JSON) -> cc.SplitReader:
        raise NotImplementedError


class Numbers(cc.Sink[float]):
    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        raise NotImplementedError


assert_type(flow.source(Plain()), cc.Stream[Any])
numbers.sink(Numbers())


def several(n: int) -> Iterator[str]:
    yield str(n)


assert_type(numbers.flat_map(several), cc.Stream[str])


def run(job: cc.Job) -> bool:
    return job.wait(timeout=1.0)


run(flow.start(cc.Settings(parallelism=2, encryption="auto")))

minutes = by_length.window(cc.tumbling("1m"), late="late")
assert_type(minutes.count(), cc.Stream[cc.Windowed[int, int]])
assert_type(minutes.sum(lambda word: len(word) / 2), cc.Stream[cc.Windowed[int, float]])
assert_type(minutes.reduce(max), cc.Stream[cc.Windowed[int, str]])
assert_type(minutes.aggregate(list, longest, len), cc.Stream[cc.Windowed[int, int]])
assert_type(minutes.process(lambda found: [len(found.value)]), cc.Stream[cc.Windowed[int, int]])
assert_type(
    keyed.window_join(keyed, cc.session("5m")), cc.Stream[cc.Windowed[tuple[str, int], tuple[str, str]]]
)
assert_type(by_length.interval_join(numbers.key_by(abs), "-1s", 0), cc.Stream[tuple[int, tuple[str, int]]])
assert_type(by_length.latest_join(numbers.key_by(abs)), cc.Stream[tuple[int, tuple[str, int]]])
