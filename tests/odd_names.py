"""A folder name with every character that a location may have, and the URI of a path."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

# The accent is one character in the first place and two in the second.
ODD = "_p/.q/a b[x]{c,d}*?%20%2F%#+&=^'`\"\u00e9e\u0301\u65e5;,~@!$(1)|<>\\."


def encode_path(path: Path) -> str:
    """Return the URI of a path, with every character encoded that may be."""
    return f"file://{quote(str(path), safe='/')}"
