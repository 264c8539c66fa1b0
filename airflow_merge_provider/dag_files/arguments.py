"""The arguments of an operator, as they are proposed for existing tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.merge_record.config import FORMATS
from airflow_merge_provider.dag_files.columns import SourceTable, group_by_name
from airflow_merge_provider.explain.folder import Folder

_ENDINGS = {"jsonl": "json", "ndjson": "json"}


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument with comments on it; one that is not ``active`` is only shown as a comment."""

    name: str
    value: Any
    comments: tuple[str, ...] = ()
    active: bool = True


@dataclass(frozen=True, slots=True)
class InitRequest:
    """What a DAG is written for: datasets, the target, and the key if the user names it."""

    datasets: tuple[str, ...]
    target: str
    warehouse: str | None = None
    key: tuple[str, ...] = ()
    tables: tuple[SourceTable, ...] = field(default=(), compare=False)

    @property
    def source(self) -> SourceTable:
        """The only source."""
        return self.tables[0]

    def name_aliases(self) -> list[str]:
        """Return a short name for each dataset, which rules use."""
        aliases: list[str] = []
        for table in self.tables:
            letters = "".join(char if char.isascii() and char.isalnum() else "_" for char in table.name)
            alias = letters if letters[:1].isalpha() else f"d{letters}"
            aliases.append(alias if alias not in aliases else f"{alias}_{len(aliases) + 1}")
        return aliases


def propose_merge_source(request: InitRequest) -> Iterator[Argument]:
    """Yield the arguments of a merge source: rules for columns that several datasets have.

    :raises ConfigError: if the datasets have no common ID.
    """
    aliases = dict(zip((table.dataset for table in request.tables), request.name_aliases(), strict=True))
    id_column = _choose_id(request)
    pairs = [f"{dataset} {alias}" for dataset, alias in aliases.items()]
    yield Argument("datasets", pairs, ("each dataset with the alias that the rules use",))
    if id_column != "_id":
        yield Argument("id_column", id_column, ("the ID of an entity in its dataset; the default is _id",))
    rules = list(_list_rules(request.tables, aliases, id_column))
    comments = ["entities are the same if one rule holds; proposed from the names and types of columns"]
    if not rules:
        comments = [
            "no column of the same name and type looks like an ID or an email address: add rules,",
            f'such as ["eq", "{next(iter(aliases.values()))}.…", "…"]; without any, nothing merges',
        ]
    yield Argument("equality", rules, tuple(comments))
    yield Argument(
        "max_change_ratio", 0.2, ("stop before more than a fifth of the rows changes",), active=False
    )


def _list_rules(
    tables: Sequence[SourceTable], aliases: Mapping[str, str], id_column: str
) -> Iterator[list[Any]]:
    """Yield a rule for each two datasets, one after the other, that have the same identifying column."""
    for holders in group_by_name(tables).values():
        column = holders[0][0].find_column(holders[0][1])
        if column is None or column.name.casefold() == id_column.casefold() or not column.is_shared_id:
            continue
        for (left, left_name), (right, right_name) in pairwise(holders):
            sides = [f"{aliases[left.dataset]}.{left_name}", f"{aliases[right.dataset]}.{right_name}"]
            yield ["eq", *([["lower", side] for side in sides] if column.is_mail else sides)]


def propose_joiner(request: InitRequest) -> Iterator[Argument]:
    """Yield the arguments of a join by the columns that all inputs have.

    :raises ConfigError: if there is no such column.
    """
    names = dict(zip(request.name_aliases(), request.tables, strict=True))
    yield Argument("inputs", {name: table.dataset for name, table in names.items()})
    fields = _choose_join_fields(request, names)
    clauses = [" = ".join(f"{name}.{field}" for name, field in clause.items()) for clause in fields]
    hint = "given by --key" if request.key else "proposed from the names and types of columns"
    yield Argument("join_keys", " & ".join(clauses), (f"the fields to compare: {hint}",))
    yield Argument("join_type", "innerjoin", ("or leftouterjoin, which keeps all rows of the first input",))
    comment = "the key once, and every other field"
    yield Argument("selected_fields", list(_select_fields(names, fields)), (comment,))


def propose_merge_engine(request: InitRequest) -> Iterator[Argument]:
    """Yield the arguments of a merge engine.

    :raises ConfigError: if the source has no column that may be the key.
    """
    yield Argument("source", request.datasets[0])
    yield _propose_key("primary_key", request)
    comment = "or partial-update, aggregation, first-row"
    yield Argument("merge_engine", "deduplicate", (comment,))
    if (time := request.source.find_time()) is not None:
        yield Argument("options", {"sequence.field": time.name}, ("the newest record of a key wins",))


def propose_upsert(request: InitRequest) -> Iterator[Argument]:
    """Yield the arguments of an upsert.

    :raises ConfigError: if the source has no column that may be the key.
    """
    yield Argument("source", request.datasets[0])
    yield _propose_key("primary_key", request)
    if (time := request.source.find_time()) is not None:
        comment = "of several rows of a key, and of a stored one, the newest wins"
        yield Argument("sequence_by", time.name, (comment,), active=False)


