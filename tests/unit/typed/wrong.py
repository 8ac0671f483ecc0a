"""What must fail under mypy --strict: each line that says so, with this kind of error, and no other."""

from __future__ import annotations

import crosscut as cc

flow = cc.Flow("wrong")
numbers = flow.source(cc.generate(lambda i: i, count=10))
numbers.map(lambda n: n.upper())  # wrong: attr-defined
numbers.filter(lambda n: n.startswith("a"))  # wrong: attr-defined
numbers.map(len)  # wrong: arg-type
numbers.flat_map(lambda n: n)  # wrong: arg-type, return-value
numbers.count()  # wrong: attr-defined
numbers.key_by(lambda n: n / 2)  # wrong: type-var
numbers.key_by(str).map(str)  # wrong: attr-defined
numbers.key_by(str).count(emit="often")  # wrong: arg-type
numbers.key_by(str).sum(lambda n: n.upper())  # wrong: attr-defined
numbers.key_by(str).aggregate(0, lambda total, n: total + n.upper())  # wrong: attr-defined
numbers.key_by(str).count().map(lambda pair: pair[2])  # wrong: misc
flow.source(cc.files.read_text("*.txt")).map(lambda line: line + 1)  # wrong: operator
flow.source(cc.items([1, 2])).map(lambda n: n.upper())  # wrong: attr-defined
flow.source("*.txt")  # wrong: arg-type
numbers.sink(cc.files.write_jsonl("out")).map(str)  # wrong: attr-defined


class Texts(cc.Sink[str]):
    def writer(self, context: cc.SinkContext) -> cc.SinkWriter:
        raise NotImplementedError


numbers.sink(Texts())  # wrong: arg-type
