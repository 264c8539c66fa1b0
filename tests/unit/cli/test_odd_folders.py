"""Test commands that need no Spark over tables and files in folders with odd names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.cli.main import main
from airflow_merge_provider.yaml_text import parse_yaml
from tests.odd_names import ODD, encode_path

FILES = ("rows.csv", "rows.jsonl", "rows.parquet")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table and a file of each kind in a folder with a plain name."""
    folder = tmp_path_factory.mktemp("plain")
    rows = pa.table({"id": [1], "name": ["x"]})
    # delta-rs cannot write to a folder with %20.
    write_deltalake(str(folder / "a"), rows)
    pq.write_table(rows, folder / "rows.parquet")
    (folder / "rows.csv").write_text("id,name\n1,x\n")
    (folder / "rows.jsonl").write_text('{"id": 1, "name": "x"}\n')
    return folder


@pytest.mark.parametrize("name", ["[x]", "{a,b}", "%20", "a b", "#1", "a?b", "100%", "*", ODD])
@pytest.mark.parametrize("is_uri", [False, True], ids=["path", "uri"])
def test_commands_without_spark_use_a_folder_with_an_odd_name(
    tmp_path: Path, plain: Path, capsys: pytest.CaptureFixture[str], name: str, is_uri: bool
) -> None:
    """``init`` writes a file there, which ``check`` finds valid, and ``doctor`` reaches the warehouse."""
    folder = tmp_path / "root" / name
    shutil.copytree(plain, folder)
    location = encode_path(folder) if is_uri else str(folder)
    warehouse = ("--warehouse", location)
    for source in ("a", *(f"{location}/{file}" for file in FILES)):
        file = folder / "runs" / "load.yaml"
        arguments = ["--datasets", source, "--target", f"{location}/t", "--key", "id", "-o", str(file)]

        assert main(["init", "upsert", *arguments, *warehouse, "--force"]) == 0
        assert main(["check", str(file), *warehouse]) == 0

        captured = capsys.readouterr()
        # Only Spark reads the columns of JSON.
        assert "columns checked" in captured.out or source.endswith("jsonl"), captured.out
        assert captured.err == ""
        config = parse_yaml(file.read_text(encoding="utf-8"))
        assert config["target"] == f"{location}/t"
    main(["doctor", *warehouse, "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    states = {check["check"]: (check["state"], check["value"]) for check in checks}
    assert states["warehouse"][0] == "ok", states["warehouse"]
    assert {path.name for path in tmp_path.iterdir()} == {"root"}
    assert sorted(path.name for path in folder.iterdir()) == sorted(["a", *FILES, "runs"])