def propose_delete_insert(request: InitRequest) -> Iterator[Argument]:
    """Yield the arguments of a delete-insert.

    :raises ConfigError: if the source has no column that may be the key.
    """
    yield Argument("source", request.datasets[0])
    yield _propose_key("primary_key", request)


def propose_scd2(request: InitRequest) -> Iterator[Argument]:
    """Yield the arguments of an SCD2 history.

    :raises ConfigError: if the source has no column that may be the key.
    """
    yield Argument("source", request.datasets[0])
    yield _propose_key("natural_key", request)
    yield Argument("mode", "snapshot", ("a source row that is missing is deleted; or changes",))
    if (time := request.source.find_time()) is not None:
        comment = "versions begin at this time instead of the time of the run"
        yield Argument("effective_from", time.name, (comment,), active=False)


def propose_merge_record(request: InitRequest) -> Iterator[Argument]:
    """Yield the arguments of a merge record; the format is that of the files in the source folder."""
    target = request.target
    yield Argument("source", request.datasets[0], ("the folder in which small files arrive",))
    yield Argument("failure", f"{target}_failure", ("files that cannot be read",))
    yield Argument("original", f"{target}_original", ("files that were merged",))
    yield Argument("state_path", f"{target}_state", ("the open bins and the ledger",))
    yield Argument("reader", {"format": _find_format(request)}, ("the format of the files",))
    yield Argument("max_records", 100_000, ("a merged file has at most this many records",))
    yield Argument("max_bin_age", "1 hour", ("a bin is merged at this age, however small it is",))


PROPOSALS: dict[str, Callable[[InitRequest], Iterator[Argument]]] = {
    "merge_source": propose_merge_source,
    "joiner": propose_joiner,
    "merge_engine": propose_merge_engine,
    "upsert": propose_upsert,
    "delete_insert": propose_delete_insert,
    "scd2": propose_scd2,
    "merge_record": propose_merge_record,
}


def _propose_key(name: str, request: InitRequest) -> Argument:
    if request.key:
        columns = request.source.require_columns(request.key)
        return Argument(name, [column.name for column in columns])
    candidates = [column.name for column in request.source.list_keys()]
    if not candidates:
        raise _refuse_key(f"no column of {request.source.dataset} looks like a key", request.source)
    comments = ["proposed from names and statistics; check that each row has a value of its own"]
    if further_candidates := candidates[1:]:
        comments.append(f"other candidates: {', '.join(further_candidates)}")
    return Argument(name, candidates[:1], tuple(comments))


def _choose_id(request: InitRequest) -> str:
    """Return the column with the ID of an entity, which all datasets have as a string."""
    candidates = [request.key] if request.key else [[column.name] for column in request.source.list_keys()]
    for names in candidates:
        columns = [table.find_column(name) for table in request.tables for name in names[:1]]
        if all(column is not None and column.type == "string" for column in columns):
            return next(column.name for column in columns if column is not None)
    message = "the datasets have no common column of strings that looks like an ID"
    if request.key:
        message = f"column {request.key[0]!r} is not a string in every dataset"
    raise _refuse_key(message, request.source)


def _refuse_key(message: str, table: SourceTable) -> ConfigError:
    names = ", ".join(column.name for column in table.columns)
    return ConfigError.from_problems(
        [Problem("--key", "missing", message, f"set --key to columns of: {names}")]
    )


def _choose_join_fields(request: InitRequest, names: dict[str, SourceTable]) -> list[dict[str, str]]:
    """Return the field of each input in each clause of the join."""
    if request.key:
        columns = [table.require_columns(request.key) for table in names.values()]
        by_clause = zip(*columns, strict=True)
        return [
            {name: column.name for name, column in zip(names, clause, strict=True)} for clause in by_clause
        ]
    for holders in group_by_name(request.tables).values():
        column = holders[0][0].find_column(holders[0][1])
        if len(holders) == len(names) and column is not None and column.is_shared_id:
            return [dict(zip(names, (actual_name for _, actual_name in holders), strict=True))]
    raise _refuse_key("the inputs have no common column that looks like an ID", request.source)


def _select_fields(names: dict[str, SourceTable], keys: list[dict[str, str]]) -> Iterator[str]:
    """Yield every field of the output: the key once, and fields of the same name under another one."""
    used_names: set[str] = set()
    first = next(iter(names))
    for name, table in names.items():
        for column in table.columns:
            if name != first and any(clause[name] == column.name for clause in keys):
                continue
            is_new = column.name.casefold() not in used_names
            output = column.name if is_new else f"{name}_{column.name}"
            used_names.add(output.casefold())
            yield f"{name}.{column.name}" if is_new else f"{name}.{column.name} as {output}"


def _find_format(request: InitRequest) -> str:
    """Return the format that the ending of the first known file in the source folder names."""
    location = resolve_dataset(request.datasets[0], request.warehouse, at="--datasets")
    names: Sequence[str] = Folder(str(location.path)).list_names() if location.path else ()
    endings = (name.rpartition(".")[2].lower() for name in names)
    formats = (_ENDINGS.get(ending, ending) for ending in endings)
    return next((name for name in formats if name in FORMATS), "json")
