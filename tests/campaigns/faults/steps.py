"""The steps of a run, and what happens to its process at one of them.

A step is a statement that the driver sends to Spark, or a change that it makes to a file of the warehouse.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_CHANGES = frozenset({"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"})
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a process: it is killed or stopped.

    Before a step, or so many seconds after its first one.
    """

    action: Literal["kill", "stop"]
    step: int | None = None
    seconds: float | None = None

    def trigger_fault(self) -> None:
        """Let it happen now."""
        os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


class StepCounter:
    """Count the steps of this process from now on, and let a fault happen at one."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self.count = 0
        self._folder = str(folder)
        self._fault = fault
        self._lock = threading.Lock()

    def start_counting(self) -> None:
        """Begin to count; there is no end to it but the end of the process."""
        from pyspark.sql.connect.client import reattach

        sent = reattach.ExecutePlanResponseReattachableIterator
        begin = sent.__init__

        def count_statement(*given: Any, **named: Any) -> None:
            self._reach_step()
            begin(*given, **named)

        sent.__init__ = count_statement
        sys.addaudithook(self._handle_event)

    def _handle_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            is_change = True
        elif event == "open":
            mode, flags = args[1], args[2]
            is_change = any(letter in mode for letter in "wax+") if mode else bool(flags & _WRITE_FLAGS)
        else:
            return
        if is_change and str(args[0]).startswith(self._folder):
            self._reach_step()

    def _reach_step(self) -> None:
        with self._lock:
            self.count += 1
            count = self.count
        if self._fault is None:
            return
        if count == self._fault.step:
            self._fault.trigger_fault()
        elif count == 1 and self._fault.seconds is not None:
            threading.Timer(self._fault.seconds, self._fault.trigger_fault).start()
