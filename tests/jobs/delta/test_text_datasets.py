"""Test that datasets of text files come out with every value, or are refused by name."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset

NUMBERS = '{"id": 1, "v": 9007199254740993}\n{"id": 2, "v": 1.5}\n'
HEADER = {"header": "true"}
XML = {"rowTag": "r"}
# The format, the options and the files of a dataset, and its rows.
READ: dict[str, tuple[str, dict[str, str], dict[str, str], list[tuple[Any, ...]]]] = {
    "decimals": ("json", {"prefersDecimal": "true"}, {"a": NUMBERS},
                 [(1, Decimal("9007199254740993.0")), (2, Decimal("1.5"))]),
    "texts": ("json", {"primitivesAsString": "true"}, {"a": NUMBERS},
              [("1", "9007199254740993"), ("2", "1.5")]),
    "doubles": ("json", {}, {"a": '{"v": 0.30000000000000004}\n{"v": 1}\n{"v": 6.108497300695254e+16}\n'},
                [(0.30000000000000004,), (1.0,), (6.108497300695254e16,)]),
    "a name of Spark": ("json", {}, {"a": '{"_corrupt_record": "x", "id": 1}\n'}, [("x", 1)]),
    "another quote": ("csv", {**HEADER, "quote": "'"}, {"a": "id,v\n1,'it''s'\n"}, [("1", "it's")]),
    "permissive": ("json", {"mode": "PERMISSIVE"}, {"a": NUMBERS}, [(1, None), (2, 1.5)]),
    "dropping": ("json", {"mode": "DROPMALFORMED"}, {"a": NUMBERS}, [(2, 1.5)]),
    "xml": ("xml", XML, {"a": "<a><r><id>007</id><v> 1.10 </v></r></a>"}, [("007", " 1.10 ")]),
    "line ends": ("csv", HEADER, {"a": 'id,v\n1,"x\r\ny"\n', "b": 'id,v\r\n2,"p\nq"\r\n3,"\r"\r\n'},
                  [("1", "x\r\ny"), ("2", "p\nq"), ("3", "\r")]),
    "order of columns": ("csv", HEADER, {"a 1": "id,v\n1,x\n", "b%20c": "v,id\ny,2\n"},
                         [("1", "x"), ("2", "y")]),
    "comments": ("csv", {**HEADER, "comment": "#"}, {"a": "#1\nid,v\n1,x\n", "b": "#2\n\nid,v\n2,y\n"},
                 [("1", "x"), ("2", "y")]),
    "no header": ("csv", {}, {"a": "1,x\r\n", "b": "2,y\n"}, [("1", "x"), ("2", "y")]),
    "inferred": ("csv", {**HEADER, "inferSchema": "true"}, {"a": "id,v\n1,1.50\n2,3\n"},
                 [(1, 1.5), (2, 3.0)]),
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, str], dict[str, str], str]] = {
    "number": ("json", {}, {"a": NUMBERS},
               r"/a: column 'v': '9007199254740993' is not a valid DOUBLE .*prefersDecimal"),
    "infinity": ("json", {}, {"a": '{"l": [{"v": 1e400}]}\n'},
               r"column 'l\.element\.v': '1e400' is not a valid DOUBLE"),
    "digits": ("json", {}, {"a": '{"v": 123456789.123456789012}\n'},
               r"'123456789\.123456789012' is not a valid DOUBLE"),
    "inferred": ("csv", {**HEADER, "inferSchema": "true"}, {"a": "v\n1.5\n9007199254740993\n"},
                 "'9007199254740993' is not a valid DOUBLE .*inferSchema"),
    "other columns": ("csv", HEADER, {"a": "id,v\n1,x\n", "b": "id,w\n2,y\n"},
                      r"/b has the columns id, w, but .*/a has id, v"),
}  # fmt: skip


def read_rows(
    spark: SparkSession, folder: Path, kind: str, options: dict[str, str], files: dict[str, str]
) -> Any:
    """Write the files of a dataset, and return its rows in the order of their first column."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    dataset = resolve_dataset({"dataset": str(folder), "format": kind, "options": options}, None)
    rows = read_dataset(spark, pin_dataset(spark, dataset)).collect()
    return sorted(tuple(row) for row in rows)


@pytest.mark.parametrize("case", READ)
def test_values_of_text_datasets_come_out(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """Each value is the one of the file, whatever type Spark infers and however the lines end."""
    kind, options, files, expected = READ[case]

    assert read_rows(spark, tmp_path / "my data", kind, options, files) == expected


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_would_change_are_refused(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """The error names the file, the column, the value, its type and the remedy."""
    kind, options, files, reason = REFUSED[case]

    with pytest.raises((PySparkException, DataError), match=reason):
        read_rows(spark, tmp_path / "f", kind, options, files)


def test_columns_that_one_file_lacks_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """A folder of Parquet files has the columns of all of them."""
    (tmp_path / "f").mkdir()
    parquet.write_table(pa.table({"id": [1]}), tmp_path / "f" / "a.parquet")
    parquet.write_table(pa.table({"id": [2], "v": ["x"]}), tmp_path / "f" / "b.parquet")

    assert read_rows(spark, tmp_path / "f", "parquet", {}, {}) == [(1, None), (2, "x")]


def test_tables_of_text_files_are_read_by_their_types(spark: SparkSession, tmp_path: Path) -> None:
    """A text that is no value of the type of its column is an error, not a rounded value and not NULL."""
    (tmp_path / "t").mkdir()
    spark.sql(
        "CREATE TABLE default.texts (id INT, v DECIMAL(10,2), day DATE) USING csv "
        f"OPTIONS (header 'true', sep ';') LOCATION '{tmp_path / 't'}'"
    )
    dataset = resolve_dataset({"dataset": "default.texts", "format": "csv"}, None)

    def read() -> list[Any]:
        spark.sql("REFRESH TABLE default.texts")
        rows = read_dataset(spark, pin_dataset(spark, dataset)).select("id", "v")
        return [tuple(row) for row in rows.collect()]

    (tmp_path / "t" / "a.csv").write_text("id;v;day\n1;1.20;2024-05-01\n")
    assert read() == [(1, Decimal("1.20"))]
    (tmp_path / "t" / "a.csv").write_text("id;v;day\n1;1.239;2024-05-01\n")
    with pytest.raises(PySparkException, match=r"column 'v': '1\.239' is not a valid DECIMAL\(10,2\)"):
        read()
    spark.sql("DROP TABLE default.texts")
