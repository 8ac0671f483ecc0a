"""Processes that were believed dead and are not: whatever they do then, nothing changes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from jobs import Armed, NumberedJob, is_gone, snapshot_of_tree, state_of, until

from crosscut.errors import WireError
from crosscut.ids import ChannelId, Epoch, TaskId, VertexId
from crosscut.runtime.channels import OutgoingChannel
from crosscut.runtime.task import Barrier
