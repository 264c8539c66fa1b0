"""Random merge engine tables in vector notation, with few values, so that keys, ties and nulls repeat."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

TYPES = {
    "sum": "DECIMAL(10,2)",
    "product": "BIGINT",
    "count": "INT",
    "max": "INT",
    "min": "STRING",
    "bool_and": "BOOLEAN",
    "bool_or": "BOOLEAN",
    "last_value": "INT",
    "last_non_null_value": "STRING",
    "first_value": "INT",
    "first_non_null_value": "STRING",
    "listagg": "STRING",
    "collect": "ARRAY<INT>",
    "merge_map": "MAP<STRING,INT>",
    "nested_update": "ARRAY<ROW<id INT, v STRING>>",
}
RETRACTING = {
    "sum", "count", "last_value", "last_non_null_value", "collect", "merge_map", "nested_update",
}  # fmt: skip
ENGINES = ("deduplicate", "first-row", "aggregation", "aggregation", "partial", "groups", "groups", "removal")


def draw_workload(seed: int) -> dict[str, Any]:
    """Return a table with its commits; the same seed gives the same one."""
    return _Draw(random.Random(seed)).build_vector(seed)  # noqa: S311 - a workload, not a secret


class _Draw:
    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.schema = {"k": "INT"}
        self.options: dict[str, Any] = {}
        self.kinds = draw.choice((("+I",), ("+I", "+U", "-U", "-D"), ("+I", "+I", "+I", "-D")))

    def build_vector(self, seed: int) -> dict[str, Any]:
        shape = self.draw.choice(ENGINES)
        getattr(self, f"_draw_{shape.replace('-', '_')}")()
        engine = "partial-update" if shape in {"partial", "groups", "removal"} else shape
        if engine != "first-row" and self.draw.random() < 0.5:
            self._draw_sequence(engine)
        records = [self._draw_record() for _ in range(40)]
        cuts = sorted(self.draw.sample(range(1, 40), 2))
        return {
            "id": f"random-{seed}",
            "engine": engine,
            "schema": self.schema,
            "primary_key": ["k"],
            "options": self.options,
            **self._draw_retention(engine),
            "commits": [records[: cuts[0]], records[cuts[0] : cuts[1]], records[cuts[1] :]],
        }

    def _draw_sequence(self, engine: str) -> None:
        names = ["s1", "s2"][: self.draw.randint(1, 2)]
        self.schema |= dict.fromkeys(names, "INT")
        self.options["sequence.field"] = ",".join(names)
        if self.draw.random() < 0.3:
            self.options["sequence.field.sort-order"] = "descending"

    def _draw_retention(self, engine: str) -> dict[str, Any]:
        """Set a tombstone retention in some tables that remove rows and have an order."""
        removed = any("remove-record" in name for name in self.options) or engine == "deduplicate"
        ordered = "sequence.field" in self.options or any("on-sequence" in name for name in self.options)
        ignores = self.options.get("ignore-delete") == "true"
        chosen = removed and ordered and not ignores and self.draw.random() < 0.5
        return {"tombstone_retention": 7} if chosen else {}

    def _draw_deduplicate(self) -> None:
        self.schema |= {"a": "INT", "b": "STRING"}
        self._draw_ignores()

    def _draw_first_row(self) -> None:
        self.schema |= {"a": "INT", "b": "STRING"}
        if self.kinds != ("+I",):
            self.options["ignore-delete"] = "true"

    def _draw_ignores(self) -> None:
        if self.draw.random() < 0.2:
            self.options[self.draw.choice(("ignore-delete", "ignore-update-before"))] = "true"

    def _draw_aggregation(self) -> None:
        removes = self.kinds != ("+I",) and self.draw.random() < 0.3
        self._draw_ignores()
        if removes:
            self.options["aggregation.remove-record-on-delete"] = "true"
        for number in range(self.draw.randint(2, 4)):
            self._draw_function(f"c{number}", may_ignore=not removes, kinds=self.kinds)

    def _draw_function(self, name: str, *, may_ignore: bool, kinds: tuple[str, ...]) -> None:
        """Return a function for a column that usually accepts the values of the workload."""
        function = self.draw.choice(list(TYPES))
        if kinds != ("+I",) and function not in RETRACTING:
            if not may_ignore:
                function = self.draw.choice(sorted(RETRACTING))
            elif self.draw.random() < 0.9:
                self.options[f"fields.{name}.ignore-retract"] = "true"
        self.schema[name] = TYPES[function]
        self.options[f"fields.{name}.aggregate-function"] = function
        if function in {"collect", "listagg"} and self.draw.random() < 0.5:
            self.options[f"fields.{name}.distinct"] = "true"
        if function == "nested_update" and self.draw.random() < 0.6:
            self.options[f"fields.{name}.nested-key"] = "id"

    def _draw_partial(self) -> None:
        self.schema |= {"a": "INT", "b": "STRING", "c": "ARRAY<INT>"}
        policies = ("ignore-delete", "partial-update.remove-record-on-delete")
        if self.kinds != ("+I",):
            self.options[self.draw.choice(policies)] = "true"

    def _draw_groups(self) -> None:
        self.schema |= {"free": "STRING", "g": "INT", "h1": "INT", "h2": "INT"}
        for order in ("g", "h1,h2"):
            protected = [f"{order[0]}{suffix}" for suffix in ("a", "b")]
            definition: Any = {"columns": ",".join(protected)}
            if self.draw.random() < 0.3:
                definition["descending"] = True
            if self.draw.random() < 0.2:
                definition["function"] = "last_non_null_value"
            self.options[f"fields.{order}.sequence-group"] = (
                definition if len(definition) > 1 else definition["columns"]
            )
            for name in protected:
                if self.draw.random() < 0.6:
                    self._draw_function(name, may_ignore=True, kinds=self.kinds)
                else:
                    self.schema[name] = "INT"

    def _draw_removal(self) -> None:
        self._draw_groups()
        names = self.draw.choice(("g", "h2", "g,h1"))
        self.options["partial-update.remove-record-on-sequence-group"] = names

    def _draw_record(self) -> list[Any]:
        values = [self._draw_value(name, kind) for name, kind in self.schema.items() if name != "k"]
        return [self.draw.choice(self.kinds), self.draw.randint(1, 6), *values]

    def _draw_value(self, name: str, kind: str) -> Any:
        draw = self.draw
        if draw.random() < (0.15 if name[0] in "sgh" and kind == "INT" else 0.3):
            return None
        if kind == "DECIMAL(10,2)":
            return Decimal(draw.randint(-300, 300)).scaleb(-2)
        if kind == "BOOLEAN":
            return draw.random() < 0.5
        if kind == "STRING":
            return draw.choice(("a", "b", "a,b", "c", " ", "ba"))
        if kind == "ARRAY<INT>":
            return [draw.choice((1, 2, 3, None)) for _ in range(draw.randint(0, 3))]
        if kind.startswith("MAP"):
            return {key: draw.choice((1, 2, None)) for key in draw.sample("xyz", draw.randint(0, 2))}
        if kind.startswith("ARRAY"):
            return [{"id": draw.randint(1, 3), "v": draw.choice("pq")} for _ in range(draw.randint(0, 2))]
        return draw.randint(1, 3) if kind == "BIGINT" else draw.randint(0, 4)
