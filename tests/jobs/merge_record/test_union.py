"""Test that files with different types share a merged file in which each value is the one of its file."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from tests.jobs.merge_record.landing import Landing

# The smallest numbers of decimals by their digits after the point.
SMALL = {scale: f"0.{'0' * (scale - 1)}1" for scale in (18, 38)}
_AT = datetime(2024, 5, 1, 0, 0, 0, 123456)  # noqa: DTZ001 - its type has the time zone
_SETTINGS: dict[str, Any] = {
    "schema_merge": "union", "max_bins": "unlimited", "arrival_order": "path",
    "correlation_attribute_name": "k", "attribute_sources": ["sidecar"],
}  # fmt: skip


def build_parquet(**columns: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


def build_decimal(number: str, scale: int) -> pa.Array:
    return pa.array([Decimal(number)], pa.decimal128(38, scale))


# Two columns of which no type holds the first one beside the second one, and the problem.
LARGE: dict[str, tuple[list[pa.Array], str]] = {
    "large decimals": (
        [build_decimal("1" * 21, 0), build_decimal("0.5", 18)],
        f"DECIMAL(38,0) '{'1' * 21}' is not a value of DECIMAL(38,18)",
    ),
    "large fractions": (
        [pa.array([1], pa.int64()), build_decimal("0.5", 38)], "BIGINT '1' is not a value of DECIMAL(38,38)"
    ),
    # Spark's cast of the float back would be the same integer.
    "doubles": (
        [pa.array([2**63 - 1]), pa.array([0.5])], "BIGINT '9223372036854775807' is not a value of DOUBLE"
    ),
    "floats": (
        [pa.array([2**31 - 1], pa.int32()), pa.array([0.5], pa.float32())],
        "INT '2147483647' is not a value of FLOAT",
    ),
}  # fmt: skip


def read_groups(landing: Landing) -> dict[str, list[Any]]:
    """Return the records of the merged files by the attribute of their files."""
    groups = {}
    for path in landing.list_outputs():
        text = path.read_text()
        documents = [text] if text.startswith("[") else text.splitlines()
        records = [json.loads(document, parse_float=Decimal) for document in documents]
        groups[landing.read_attributes(path)["k"]] = records[0] if text.startswith("[") else records
    return groups


def test_json_lines(lean: SparkSession, tmp_path: Path) -> None:
    """NULLs and empty lists take the type of other files, and values beside texts come out as they are."""
    landing = Landing(tmp_path, lean, **_SETTINGS)
    groups = {
        "nulls": [
            '{"id":null,"l":[],"o":{},"t":null}',
            '{"id":5,"l":[1],"o":{"a":1},"t":{"x":[]}}',
            '{"id":null,"l":null,"o":null,"t":{"x":[1.5]}}',
        ],
        "only nulls": ['{"id":null,"l":[]}', '{"id":null,"l":[]}'],
        "texts": [
            '{"v":1.10,"r":{"x": 2.50},"l":[1.0]}', '{"v":"x","r":"y","l":["z"]}', '{"v":7,"r":null,"l":null}'
        ],
        "one file": ['{"v":1.10}\n{"v":"x"}\n{"v":[-0, 1E2]}\n{"v":true}\n{"v":0.1234567890123456789}'],
    }  # fmt: skip
    for group, contents in groups.items():
        for number, content in enumerate(contents):
            landing.put_file(f"{group}-{number}.json", f"{content}\n", k=group)
    packed = gzip.compress(b'{"v":2.50}\n')
    landing.put_file("texts-3.json.gz", packed, k="texts")

    landing.run_job(at=1)

    assert read_groups(landing) == {
        "nulls": [
            {"id": None, "l": [], "o": {"a": None}, "t": None},
            {"id": 5, "l": [1], "o": {"a": 1}, "t": {"x": []}},
            {"id": None, "l": None, "o": None, "t": {"x": [1.5]}},
        ],
        "only nulls": [{"id": None, "l": []}] * 2,
        "texts": [
            {"v": "1.10", "r": '{"x": 2.50}', "l": ["1.0"]},
            {"v": "x", "r": "y", "l": ["z"]},
            {"v": "7", "r": None, "l": None},
            {"v": "2.50", "r": None, "l": None},
        ],
        "one file": [{"v": text} for text in ("1.10", "x", "[-0, 1E2]", "true", "0.1234567890123456789")],
    }


def test_json_arrays(lean: SparkSession, tmp_path: Path) -> None:
    """The same holds for arrays, also for compressed ones, of which Spark would take texts from doubles."""
    landing = Landing(tmp_path, lean, reader="json-array", **_SETTINGS)
    for number, content in enumerate(['[{"v":1.10},{"v":null}]', '[{"v":"x"},{"v":1.10}]', '[{"v":1e2}]']):
        landing.put_file(f"{number}.json.gz", gzip.compress(content.encode()), k="packed")
        landing.put_file(f"{number}.json", f"\ufeff{content}", k="plain")

    landing.run_job(at=1)

    expected = [{"v": text} for text in ("1.10", None, "x", "1.10", "1e2")]
    assert read_groups(landing) == {"packed": expected, "plain": expected}


def test_parquet(lean: SparkSession, tmp_path: Path) -> None:
    """Times keep their zone and records their NULLs as texts; a column of nulls takes any type.

    Records are united inside of lists and maps. Where no DECIMAL has the digits of all numbers, a number
    beyond the chosen one fails its bin by name.
    """
    landing = Landing(tmp_path, lean, reader="parquet", writer="json", **_SETTINGS)
    text = pa.array(["x"])
    files = {
        "text": [pa.array([_AT], pa.timestamp("us", "UTC")), pa.array([_AT]), text, pa.nulls(1)],
        "record": [pa.array([{"a": 1, "b": None}]), text],
        "nulls": [pa.nulls(1), pa.array([_AT], pa.timestamp("ns", "UTC")),
                  pa.array([_AT], pa.timestamp("us", "UTC"))],
        "list": [pa.array([[None]], pa.list_(pa.null())), pa.array([[True]])],
        **{name: arrays for name, (arrays, _) in LARGE.items()},
        "least": [pa.array([-(2**63)], pa.int64()), pa.array([0.5])],
    }  # fmt: skip
    for group, arrays in files.items():
        for number, array in enumerate(arrays):
            landing.put_file(f"{group}-{number}.parquet", build_parquet(v=array), k=group)
    maps = [pa.map_(text.type, pa.struct({name: text.type})) for name in "ab"]
    columns = {
        "lists": [pa.array([[[{"a": 1}]]]), pa.array([[[{"b": "x"}, None], [], None]])],
        "maps": [
            pa.array([[("k", {"a": "y"})]], maps[0]),
            pa.array([[("k", {"b": "x"}), ("l", None)]], maps[1]),
        ],
        "decimals": [build_decimal("12", 0), build_decimal(SMALL[18], 18)],
        "fractions": [pa.array([0], pa.int64()), build_decimal(SMALL[38], 38)],
    }
    for number in range(2):
        content = build_parquet(**{name: arrays[number] for name, arrays in columns.items()})
        landing.put_file(f"columns-{number}.parquet", content, k="columns")

    landing.run_job(at=1)

    groups = read_groups(landing)
    assert {name: [row[name] for row in groups["columns"]] for name in columns} == {
        "lists": [[[{"a": 1, "b": None}]], [[{"a": None, "b": "x"}, None], [], None]],
        "maps": [{"k": {"a": "y", "b": None}}, {"k": {"a": None, "b": "x"}, "l": None}],
        "decimals": [12, Decimal(SMALL[18])],
        "fractions": [0, Decimal(SMALL[38])],
    }
    values = {group: [row["v"] for row in rows] for group, rows in groups.items() if group != "columns"}
    assert values == {
        "text": ["2024-05-01T00:00:00.123456Z", "2024-05-01T00:00:00.123456", "x", None],
        "record": ['{"a":1,"b":null}', "x"],
        "nulls": [None, "2024-05-01T00:00:00.123456Z", "2024-05-01T00:00:00.123456Z"],
        "list": [[None], [True]],
        "least": [Decimal("-9.223372036854776E+18"), Decimal("0.5")],
    }
    failed = {line["sources"][0]["uri"].rpartition("/")[2]: line for line in landing.read_ledger()}
    for name, (_, problem) in LARGE.items():
        assert failed[f"{name}-0.parquet"]["reason"] == (
            f"A value of {name}-0.parquet cannot be merged: field 'v': the {problem} "
            "(set the field to STRING in the schema of the writer)"
        )


def test_csv(lean: SparkSession, tmp_path: Path) -> None:
    """Files of one header have types of their own, and one cannot read the values of another one."""
    landing = Landing(tmp_path, lean, reader="csv", writer="json", **_SETTINGS)
    for number, value in enumerate(("2147483648", "0.5", "true", "x")):
        landing.put_file(f"{number}.csv", f"v\n{value}\n", k="numbers" if number < 2 else "texts")

    landing.run_job(at=1)

    assert read_groups(landing) == {
        "numbers": [{"v": 2147483648}, {"v": Decimal("0.5")}],
        "texts": [{"v": "true"}, {"v": "x"}],
    }


def test_fragments_take_types_from_each_other(lean: SparkSession, tmp_path: Path) -> None:
    """A fragment without values has the types of the others, not those of texts; CSV, too."""
    settings = {"writer": "json", "merge_strategy": "Defragment", "arrival_order": "path"}
    fragment = {"fragment.identifier": "f", "fragment.count": "2"}
    for kind, contents in {"json": ['{"id":null}', '{"id":5}'], "csv": ["id,v\n,\n", "id,v\n5,\n"]}.items():
        landing = Landing(tmp_path / kind, lean, reader=kind, **settings)
        for number, content in enumerate(contents):
            landing.put_file(f"{number}", content, **fragment)

        landing.run_job(at=1)

        assert landing.read_ids() == [[None, 5]]
