"""The explanation of a joined row: the input rows that it comes from, or why a key has no row.

Source: docs/explain.md, Joined rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from airflow_merge_provider.core.errors import ConfigError, Problem, format_count, suggest_name
from airflow_merge_provider.core.value_text import Row, escape_text, format_row, to_json_value
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.model.key import build_example, parse_key, refuse_key

_ROWS_MAX = 20
Texts = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class JoinDescription:
    """A join as the commit of its run records it.

    ``inputs`` holds the location of each input, ``keys`` the key fields of each, ``outputs`` the field behind
    each output column: its input and name. Without keys, rows match by ``expression``, or all do.
    """

    inputs: Mapping[str, str]
    required: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]]
    nulls_match: bool
    expression: str | None
    aliases: Mapping[str, str]
    key_columns: tuple[str, ...]
    outputs: Mapping[str, tuple[str, str]]
    append: bool

    @classmethod
    def from_state(cls, raw: Mapping[str, Any]) -> Self:
        """Build the description from its form in the state of a commit."""
        return cls(
            raw["inputs"],
            tuple(raw["required"]),
            {stage: tuple(fields) for stage, fields in raw["keys"].items()},
            raw["nulls_match"],
            raw["expression"],
            raw["aliases"],
            tuple(raw["key_columns"]),
            {name: (stage, source) for name, (stage, source) in raw["outputs"].items()},
            raw["append"],
        )

    @property
    def first(self) -> str:
        """The input whose fields name the key: the first required one, or else the first one."""
        return next((stage for stage in self.inputs if stage in self.required), next(iter(self.inputs)))

    def parse_key(self, text: str) -> dict[str, Texts]:
        """Return the values of a key by input and field.

        A key of a join by keys has a value for each clause. In other joins it names output columns, or fields
        as ``input.field``.

        :raises ConfigError: if the text has another form, or names an unknown column.
        """
        return self._parse_clauses(text) if self.keys else self._parse_fields(text)

    def list_output_keys(self, key: Mapping[str, Texts]) -> list[Texts]:
        """Return the values of a key by output column: rows with the key have those of one item.

        The list is empty if the target has no columns by which the key can be searched.
        """
        if not self.keys:
            fields = {(stage, name): value for stage, texts in key.items() for name, value in texts.items()}
            return [self._name_columns(fields)] if set(fields) <= set(self.outputs.values()) else []
        if self.key_columns:
            return [dict(zip(self.key_columns, key[self.first].values(), strict=True))]
        stages = self.required or tuple(self.inputs)
        keys = [
            self._name_columns({(stage, name): value for name, value in key[stage].items()})
            for stage in stages
        ]
        complete_keys = [texts for texts in keys if len(texts) == len(self.keys[self.first])]
        if self.required:
            return complete_keys[:1]
        # Without required inputs, the columns of an input are NULL in rows without it.
        is_searchable = len(complete_keys) == len(self.inputs) and None not in key[self.first].values()
        return complete_keys if is_searchable else []

    def _name_columns(self, fields: Mapping[tuple[str, str], str | None]) -> Texts:
        """Return values by output column; fields that are not in the output are left out."""
        columns = {source: name for name, source in reversed(list(self.outputs.items()))}
        return {columns[source]: value for source, value in fields.items() if source in columns}

    def _parse_clauses(self, text: str) -> dict[str, Texts]:
        names = self.key_columns or self.keys[self.first]
        if text.lstrip().startswith("{"):
            positions = self._name_clauses(names)
            texts = parse_key(text, (), list(positions))
            by_clause = {positions[name]: value for name, value in texts.items()}
            if len(by_clause) < len(names):
                raise refuse_key(names)
            values = [by_clause[position] for position in range(len(names))]
        else:
            values = list(parse_key(text, names).values())
        return {stage: dict(zip(fields, values, strict=True)) for stage, fields in self.keys.items()}

    def _name_clauses(self, names: Sequence[str]) -> dict[str, int]:
        """Return the position of each clause by all its names; those of the key take precedence."""
        positions = {name: position for position, name in enumerate(names)}
        for stage, fields in self.keys.items():
            for position, name in enumerate(fields):
                positions.setdefault(name, position)
                positions.setdefault(f"{stage}.{name}", position)
        return positions

    def _parse_fields(self, text: str) -> dict[str, Texts]:
        key: dict[str, Texts] = {stage: {} for stage in self.inputs}
        if not text.lstrip().startswith("{"):
            hint = f"name output columns, such as {build_example(list(self.outputs)[:1])}"
            message = "must be a JSON object, as the join has no keys"
            raise ConfigError.from_problems([Problem("key", "value", message, hint)])
        for name, value in parse_key(text, (), None).items():
            stage, _, source = name.partition(".")
            stage, source = self.outputs.get(name, (stage, source))
            if stage not in self.inputs or not source:
                hint = suggest_name(name, self.outputs, "columns")
                raise ConfigError.from_problems(
                    [Problem("key", "unknown", f"unknown key column {name!r}", hint)]
                )
            key[stage][source] = value
        return key


@dataclass(frozen=True, slots=True)
class InputRows:
    """The rows of an input that have the key; ``missing`` states why they are unknown."""

    stage: str
    uri: str
    version: int | None
    key: Row
    rows: tuple[Row, ...] = ()
    is_required: bool = False
    missing: str = ""

    def as_object(self) -> dict[str, Any]:
        """Return the rows as a JSON object."""
        return {
            "input": self.stage,
            "dataset": self.uri,
            "version": self.version,
            "required": self.is_required,
            "key": to_json_value(self.key),
            "rows": to_json_value(self.rows),
            "missing": self.missing or None,
        }

    def format_lines(self) -> Iterator[str]:
        """Yield the rows as text."""
        condition = f" with {format_row(self.key)}" if self.key else ""
        count = "unknown rows" if self.missing else format_count(len(self.rows), "row")
        need = ", required" if self.is_required else ""
        name = f"{escape_text(self.stage)} ({escape_text(self.uri)} version {self.version}{need})"
        yield f"input {name}: {count}{condition}{f' ({escape_text(self.missing)})' if self.missing else ''}"
        yield from (f"  {format_row(row)}" for row in self.rows[:_ROWS_MAX])
        if len(self.rows) > _ROWS_MAX:
            yield f"  … and {len(self.rows) - _ROWS_MAX} more"


@dataclass(frozen=True, slots=True)
class JoinExplanation:
    """The rows of a key in the target and in the inputs of the run, and why the target has none.

    ``rows`` is None if the target cannot be searched; ``missing`` states why.
    """

    key: Row
    commit: CommitRef
    rows: tuple[Row, ...] | None
    inputs: tuple[InputRows, ...]
    reasons: tuple[str, ...] = ()
    missing: str = ""

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            "key": to_json_value(self.key),
            "commit": self.commit.as_object(),
            "rows": None if self.rows is None else to_json_value(self.rows),
            "missing": self.missing or None,
            "reasons": list(self.reasons),
            "inputs": [rows.as_object() for rows in self.inputs],
        }

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text."""
        yield f"{format_row(self.key)}: {self._format_summary()}"
        yield from (f"  {format_row(row)}" for row in (self.rows or ())[:_ROWS_MAX])
        yield from (f"  {reason}" for reason in self.reasons)
        for rows in self.inputs:
            yield from rows.format_lines()

    def _format_summary(self) -> str:
        if self.rows is None:
            return f"{self.missing}; joined by {self.commit.format_text()}"
        count = "a row" if len(self.rows) == 1 else format_count(len(self.rows), "row")
        return f"{count if self.rows else 'no row'}, joined by {self.commit.format_text()}"


