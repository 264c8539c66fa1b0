"""Write the text of a DAG file and of a pipe file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_merge_provider.dag_files.arguments import Argument, InitRequest

_OPERATORS = {
    "merge_source": "MergeSourceOperator",
    "joiner": "JoinerOperator",
    "merge_engine": "MergeEngineOperator",
    "upsert": "UpsertOperator",
    "delete_insert": "DeleteInsertOperator",
    "scd2": "Scd2Operator",
    "merge_record": "MergeRecordOperator",
}
_LINE_MAX_CHARS = 100


def render_dag(kind: str, request: InitRequest, arguments: Sequence[Argument]) -> str:
    """Return the text of a DAG with one task.

    :param kind: the operator, by the name of its module.
    """
    name = name_dag(request.target)
    operator, output = _OPERATORS[kind], name_output(kind)
    where = [] if request.warehouse is None else [Argument("warehouse", request.warehouse)]
    lines = [
        f'"""Write {name} with {operator}. Check each proposal in the comments before the first run."""',
        "",
        "from __future__ import annotations",
        "",
        "from airflow.sdk import DAG",
        "",
        f"from airflow_merge_provider.operators.{kind} import {operator}",
        "",
        f"with DAG({_render_value(name)}, schedule=None, catchup=False, max_active_runs=1) as dag:",
        f"    {operator}(",
        '        task_id="merge",',
        *_render_arguments([Argument(output, request.target), *where, *arguments], "        "),
        "    )",
        "",
    ]
    return "\n".join(lines)


def build_pipe(kind: str, request: InitRequest, arguments: Sequence[Argument]) -> dict[str, Any]:
    """Return the pipe with the same source, sink and arguments as the DAG, without a schedule."""
    source = {argument.name: argument.value for argument in arguments if argument.active}
    return {
        "_id": name_dag(request.target),
        "type": "pipe",
        "source": {"type": "merge" if kind == "merge_source" else kind, **source},
        "sink": {"dataset": request.target},
        "pump": {"mode": "manual"},
    }


def render_pipe(pipe: Mapping[str, Any], arguments: Sequence[Argument], *, is_yaml: bool) -> str:
    """Return the text of a pipe file: YAML with the comments of the proposals, or JSON."""
    if not is_yaml:
        return json.dumps(pipe, indent=2, ensure_ascii=False) + "\n"
    import yaml  # noqa: PLC0415 - only needed for YAML

    comments = [
        f"# {argument.name}: {comment}"
        for argument in arguments
        if argument.active
        for comment in argument.comments
    ]
    content: str = yaml.safe_dump(dict(pipe), sort_keys=False, allow_unicode=True, default_flow_style=None)
    return "".join(f"{comment}\n" for comment in comments) + content


def name_dag(target: str) -> str:
    """Return the ID of a DAG for a target.

    >>> name_dag("s3://lake/golden customers")
    'golden_customers'
    """
    return re.sub(r"[^A-Za-z0-9_.\-]", "_", target.rstrip("/").rpartition("/")[2])[:250] or "merge"


def name_output(kind: str) -> str:
    """Return the argument of an operator that holds the target."""
    return "merged" if kind == "merge_record" else "target"


def _render_arguments(arguments: Sequence[Argument], indent: str) -> Iterator[str]:
    for argument in arguments:
        yield from (f"{indent}# {comment}" for comment in argument.comments)
        mark = "" if argument.active else "# "
        line = f"{indent}{mark}{argument.name}={_render_value(argument.value)},"
        if len(line) <= _LINE_MAX_CHARS or not isinstance(argument.value, list):
            yield line
            continue
        yield f"{indent}{mark}{argument.name}=["
        yield from (f"{indent}{mark}    {_render_value(item)}," for item in argument.value)
        yield f"{indent}{mark}],"


def _render_value(value: Any) -> str:
    """Return a value as Python code."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(_render_value, value))}]"
    if isinstance(value, dict):
        entries = (f"{_render_value(name)}: {_render_value(item)}" for name, item in value.items())
        return f"{{{', '.join(entries)}}}"
    return repr(value)
