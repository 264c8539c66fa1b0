"""How a child process learns that the process which started it is gone."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends; elsewhere do nothing.

    Given to ``Popen`` as ``preexec_fn`` for the Spark JVM, and called first thing by the Python driver below
    it: each has a parent of its own, and one without the other would go on alone.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