def explain_missing_row(
    join: JoinDescription, inputs: Sequence[InputRows], pairs: int | None = None, *, is_searched: bool = True
) -> tuple[str, ...]:
    """Return why a key has no joined row; empty if the inputs do not show why.

    :param pairs: the number of pairs of input rows that meet the expression; None if it is unknown.
    :param is_searched: whether the target was searched and has no row; otherwise it may have one.
    """
    searched = [rows for rows in inputs if rows.key]
    reasons = [
        f"the required input {escape_text(rows.stage)!r} has no row with {format_row(rows.key)}"
        for rows in searched
        if rows.is_required and not rows.rows and not rows.missing
    ]
    has_null = any(value is None for rows in searched for value in rows.key.values())
    if join.keys and has_null and not join.nulls_match:
        reasons.append("the key has a NULL, and with join_null_keys=False NULL matches nothing")
    if reasons or any(rows.missing for rows in searched):
        return tuple(reasons)
    if not any(rows.rows for rows in searched):
        return ("no input has a row with this key",)
    # If no other input is required, each row of an input has a joined row, whatever the condition is.
    is_preserved = any(rows.rows and set(join.required) <= {rows.stage} for rows in searched)
    if not is_searched and (join.expression is None or is_preserved or pairs != 0):
        return ()
    if join.expression is None or is_preserved:
        return ("the inputs have the key, so the row was deleted or changed after the run",)
    if pairs:
        return (
            "the row was deleted or changed after the run, or only delta-rs finds that the condition holds",
        )
    return (f"the condition dropped these rows, as no pair meets it: {escape_text(join.expression)}",)
