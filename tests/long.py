"""Parameters of tests of which ``make test`` runs some and ``make test-long`` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def all_long_but(values: Iterable[Any], *short: Any) -> list[Any]:
    """Return the parameters of a test, all marked as long but the short ones.

    :raises ValueError: a short parameter is not one of the values
    """
    parameters = list(values)
    if missing := [value for value in short if value not in parameters]:
        raise ValueError(f"{missing} are not among {parameters}")
    return [value if value in short else pytest.param(value, marks=pytest.mark.long) for value in parameters]
