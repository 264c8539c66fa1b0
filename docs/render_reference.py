"""Render pages of the reference from the code: settings, the command line, and Python functions."""

from __future__ import annotations

import argparse
import ast
import html
import inspect
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

from airflow_merge_provider.cli.registry import COMMANDS, Command
from airflow_merge_provider.core.file_options import DATASET, INFERRING, MERGE_RECORD, REFUSED_OPTIONS
from airflow_merge_provider.core.merge_record.config import FORMATS
from airflow_merge_provider.core.schema.key_types import choose_comparison, list_casts
from airflow_merge_provider.get_provider_info import get_provider_info

PACKAGE = "airflow_merge_provider"
_SECTION = "merge"
# The functions and classes that users import, by module, besides the operators.
_PYTHON = {
    "assets": ("dataset_asset",),
    "pipes": ("pipe_dag", "load_pipes"),
    "task_groups": ("build_reviewed_merge",),
    "triggers.dataset_changed": ("DatasetChangedTrigger",),
    "hooks.warehouse": ("WarehouseHook", "find_warehouse"),
    "explain.dispatch": ("explain_target",),
    "explain.merge_source": ("explain_output", "explain_entity", "explain_between", "list_all_links"),
    "explain.merge_engine": ("explain_key",),
    "explain.merge_load": ("explain_row",),
    "explain.joiner": ("explain_joined_row",),
    "explain.merge_record": ("explain_merged_file",),
    "jobs.merge_engine.reading": ("read_current_rows",),
    "jobs.merge_source.links": ("build_links",),
}
_FIELD = re.compile(r"^:(param|raises|returns?) ?([^:]*): (.*)$", re.DOTALL)
_BASE_OPERATOR = "SparkJobOperator"
# The columns of a line of code.
_CODE_WIDTH = 100


def escape_cell(text: str) -> str:
    """Return a text as it is written in a cell of a Markdown table, with addresses as code."""
    text = re.sub(r"\b(?:https?|sc)://\S+?(?=[.,;]?(?:\s|$))", r"`\g<0>`", text)
    text = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text.replace("|", "\\|").replace("*", "\\*"))
    return html.escape(text, quote=False)


def render_settings() -> str:
    """Return a table of the settings in section ``[merge]`` of Airflow's configuration."""
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    options: dict[str, dict[str, Any]] = get_provider_info()["config"][_SECTION]["options"]
    for name, option in options.items():
        default = f"`{option['default']}`" if option["default"] else ""
        example = f" Example: `{option['example']}`." if option["example"] else ""
        lines.append(f"| `{name}` | {default} | {escape_cell(option['description'])}{example} |")
    return "\n".join(lines) + "\n"


def render_connection() -> str:
    """Return a table of the fields of a connection of type ``merge_store``."""
    (connection,) = get_provider_info()["connection-types"]
    labels = connection["ui-field-behaviour"]["relabeling"]
    lines = ["| field | label | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {label} |  |" for name, label in labels.items()]
    for name, field in connection["conn-fields"].items():
        lines.append(f"| `{name}` (extra) | {field['label']} | {escape_cell(field['description'])} |")
    return "\n".join(lines) + "\n"


def render_commands() -> str:
    """Return a table of the arguments and options of each command that has any."""
    return "\n".join(line for command in COMMANDS for line in _render_command(command))


def _render_command(command: Command) -> Iterator[str]:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    actions = parser._actions  # noqa: SLF001 - argparse has no public list of arguments
    if not actions:
        return
    yield from (f"### Options of `{command.name}`", "")
    yield from ("| argument | meaning |", "| --- | --- |")
    for action in actions:
        text = (action.help or "") % {**vars(action), "prog": PACKAGE}
        yield f"| `{_describe_usage(action)}` | {escape_cell(text)} |"
    yield ""


def _name_argument(action: argparse.Action) -> str:
    if action.choices and not isinstance(action.metavar, str):
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _describe_usage(action: argparse.Action) -> str:
    if not action.option_strings:
        return _name_argument(action).replace("|", "\\|")
    if action.nargs == 0:
        return action.option_strings[-1]
    count = action.nargs if isinstance(action.nargs, int) else 1
    return " ".join([action.option_strings[-1], *[_name_argument(action)] * count])


def render_arguments() -> str:
    """Return a table of the arguments of every operator, from the docstring of their base class."""
    file = Path(__file__).parents[1] / PACKAGE / "operators/_spark_job.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (node,) = [item for item in tree.body if isinstance(item, ast.ClassDef) and item.name == _BASE_OPERATOR]
    arguments = _find_constructor(node).args
    defaults = {
        argument.arg: ast.unparse(value)
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value is not None
    }
    lines = ["| argument | default | meaning |", "| --- | --- | --- |"]
    _, fields = _split_docstring(inspect.cleandoc(ast.get_docstring(node) or ""))
    for field in fields:
        name = field.split("`")[1]
        default = defaults[name].replace("WarehouseHook.default_conn_name", "'merge_store_default'")
        default = default.replace("DEFAULT_OFFSET", "'if-source-populated'").replace("'", '"')
        lines.append(f"| `{name}` | `{default}` |{field.split('|', 2)[2]}")
    return "\n".join(lines) + "\n"


