"""The user's script and the modules beside it, on Spark: what they define works in the workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from crosscut import errors

FILES = {
    "orders/__init__.py": "",
    "orders/model.py": """
import functools
import msgspec
from . import rates

class Order(msgspec.Struct):
    number: int = 0
    who: str = ""

    @property
    def amount(self):
        return rates.rate(self)

@functools.lru_cache
def country(who):
    return who.upper()
""",
    "orders/rates.py": """
from . import model
FACTOR = 1
def rate(order):
    return order.number * FACTOR
""",
    "main.py": """
import functools, sys
import msgspec
import crosscut as cc
from orders import rates
from orders.model import Order, country

rates.FACTOR = 10

class Seen(msgspec.Struct, frozen=True):
    who: str
    amount: int = 0

@functools.cache
def doubled(amount):
    return amount * 2

def seen(text):
    order = msgspec.json.decode(text, type=Order)
    return Seen(country(order.who), doubled(order.amount))

class Sum(cc.KeyedProcess):
    amount = cc.ValueState()

    def on_record(self, record, context):
        before = self.amount.get()
        self.amount.set(Seen(record.who, record.amount + (before.amount if before else 0)))
        yield msgspec.json.encode(self.amount.get()).decode()

for engine in ("continuous", "micro-batch"):
    where = sys.argv[1] + "/" + engine
    flow = cc.Flow("orders")
    texts = ['{"number":%d,"who":"ada"}' % number for number in range(1, 5)]
    sums = flow.source(cc.items(texts)).map(seen).key_by(lambda record: record.who).process(Sum())
    sums.sink(cc.files.write_text(where))
    flow.start(cc.Settings(parallelism=2, engine=engine, checkpoint_dir=where + "-state")).wait()
""",
}


def test_modules_beside_the_script_and_its_own_classes_work_in_workers_of_either_engine(
    tmp_path: Path,
) -> None:
    """P9: the script has no guard, its modules import each other, and state holds a struct of it."""
    place = tmp_path / "code"
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    subprocess.run(
        [sys.executable, str(place / "main.py"), str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(errors.__file__).parents[1])},
        check=True,
        timeout=300,
    )
    for engine in ("continuous", "micro-batch"):
        parts = (tmp_path / engine).glob("*.txt")
        lines = [json.loads(line) for path in parts for line in path.read_text().splitlines()]
        found = sorted((one["who"], one["amount"]) for one in lines)
        assert found == [("ADA", 20), ("ADA", 60), ("ADA", 120), ("ADA", 200)], engine
