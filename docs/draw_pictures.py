"""Draw the pictures of the documentation as SVG files, which ``make docs`` writes into ``docs/images``."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

# Pictures are as wide as a phone can show without making the text too small.
_WIDTH = 480
_LINE = 17
_TEXT, _EDGE, _PLAIN, _STRONG = "#1f2937", "#64748b", "#f1f5f9", "#dbe4ff"

_CHOICES = (
    (("several systems that know the same", "things under different IDs"), "MergeSourceOperator"),
    (("a stream of changes, late, twice,", "or with some of the columns"), "MergeEngineOperator"),
    (("today's state, and you want to know", "what was valid when"), "Scd2Operator"),
    (("new and changed rows with a key",), "UpsertOperator"),
    (("batches that replace a day or a group",), "DeleteInsertOperator"),
    (("thousands of small files",), "MergeRecordOperator"),
    (("tables with the same key",), "JoinerOperator"),
)
_STEPS = (
    ("read the logs of target and sources", "nothing to do: the run ends here"),
    ("read the sources at fixed versions", "the offsets of the next run"),
    ("check the expectations", "fail, warn, or leave rows out"),
    ("compute the changed rows", "the plan: before, after, reason"),
    ("check the change limit", "too much: fail, or ask a person"),
    ("write the side tables", "rejected rows, load times, …"),
    ("commit the target once", "rows, offsets and run ID together"),
)


@dataclass(frozen=True)
class Box:
    """A box with lines of text; ``strong`` boxes are the results of a picture."""

    x: int
    y: int
    width: int
    height: int
    lines: Sequence[str]
    strong: bool = False

    def draw_box(self) -> Iterator[str]:
        """Yield the elements of the box, with its lines in the middle."""
        fill = _STRONG if self.strong else _PLAIN
        yield (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6"'
            f' fill="{fill}" stroke="{_EDGE}"/>'
        )
        first = self.y + self.height / 2 - (len(self.lines) - 1) * _LINE / 2 + 5
        for number, line in enumerate(self.lines):
            yield draw_text(self.x + self.width / 2, first + number * _LINE, line, middle=True)


def draw_text(x: float, y: float, text: str, *, middle: bool = False, bold: bool = False) -> str:
    """Return a line of text."""
    anchor = ' text-anchor="middle"' if middle else ""
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}"{anchor}{weight}>{html.escape(text)}</text>'


def draw_arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return an arrow from one point to another one."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{_EDGE}"'
        ' stroke-width="1.5" marker-end="url(#arrow)"/>'
    )


def build_picture(title: str, height: int, elements: Iterable[str]) -> str:
    """Return an SVG file; its background is white, so that it can be read on light and dark pages."""
    lines = "\n".join(f"  {element}" for element in elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" role="img" font-family="sans-serif" font-size="13" fill="{_TEXT}">\n'
        f"  <title>{html.escape(title)}</title>\n"
        '  <defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path d="M0 0L8 4L0 8z" fill="{_EDGE}"/></marker></defs>\n'
        f'  <rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff"/>\n'
        f"{lines}\n</svg>\n"
    )


def draw_choice() -> str:
    """Return the picture that leads from what a user has to an operator."""
    elements = [draw_text(12, 26, "You have", bold=True), draw_text(312, 26, "You need", bold=True)]
    y = 40
    for lines, operator in _CHOICES:
        elements += Box(12, y, 260, 44, lines).draw_box()
        elements.append(draw_arrow(274, y + 22, 308, y + 22))
        elements += Box(312, y, 156, 44, [operator], strong=True).draw_box()
        y += 54
    return build_picture("From what you have to the operator that you need", y + 4, elements)


def draw_run() -> str:
    """Return the picture of the steps of a run."""
    elements: list[str] = []
    y = 12
    for number, (step, note) in enumerate(_STEPS):
        is_last = number == len(_STEPS) - 1
        elements += Box(12, y, 230, 34, [step], strong=is_last).draw_box()
        elements.append(draw_text(254, y + 22, note))
        if not is_last:
            elements.append(draw_arrow(127, y + 34, 127, y + 52))
        y += 54
    return build_picture("The steps of a run", y - 8, elements)


def draw_golden_record() -> str:
    """Return the picture of three customers that become one golden record."""
    customers = (
        ("CRM c2", "Grace Hopper", "grace@example.org", "New York"),
        ("support t1", "", "grace@example.org", "555-0102"),
        ("shop s2", "Grace M. Hopper", "hopper@example.org", "555-0102"),
    )
    elements: list[str] = []
    for number, lines in enumerate(customers):
        x = 8 + number * 158
        elements += Box(x, 12, 148, 92, [line for line in lines if line]).draw_box()
        elements.append(draw_arrow(x + 74, 106, 240 + (number - 1) * 60, 164))
    elements += [
        draw_text(161, 124, "same email", middle=True),
        draw_text(319, 124, "same phone", middle=True),
    ]
    golden = ["golden record 2", "Grace Hopper, grace@example.org", "555-0102, New York"]
    elements += Box(110, 168, 260, 66, golden, strong=True).draw_box()
    return build_picture("Three customers become one golden record", 246, elements)


def draw_history() -> str:
    """Return the picture of the versions of a key in an SCD2 history."""
    elements = [
        draw_text(12, 28, "November 1", bold=True),
        draw_text(190, 28, "November 10", bold=True),
        draw_text(360, 28, "today", bold=True),
    ]
    elements += Box(12, 42, 176, 34, ["city = Oslo"]).draw_box()
    elements += Box(190, 42, 210, 34, ["city = Hamar"], strong=True).draw_box()
    elements += [
        draw_text(12, 100, "valid_from 2026-11-01"),
        draw_text(12, 118, "valid_to 2026-11-10"),
        draw_text(190, 100, "valid_from 2026-11-10"),
        draw_text(190, 118, "valid_to NULL: valid now"),
        draw_arrow(400, 59, 468, 59),
    ]
    return build_picture("Two versions of a row, one after the other", 132, elements)


PICTURES = {
    "choose_operator.svg": draw_choice,
    "golden_record.svg": draw_golden_record,
    "history.svg": draw_history,
    "run.svg": draw_run,
}