def render_python() -> str:
    """Return a section for each function and class that users import, from signature and docstring."""
    return "\n".join(render_object(module, name) for module, names in _PYTHON.items() for name in names)


def render_object(module: str, name: str) -> str:
    """Return the section of a function or class of a module of the package."""
    file = Path(__file__).parents[1] / PACKAGE / f"{module.replace('.', '/')}.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return "\n".join(_render_object(f"{PACKAGE}.{module}", nodes[name]))


def _render_object(module: str, node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    yield from (f"### {node.name}", "", "```py", f"from {module} import {node.name}", "")
    yield from (*_format_signature(node), "```", "")
    text, fields = _split_docstring(inspect.cleandoc(ast.get_docstring(node) or ""))
    yield from (text, "")
    if fields:
        yield from ("| | |", "| --- | --- |", *fields, "")


def _format_signature(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """Yield the lines that define a function, or a class with its arguments, with types and defaults."""
    if isinstance(node, ast.ClassDef):
        yield f"class {node.name}:"
        yield from (f"    {line}" for line in _format_function(_find_constructor(node)))
    else:
        yield from _format_function(node)


def _format_function(function: ast.FunctionDef) -> Iterator[str]:
    arguments = [
        re.sub(r"^([^=]*:[^=]*)=", r"\1 = ", text) for text in _split_arguments(ast.unparse(function.args))
    ]
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    line = f"def {function.name}({', '.join(arguments)}){returns}: ..."
    if len(line) <= _CODE_WIDTH:
        yield line
        return
    yield f"def {function.name}("
    yield from (f"    {argument}," for argument in arguments)
    yield f"){returns}: ..."


def _find_constructor(node: ast.ClassDef) -> ast.FunctionDef:
    methods = (method for method in node.body if isinstance(method, ast.FunctionDef))
    return next(method for method in methods if method.name == "__init__")


def _split_arguments(text: str) -> Iterator[str]:
    """Yield arguments; a comma inside of brackets does not separate them."""
    start = depth = 0
    for position, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            yield text[start:position].strip()
            start = position + 1
    yield text[start:].strip()


def _split_docstring(text: str) -> tuple[str, list[str]]:
    """Return the description of a docstring, without its examples, and a table row for each field."""
    description: list[str] = []
    rows: list[str] = []
    for paragraph in re.split(r"\n\n|\n(?=:)", text):
        line = " ".join(paragraph.split()).replace("``", "`")
        if field := _FIELD.match(line):
            kind, name, meaning = field.groups()
            first = f"`{name}`" if kind == "param" else f"raises `{name}`" if name else kind
            rows.append(f"| {first} | {meaning.replace('|', chr(92) + '|')} |")
        elif not paragraph.startswith(">>>"):
            description.append(line)
    return "\n\n".join(description), rows


# A type of each kind, in the order of the table of keys.
_KEY_TYPES = (
    "int", "bigint", "decimal(38,2)", "decimal(38,18)", "double", "string", "char(5)", "char(8)", "binary",
    "boolean", "date", "timestamp", "timestamp_ntz",
)  # fmt: skip


def render_key_types() -> str:
    """Return a table of pairs of key types: how they are compared, or the casts that they need."""
    lines = ["| types | compared | else join on |", "| --- | --- | --- |"]
    for pair in combinations(_KEY_TYPES, 2):
        comparison, casts = choose_comparison(pair), list_casts(pair)
        if comparison is not None:
            compared = "integral parts and fractions" if comparison.is_split else f"as `{comparison.type}`"
            lines.append(f"| `{pair[0]}`, `{pair[1]}` | {compared} | |")
        elif casts is not None:
            changed = (cast.format(kind) for cast, kind in zip(casts, ("left", "right"), strict=True))
            lines.append(f"| `{pair[0]}`, `{pair[1]}` | no | {', '.join(f'`{cast}`' for cast in changed)} |")
    return "\n".join([*lines, "| any others | no | another field |"])


_READERS = {DATASET: "datasets", MERGE_RECORD: "MergeRecord", INFERRING: "MergeRecord without a schema"}


def render_reader_options() -> str:
    """Return a table of the options of readers of files that are refused."""
    lines = ["| option | formats | refused by | accepted | what it does | instead |", f"|{' --- |' * 6}"]
    for option in REFUSED_OPTIONS:
        # The option has no effect on files of other formats.
        formats = "all" if set(FORMATS) <= set(option.formats) else ", ".join(option.formats)
        readers = " and ".join(_READERS[one] for one in option.readers)
        accepted = ", ".join(f"`{value}`" for value in option.accepted) or "nothing"
        cells = (f"`{option.name}`", formats, readers, accepted, option.effect, option.remedy)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
