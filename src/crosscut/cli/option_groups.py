"""Which options the help of a command shows first, and under which titles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Group:
    """Settings that the help shows under one title, by the names of their parameters.

    Attributes:
        needed: `--help` shows them, with these short texts.
        others: Only `--help-all` does.
    """

    title: str
    needed: dict[str, str]
    others: tuple[str, ...] = ()


GROUPS = (
    Group(
        "Scale and engine",
        {
            "parallelism": "Tasks per vertex, and workers.",
            "engine": "Long-lived tasks, Spark jobs of a batch each, or batches until it has caught up.",
        },
        (
            "max_parallelism", "batch_records_max", "trigger", "caught_up_at", "behind_at", "behind_for",
            "batch_parallelism",
        ),
    ),
    Group(
        "Cluster",
        {"master": "URL of the Spark cluster. Default: that of spark-defaults.conf, else a local Spark."},
        ("configuration", "py_files", "archives"),
    ),
    Group(
        "Checkpoints",
        {
            "checkpoint_dir": "Where checkpoints are, a path or a URL. Default: checkpoints/FLOW.",
            "checkpoint_interval": "Between the starts of two checkpoints.",
            "restore_from": "Begin with this savepoint, or with this checkpoint of another job.",
            "fresh": "Begin with nothing, beside output of an earlier history.",
        },
        (
            "accept_changes", "allow_dropped_state", "snapshots", "checkpoint_pause", "checkpoints_in_flight",
            "checkpoints_uncommitted", "checkpoint_timeout", "checkpoint_failures", "outage_timeout",
            "retain", "commit_attempts",
        ),
    ),
    Group("State", {"state_backend": "Where workers keep keyed state."}, ("state_dir", "state_cache_bytes")),
    Group(
        "Failures",
        {"restart_failures": "Failures in 5 minutes that the job restarts after."},
        (
            "restart_window", "restart_delay", "restart_delay_step", "restart_delay_max",
            "restart_same_record", "restart_last_delay", "heartbeat_timeout", "start_timeout",
        ),
    ),
    Group(
        "Page and log",
        {"web": "Serve a page of the job.", "log_level": "Of what workers log."},
        ("web_port", "web_host", "web_url", "web_in_spark_ui", "log_format", "latency_interval"),
    ),
    Group(
        "Network and memory",
        {},
        (
            "linger", "batch_rows", "channel_bytes", "spill_bytes", "spill_dir", "host", "encryption",
            "strict", "shared",
        ),
    ),
)  # fmt: skip


_SHOWS_ALL = f"{__name__}.shows_all"
"""In the values of a click context: all options are shown."""


class GroupedCommand(click.Command):
    """A command with all settings as options: `--help` shows the most important ones, `--help-all` all."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                help="Show all options, with their full texts.",
                callback=self._help_all,
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, by group."""
        options = (one for one in self.get_params(ctx) if isinstance(one, click.Option))
        records = {one.name: one.get_help_record(ctx) for one in options}
        for group in GROUPS:
            needed = {name: records.pop(name, None) for name in group.needed}
            others = [records.pop(name, None) for name in group.others]
            if _SHOWS_ALL in ctx.meta:
                _write(formatter, group.title, [*needed.values(), *others])
            else:
                short = [
                    (record[0], _with_default(group.needed[name], record[1]))
                    for name, record in needed.items()
                    if record is not None
                ]
                _write(formatter, group.title, short)
        _write(formatter, "Other options", records.values())

    def _help_all(self, ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            ctx.meta[_SHOWS_ALL] = True
            click.echo(self.get_help(ctx), color=ctx.color)
            ctx.exit()


def _write(formatter: click.HelpFormatter, title: str, records: Iterable[tuple[str, str] | None]) -> None:
    if found := [one for one in records if one is not None]:
        with formatter.section(title):
            formatter.write_dl(found)


def _with_default(short: str, text: str) -> str:
    """Return a short text with the default that stands at the end of the full one."""
    _, bracket, default = text.rpartition("  [")
    return f"{short}{bracket}{default if bracket else ''}"
