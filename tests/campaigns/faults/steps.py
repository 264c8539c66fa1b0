"""The steps of a run, and faults at one of them.

A step is a statement that the driver sends to Spark, or a change to a file of the warehouse, also on S3.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any, Literal

_CHANGES = frozenset({"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"})
_READS = ("get_", "head_", "list_")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault of a process: it is killed or stopped.

    The fault is before a step, or a number of seconds after the first step.
    """

    action: Literal["kill", "stop"]
    step: int | None = None
    seconds: float | None = None

    def trigger_fault(self) -> None:
        """Kill or stop this process now."""
        os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)


class StepCounter:
    """Counter of the steps of this process, which triggers a fault at one of them."""

    def __init__(self, folder: str, fault: Fault | None) -> None:
        self.count = 0
        self._folder = folder
        self._fault = fault
        self._lock = threading.Lock()

    def start_counting(self) -> None:
        """Start counting until the process ends."""
        from pyspark.sql.connect.client import reattach

        iterator_class = reattach.ExecutePlanResponseReattachableIterator
        original_init = iterator_class.__init__

        def count_statement(*arguments: Any, **named: Any) -> None:
            self._reach_step()
            original_init(*arguments, **named)

        iterator_class.__init__ = count_statement
        sys.addaudithook(self._handle_event)
        if self._folder.startswith("s3://"):
            self._count_requests()

    def _count_requests(self) -> None:
        import s3fs

        original_call = s3fs.S3FileSystem._call_s3

        async def count_request(files: Any, method: str, *arguments: Any, **named: Any) -> Any:
            if not method.startswith(_READS):
                self._reach_step()
            return await original_call(files, method, *arguments, **named)

        s3fs.S3FileSystem._call_s3 = count_request

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
