"""Test explanations of joined rows: the input rows behind a row, and why a key has none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.explain.joiner import explain_joined_row
from tests.explanations import check_examples
from tests.jobs.joiner.conftest import MakeLake


def test_a_joined_row_is_explained(lake: MakeLake, capsys: pytest.CaptureFixture[str]) -> None:
    """The page's example: the input rows that the run read, and the required input that lacks a key.

    Inputs that have changed since are read at the version of the run.
    """
    join = lake(required_inputs="customers, purchases")
    join.run_job(run_id="manual__1")
    join.write_rows("customers", pa.table({"id": [9], "name": ["Zoe"]}), mode="append")
    warehouse = str(join.folder)

    check_examples("joiner.md", join.folder, capsys)

    by_other_name = explain_joined_row("joined", '{"purchases.customer": 9}', warehouse=warehouse)
    assert by_other_name.reasons == ("the required input 'customers' has no row with id = 9",)
    with pytest.raises(ConfigError, match=r"key: unknown key column 'idd' \(did you mean 'id'"):
        explain_joined_row("joined", '{"idd": 1}', warehouse=warehouse)
    with pytest.raises(DataError, match="customers was written by another program, not by joiner"):
        explain_joined_row("customers", "1", warehouse=warehouse)


def test_conditions_and_nulls_are_explained(lake: MakeLake) -> None:
    """A condition that no pair meets is named; a NULL in the key matches nothing unless the join says so."""
    join = lake(
        condition_type="advanced",
        condition_expression="customers.id = purchases.customer AND purchases.purchase > 24",
        required_inputs="customers, purchases",
        join_keys=None,
    )
    join.run_job()
    by_condition = {
        id_: explain_joined_row("joined", f'{{"id": {id_}}}', warehouse=str(join.folder)) for id_ in (1, 2)
    }
    nulls = lake(target="nulls", join_null_keys=False, required_inputs="customers, purchases")
    nulls.run_job()
    by_null = explain_joined_row("nulls", '{"id": null}', warehouse=str(join.folder))

    assert [rows.rows for rows in by_condition[2].inputs] == [
        ({"id": 2, "name": "Bob"},),
        ({"purchase": 25, "customer": 2},),
    ]
    assert by_condition[1].rows == ()
    assert (
        by_condition[1]
        .reasons[0]
        .startswith("the condition dropped these rows, as no pair meets it: customers")
    )
    assert by_null.reasons[-1] == "the key has a NULL, and with join_null_keys=False NULL matches nothing"
