"""Misspelt options of sources and sinks are refused with what may be meant."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import crosscut as cc
from crosscut.errors import SettingsError

ROOT = ("collect", "generate", "items", "printing", "socket", "stdin")
MODULES = ("delta", "files", "http", "iceberg", "kafka", "nats", "postgres", "sqlite", "spark")


def functions() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(cc, name) for name in ROOT}
    for module in MODULES:
        one = getattr(cc, module)
        found |= {f"{module}.{name}": getattr(one, name) for name in one.__all__}
    return {
        name: one
        for name, one in found.items()
        if inspect.isfunction(one)
        and any(p.kind is p.KEYWORD_ONLY or p.default is not p.empty for p in options_of(one))
    }


def options_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


FUNCTIONS = functions()


def test_there_are_functions_to_look_at() -> None:
    assert {"kafka.source", "kafka.sink", "files.write_jsonl", "files.read_csv", "nats.sink"} <= set(
        FUNCTIONS
    )
    assert len(FUNCTIONS) > 25


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_option_that_there_is_not_is_refused_with_what_may_be_meant(name: str) -> None:
    last = options_of(FUNCTIONS[name])[-1].name
    with pytest.raises(SettingsError) as raised:
        FUNCTIONS[name](**{f"{last}x": 1})
    assert f"crosscut.{name} has no option '{last}x'; did you mean '{last}'?" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "option", "advice"),
    [
        ("kafka.source", "startingOffsets", "what Spark calls startingOffsets is start= here"),
        ("kafka.source", "endingOffsets", "what Spark calls endingOffsets is stop= here"),
        ("files.write_parquet", "partitionBy", "did you mean 'partition_by'?"),
        ("files.write_jsonl", "checkpointLocation", "checkpoint_dir= of crosscut.Settings"),
        ("kafka.source", "zzz", "has no option 'zzz': it has servers, topics, start, stop, decode,"),
    ],
)
def test_names_of_spark_lead_to_ours(name: str, option: str, advice: str) -> None:
    with pytest.raises(SettingsError) as raised:
        FUNCTIONS[name](**{option: 1})
    assert advice in str(raised.value)


def test_a_call_that_lacks_an_argument_says_so_as_ever() -> None:
    with pytest.raises(TypeError, match=r"source\(\) missing 1 required positional argument: 'topics'"):
        cc.kafka.source("localhost:9092")  # type: ignore[call-arg]


def test_functions_keep_their_names_and_can_be_pickled() -> None:
    assert cc.kafka.source.__name__ == "source"
    assert pickle.loads(pickle.dumps(cc.kafka.source)) is cc.kafka.source


def test_settings_of_a_restart_are_refused_likewise() -> None:
    with pytest.raises(
        SettingsError, match=r"^there is no setting 'failure' of Restart; did you mean 'failures'\?"
    ):
        cc.Restart(failure=3)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match="what Spark calls checkpointLocation is checkpoint_dir= here"):
        cc.Settings(checkpointLocation="x")  # type: ignore[call-arg]
    restart = cc.Restart(failures=3)
    assert pickle.loads(pickle.dumps(restart)) == restart


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    assert dir(cc) == sorted([*cc.__all__, "__version__"])
    assert set(dir(cc.spark)) == set(cc.spark.__all__)
