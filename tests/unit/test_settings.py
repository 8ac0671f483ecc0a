"""Settings are judged when they are made, and name what is wrong with what."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import crosscut as cc
from crosscut.contracts.settings import Restart, Settings, settings_with
from crosscut.errors import SettingsError

BAD: list[tuple[dict[str, Any], str]] = [
    ({"parallelism": 0}, "parallelism=0: expected a whole number from 1 to 10000"),
    ({"parallelism": 2.0}, "parallelism=2.0: expected a whole number"),
    ({"parallelism": True}, "parallelism=True: expected a whole number"),
    ({"parallelism": "2"}, "parallelism='2': expected a whole number"),
    ({"max_parallelism": 32_769}, "max_parallelism=32769: expected a whole number from 1 to 32768"),
    ({"parallelism": 4, "max_parallelism": 3}, "parallelism=4 is above max_parallelism=3"),
    ({"checkpoint_failures": -1}, "checkpoint_failures=-1: expected a whole number from 0"),
    ({"batch_rows": 0}, "batch_rows=0"),
    ({"retain": 0}, "retain=0: expected a whole number from 1"),
    ({"commit_attempts": 0}, "commit_attempts=0"),
    ({"snapshots": "sometimes"}, "snapshots='sometimes': expected 'aligned'"),
    ({"checkpoint_interval": "1ms"}, "checkpoint_interval='1ms': expected at least 10 ms"),
    ({"checkpoint_interval": "often"}, "checkpoint_interval='often': expected a duration"),
    ({"checkpoint_timeout": 0.05}, "checkpoint_timeout=0.05: expected at least 100 ms"),
    ({"heartbeat_timeout": "100ms"}, "heartbeat_timeout='100ms': expected at least 200 ms"),
    ({"start_timeout": 0}, "start_timeout=0: expected at least 100 ms"),
    ({"outage_timeout": 0}, "outage_timeout=0: expected at least 1000 ms"),
    ({"checkpoint_dir": ""}, "checkpoint_dir='': expected a directory or an fsspec URL"),
    ({"checkpoint_dir": 7}, "checkpoint_dir=7: expected a directory"),
    ({"checkpoint_dir": Path("s3://bucket/job")}, "a Path can't hold a URL; give it as a str"),
    ({"checkpoint_dir": Path("s3://key:secret@bucket/job")}, "checkpoint_dir='s3://***@bucket/job': a Path"),
    ({"strict": "yes"}, "strict='yes': expected True or False"),
    ({"accept_changes": 1}, "accept_changes=1: expected True or False"),
    ({"host": 127}, "host=127: expected a host name or an address"),
    ({"host": ""}, "host='': expected a host name"),
    ({"snapshots": True}, "snapshots=True: expected 'aligned'"),
    ({"encryption": ["on"]}, "encryption=['on']: expected one of"),
    ({"restart": 3}, "restart=3: expected crosscut.Restart"),
    ({"checkpoint_pause": -1}, "checkpoint_pause=-1: expected a duration"),
    ({"checkpoints_in_flight": 0}, "checkpoints_in_flight=0: expected a whole number from 1 to 100"),
    ({"checkpoints_in_flight": 4}, "checkpoints_in_flight=4 is above retain=3"),
    ({"checkpoints_in_flight": 2, "snapshots": "halting"}, "everything stands still for one checkpoint"),
    (
        {"engine": "micro"},
        "engine='micro': expected one of 'continuous', 'micro-batch', 'auto', or crosscut.C",
    ),
    ({"engine": cc.MicroBatch}, "MicroBatch'>: expected one of 'continuous'"),
    ({"engine": cc.Auto(batch_parallelism=9), "max_parallelism": 8}, "batch_parallelism=9 is above max_para"),
    ({"engine": cc.Auto(), "snapshots": "none"}, "at checkpoints that count each record once"),
    ({"linger": "5ms"}, "there is no setting 'linger'; say engine=crosscut.Continuous(linger=...)"),
    ({"batch_records_max": 5}, "'batch_records_max'; say engine=crosscut.MicroBatch(records_max=...)"),
    ({"behind_at": 5}, "there is no setting 'behind_at'; say engine=crosscut.Auto(behind_at=...)"),
    (
        {"engine": "auto", "batch_records_max": 5},
        "say engine=crosscut.Auto(micro_batch=crosscut.MicroBatch(records_max=...))",
    ),
    (
        {"engine": cc.Auto(), "linger": 5},
        "say engine=crosscut.Auto(continuous=crosscut.Continuous(linger=...))",
    ),
    ({"engine": "auto", "trigger": "once"}, "say engine=crosscut.MicroBatch(trigger=...)"),
    ({"engine": "auto", "behind_at": 5}, "say engine=crosscut.Auto(behind_at=...)"),
    ({"unaligned_after": "1s"}, "'unaligned_after'; say snapshots=crosscut.Aligned(unaligned_after=...)"),
    (
        {"engine": cc.Auto(batch_parallelism=9), "max_parallelism": 8},
        "; lower batch_parallelism, or raise max_parallelism",
    ),
    (
        {"engine": "auto", "snapshots": "at-least-once"},
        "expected 'aligned', 'unaligned', 'halting' or crosscut.Aligned(...)",
    ),
]
BAD_ENGINES: list[tuple[type[Any], dict[str, Any], str]] = [
    (cc.Continuous, {"spill_bytes": -1}, "spill_bytes=-1: expected a whole number from 0"),
    (cc.Continuous, {"spill_dir": ""}, "spill_dir='': expected a directory"),
    (cc.Continuous, {"channel_bytes": 1_000}, "channel_bytes=1000: expected a whole number from 65536"),
    (cc.Continuous, {"linger": "-1ms"}, "linger='-1ms': expected a duration"),
    (cc.Continuous, {"lingers": 1}, "there is no setting 'lingers' of Continuous; did you mean 'linger'?"),
    (cc.MicroBatch, {"linger": 5}, "'linger' of MicroBatch; say engine=crosscut.Continuous(linger=...)"),
    (cc.Auto, {"linger": 5}, "say engine=crosscut.Auto(continuous=crosscut.Continuous(linger=...))"),
    (cc.MicroBatch, {"records_max": 0}, "records_max=0: expected a whole number from 1"),
    (cc.MicroBatch, {"trigger": "twice"}, "trigger='twice': expected one of 'interval'"),
    (cc.Auto, {"caught_up_at": 7, "behind_at": 7}, "caught_up_at=7 is not below behind_at=7"),
    (cc.Auto, {"batch_parallelism": 0}, "batch_parallelism=0: expected a whole number from 1"),
    (cc.Auto, {"continuous": cc.MicroBatch()}, "expected crosscut.Continuous(...)"),
    (cc.Auto, {"micro_batch": cc.MicroBatch(trigger="once")}, "expected engine=crosscut.MicroBatch(...)"),
    (cc.Aligned, {"unaligned_after": "soon"}, "unaligned_after='soon': expected a duration"),
]
BAD_RESTARTS: list[tuple[dict[str, Any], str]] = [
    ({"failures": -1}, "restart.failures=-1: expected a whole number from 0"),
    ({"window": "soon"}, "restart.window='soon': expected a duration"),
    ({"delay": -1}, "restart.delay=-1: expected a duration"),
    ({"delay_step": None}, "restart.delay_step=None: expected a duration"),
    ({"same_record": -1}, "restart.same_record=-1: expected a whole number from 0"),
    ({"delay_max": "x"}, "restart.delay_max='x': expected a duration"),
]


@pytest.mark.parametrize(("values", "text"), BAD, ids=[text for _, text in BAD])
def test_a_setting_that_cannot_be_is_refused_when_it_is_made(values: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as failure:
        Settings(**values)
    assert text in str(failure.value)


@pytest.mark.parametrize(("values", "text"), BAD_RESTARTS, ids=[text for _, text in BAD_RESTARTS])
def test_so_is_one_of_the_restart_strategy(values: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as failure:
        Restart(**values)
    assert text in str(failure.value)


@pytest.mark.parametrize(("kind", "values", "text"), BAD_ENGINES, ids=[text for *_, text in BAD_ENGINES])
def test_so_is_one_of_an_engine(kind: type[Any], values: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as failure:
        kind(**values)
    assert text in str(failure.value)


def test_an_engine_may_be_given_by_its_name_or_with_its_settings() -> None:
    for name, kind in (("continuous", cc.Continuous), ("micro-batch", cc.MicroBatch), ("auto", cc.Auto)):
        named, made = Settings(engine=name), Settings(engine=kind())  # type: ignore[arg-type]
        assert named.engine_settings == made.engine_settings == kind()
        assert named.engine_name == made.engine_name == name
    auto = Settings(
        engine=cc.Auto(continuous=cc.Continuous(linger=0), micro_batch=cc.MicroBatch(records_max=5))
    )
    assert auto.continuous.linger == 0
    assert auto.micro_batch.records_max == 5
    assert Settings(engine=cc.MicroBatch(records_max=5)).continuous == cc.Continuous()


def test_the_protocol_of_snapshots_may_be_given_by_its_name_or_with_its_settings() -> None:
    assert Settings(snapshots=cc.Aligned()).snapshot_kind() == Settings().snapshot_kind() == ("aligned", 0)
    switching = Settings(snapshots=cc.Aligned(unaligned_after="100ms"))
    assert switching.snapshot_kind() == ("switching", 100)
    assert Settings(snapshots="aligned, unaligned after 100ms").snapshot_kind() == ("switching", 100)


KINDS = [Settings, Restart, cc.Continuous, cc.MicroBatch, cc.Auto, cc.Aligned]


@pytest.mark.parametrize("kind", KINDS)
def test_notebooks_show_the_fields_of_settings(kind: type[Any]) -> None:
    shown = inspect.signature(kind).parameters
    assert list(shown) == [one.name for one in dataclasses.fields(kind)]
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in shown.values())
    assert all(one.default is not inspect.Parameter.empty for one in shown.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_without_its_name_is_refused(kind: type[Any]) -> None:
    with pytest.raises(
        SettingsError, match=rf"{kind.__name__}\('once'\): expected each setting with its name"
    ):
        kind("once")


@pytest.mark.parametrize("given", [cc.MicroBatch(trigger="once"), "micro-batch"])
def test_an_engine_in_place_of_settings_is_refused(given: Any) -> None:
    for changed in ({}, {"parallelism": 1}):
        with pytest.raises(SettingsError, match=r"expected crosscut.Settings\(...\); say engine="):
            settings_with(given, changed)
    with pytest.raises(SettingsError, match=r"settings=7: expected crosscut.Settings\(...\)$"):
        settings_with(7, {})  # type: ignore[arg-type]


def test_the_name_of_the_engine_that_it_is_already_keeps_its_settings() -> None:
    small = Settings(engine=cc.MicroBatch(records_max=5))
    same = settings_with(small, {"engine": "micro-batch", "parallelism": 3})
    assert (same.engine, same.parallelism) == (small.engine, 3)
    assert settings_with(small, {"engine": "continuous"}).engine == "continuous"
    assert settings_with(small, {"engine": cc.MicroBatch()}).micro_batch == cc.MicroBatch()


@pytest.mark.parametrize("kind", [Settings, Restart, cc.Continuous, cc.MicroBatch, cc.Auto])
def test_no_setting_takes_an_object_of_a_wrong_type(kind: type[Any]) -> None:
    for field in dataclasses.fields(kind):
        for wrong in (object(), [], {}, b"x", 1j):
            if field.name == "migrate_state" and wrong == {}:
                continue
            values: dict[str, Any] = {field.name: wrong}
            with pytest.raises(SettingsError, match=rf"{field.name}="):
                kind(**values)


def test_a_directory_may_be_a_path_and_is_kept_as_text(tmp_path: Path) -> None:
    settings = Settings(checkpoint_dir=tmp_path / "a", engine=cc.Continuous(spill_dir=tmp_path))
    engine = cc.Continuous(spill_dir=str(tmp_path))
    assert settings == Settings(checkpoint_dir=str(tmp_path / "a"), engine=engine)
    assert settings.store_of("flow") == str(tmp_path / "a")
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_the_defaults_are_valid_and_the_limits_are_inclusive() -> None:
    Settings()
    Settings(
        parallelism=1,
        max_parallelism=1,
        checkpoint_interval="10ms",
        checkpoint_timeout="100ms",
        heartbeat_timeout="200ms",
        retain=1,
        restart=Restart(failures=0),
    )


def test_durations_are_given_in_milliseconds() -> None:
    settings = Settings(
        checkpoint_interval="1.5s", engine=cc.Continuous(linger=0.002), restart=Restart(window="1m")
    )
    assert settings.milliseconds("checkpoint_interval") == 1_500
    assert settings.continuous.milliseconds("linger") == 2
    assert settings.restart.milliseconds("window") == 60_000


def test_settings_are_immutable_and_survive_pickling() -> None:
    settings = Settings(parallelism=3, restart=Restart(failures=1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.parallelism = 4  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_every_setting_is_explained_where_it_is_defined() -> None:
    for kind in (Settings, Restart, cc.Continuous, cc.MicroBatch, cc.Auto, cc.Aligned):
        for field in dataclasses.fields(kind):
            assert f"\n    {field.name}: " in inspect.cleandoc(kind.__doc__ or ""), field.name
    assert Settings.names() == tuple(field.name for field in dataclasses.fields(Settings))


def test_a_parallelism_that_nobody_has_given_is_told_apart_and_is_a_plain_number_in_a_graph() -> None:
    assert not Settings().is_parallelism_given
    assert not dataclasses.replace(Settings(), retain=5).is_parallelism_given
    assert Settings(parallelism=2).is_parallelism_given
    flow = cc.Flow("plain")
    flow.source(cc.items([1])).sink(cc.collect())
    assert type(flow.compile(Settings().parallelism, 128).parallelism) is int
