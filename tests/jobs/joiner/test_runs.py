"""Test the effect of join runs on the target: one atomic commit per run, and none without a change."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.risk import RiskError
from tests.jobs.joiner.conftest import MakeLake
from tests.jobs.joiner.lake import CUSTOMERS, PURCHASES, Lake

LEFT = [(1, "Alex", 23), (2, "Bob", 24), (2, "Bob", 25), (3, "Cathie", None)]
UNKNOWN = {"records_in": None, "outputs": None, "unmatched": None}
ONE_MORE = pa.table({"purchase": [27], "customer": [3]})
UNKNOWN_CUSTOMER = pa.table({"purchase": [28], "customer": [77]})


def test_a_run_is_one_commit_and_tells_what_it_did(lake: MakeLake) -> None:
    """A run is one commit; the report has input rows, output rows, columns, sources, versions and plan."""
    join = lake()

    report = join.run_job()

    assert join.read_rows() == LEFT
    assert join.read_version() == 0
    assert (report["changed"], report["target"]["version"]) == (True, 0)
    assert report["counts"] == {"records_in": 7, "outputs": 4, "unmatched": 0}
    source_rows = {name: source["rows"] for name, source in report["sources"].items()}
    assert source_rows == {"customers": 3, "purchases": 4}
    assert [column["from"] for column in report["details"]["columns"]] == [
        "customers.id", "customers.name", "purchases.purchase",
    ]  # fmt: skip
    assert report["details"]["plan"] == [
        "customers",
        "left join purchases",
        "on customers.id = purchases.customer",
    ]
    assert {name: source["version"] for name, source in report["sources"].items()} == {
        "customers": 0,
        "purchases": 0,
    }


def test_the_same_inputs_are_not_joined_again_and_changed_ones_are(lake: MakeLake) -> None:
    """Without a change nothing is committed; another hint is not a change, another join is one.

    Rows of an input that give the same rows of the target are read once.
    """
    join = lake()
    join.run_job()

    again = join.run_job(in_memory_inputs="purchases")
    assert (again["changed"], again["counts"], join.read_version()) == (
        False,
        {"records_in": 0, "outputs": 4, "unmatched": 0},
        0,
    )

    join.write_rows("purchases", ONE_MORE, mode="append")
    assert join.run_job()["counts"] == {"records_in": 8, "outputs": 4, "unmatched": 0}
    assert (3, "Cathie", 27) in join.read_rows()

    rows = join.read_rows()
    join.write_rows("purchases", UNKNOWN_CUSTOMER, mode="append")
    assert join.run_job()["counts"] == {"records_in": 9, "outputs": 4, "unmatched": 0}
    noop = join.run_job()
    assert (noop["run_mode"], noop["counts"]["records_in"], join.read_version()) == ("noop", 0, 2)
    assert join.read_rows() == rows

    inner = join.run_job(join_type="innerjoin")
    assert (inner["changed"], inner["counts"]["outputs"], join.read_version()) == (True, 4, 3)
    assert join.run_job(join_type="innerjoin", full_refresh=True)["target"]["version"] == 4


def test_a_table_that_is_joined_to_itself_is_added_once(lake: MakeLake) -> None:
    """A table that is joined to itself is one source: unchanged, it is not appended a second time."""
    join = lake(
        inputs={"customers": "customers", "purchases": "customers"},
        join_keys="customers.id = purchases.id",
        selected_fields="customers.id",
        write_mode="append",
    )
    join.run_job()

    assert join.run_job()["changed"] is False
    assert join.read_rows() == [(1,), (2,), (3,)]


def test_a_retry_reports_the_commit_of_its_first_try(lake: MakeLake) -> None:
    """A retry of a run that has committed reports "changed" for that commit, and commits nothing."""
    join = lake()
    first = join.run_job("r1")

    retried = join.run_job("r1")

    assert retried["changed"]
    assert (retried["target"], retried["counts"]) == (first["target"], first["counts"])
    assert join.read_version() == 0


def test_appending_adds_each_runs_rows_once(lake: MakeLake) -> None:
    """Each run appends and counts its own rows once; a retry or a run without a change appends none.

    A run whose join has no rows is not repeated either.
    """
    join = lake(write_mode="append", join_type="innerjoin")
    join.run_job("r1")
    join.write_rows("purchases", ONE_MORE, mode="append")

    assert join.run_job("r2")["counts"]["outputs"] == 4
    assert len(join.read_rows()) == 3 + 4
    join.write_rows("customers", CUSTOMERS.slice(0, 1), mode="append")
    retried = join.run_job("r2")
    assert (retried["changed"], retried["counts"]["outputs"], join.read_version()) == (True, 4, 1)
    assert join.run_job("r3", until="plan")["counts"] == UNKNOWN

    join.write_rows("customers", CUSTOMERS.slice(0, 0))
    assert join.run_job("r3")["counts"]["outputs"] == 0
    assert (join.run_job("r4")["run_mode"], join.read_version()) == ("noop", 2)
    assert len(join.read_rows()) == 3 + 4


def test_rows_that_do_not_fit_are_not_appended(lake: MakeLake) -> None:
    """Every column that is new or of another type is named before anything is computed."""
    join = lake(write_mode="append")
    join.run_job()

    with pytest.raises(DataError) as refused:
        join.run_job(selected_fields="customers.name as id, purchases.purchase, purchases.customer")

    assert [problem.code for problem in refused.value.problems] == ["schema", "schema"]
    assert "'id' is long in the target and string in the output" in str(refused.value)
    assert "the target has no column 'customer'" in str(refused.value)
    assert join.read_version() == 0


@pytest.mark.parametrize("until", ["plan", "transform"])
def test_a_run_that_stops_early_writes_nothing(lake: MakeLake, until: str) -> None:
    """A plan has the columns, a dry run the rows as well; neither writes."""
    join = lake()

    report = join.run_job(until=until)

    assert (report["dry_run"], report["changed"], join.read_version()) == (True, False, None)
    assert len(report["details"]["columns"]) == 3
    counts = {"records_in": 7, "outputs": 4, "unmatched": 0}
    assert report["counts"] == (UNKNOWN if until == "plan" else counts)


def test_every_input_that_is_missing_is_named(lake: MakeLake) -> None:
    """Every missing input is named with its location."""
    join = lake(inputs={"customers": "nobody", "purchases": "nothing"})

    with pytest.raises(DataError) as refused:
        join.run_job()

    assert [problem.path for problem in refused.value.problems] == ["inputs.customers", "inputs.purchases"]
    assert join.read_version() is None


def test_faults_of_the_schemas_come_together_before_anything_is_read(lake: MakeLake) -> None:
    """Wrong keys, columns and types are reported together, under the user's names, before data is read."""
    join = lake(join_keys=None, selected_fields=None, required_inputs=None)

    with pytest.raises(ConfigError) as refused:
        join.run_job(
            joinKeys="customers.name = purchases.customer & customers.nobody = purchases.purchase",
            requiredInputs="customers",
            selectedFields="customers.nam",
        )

    assert [(problem.path, problem.code) for problem in refused.value.problems] == [
        ("joinKeys", "join_key"),
        ("joinKeys", "join_key_field"),
        ("selectedFields", "selected_field"),
    ]
    assert "did you mean 'name'?" in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "error_class"),
    [
        ("customers.nobody = 1", "UNRESOLVED_COLUMN"),
        ("customers.name", "JOIN_CONDITION_IS_NOT_BOOLEAN_TYPE"),
        ("customers.id = (", "PARSE_SYNTAX_ERROR"),
        ("customers.ID = 1", "UNRESOLVED_COLUMN"),
    ],
)
def test_an_expression_that_cannot_decide_is_refused(
    lake: MakeLake, expression: str, error_class: str
) -> None:
    """An expression that is not a condition is rejected with Spark's reason and the available names."""
    join = lake(join_keys=None, required_inputs="customers,purchases")

    with pytest.raises(ConfigError, match=error_class) as refused:
        join.run_job(condition_type="advanced", condition_expression=expression)

    assert [problem.code for problem in refused.value.problems] == ["invalid_condition"]
    assert "purchases.customer" in str(refused.value)
    assert join.read_version() is None


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"purchases": "many_to_one"}, "input 'purchases' has 1 repeated key, up to 2 times"),
        ({"purchases": "one_to_one"}, '{"customer":2}'),
        ({"purchases": "one_to_many"}, None),
    ],
)
def test_keys_that_must_not_repeat_are_guarded(
    lake: MakeLake, expect: dict[str, str], message: str | None
) -> None:
    """A run fails before it writes if keys repeat that must be unique, and names one of them."""
    join = lake(expect=expect)

    if message is None:
        assert join.run_job()["counts"]["outputs"] == 4
        return
    with pytest.raises(DataError) as refused:
        join.run_job()
    assert message in str(refused.value)
    assert join.read_version() is None


def test_null_keys_repeat_only_where_they_match(lake: MakeLake) -> None:
    """Null keys count as repeated only if nulls match: otherwise they multiply no rows."""
    join = lake(expect={"purchases": "many_to_one"}, join_null_keys=False)
    purchases = pa.table({"purchase": [1, 2], "customer": pa.array([None, None], pa.int64())})
    join.write_rows("purchases", purchases)

    assert join.run_job()["counts"]["outputs"] == 3
    with pytest.raises(DataError, match=r'\{"customer":null\}'):
        join.run_job(join_null_keys=True)


def test_the_indicator_lists_the_inputs_of_each_row(lake: MakeLake) -> None:
    """The last column lists the inputs of each row in declared order."""
    join = lake(required_inputs="", indicator="found in")

    join.run_job()

    there = {tuple(row[3]) for row in join.read_rows()}
    assert there == {("customers", "purchases"), ("customers",), ("purchases",)}
    assert len(join.read_rows()) == 5


def test_rows_that_come_out_nowhere_are_kept_beside(lake: MakeLake) -> None:
    """Each run that joins writes the unmatched rows anew to a side table, with their input and all fields."""
    join = lake(join_type="innerjoin", unmatched="nowhere")

    report = join.run_job()
    assert report["counts"] == {"records_in": 7, "outputs": 3, "unmatched": 2}
    assert read_unmatched(join) == [
        ("customers", '{"id":3,"name":"Cathie"}'),
        ("purchases", '{"purchase":26,"customer":9}'),
    ]
    assert join.run_job()["counts"] == {**report["counts"], "records_in": 0}

    join.write_rows("purchases", ONE_MORE, mode="append")
    assert join.run_job(until="transform")["counts"]["unmatched"] == 1
    join.run_job()
    assert read_unmatched(join) == [("purchases", '{"purchase":26,"customer":9}')]


def test_an_expression_leaves_rows_out_too(lake: MakeLake) -> None:
    """Rows of an optional input without a match in the required input are unmatched rows too."""
    join = lake(
        join_keys=None,
        condition_type="advanced",
        condition_expression="customers.id <=> purchases.customer and customers.id > 1",
        in_memory_inputs="purchases",
        unmatched="nowhere",
    )

    assert join.run_job()["counts"] == {"records_in": 7, "outputs": 4, "unmatched": 2}
    assert [row[0] for row in read_unmatched(join)] == ["purchases", "purchases"]


def read_unmatched(join: Lake) -> list[tuple[str, str]]:
    frame = join.spark.read.format("delta").load(str(join.folder / "nowhere"))
    return sorted((row["input"], row["row"]) for row in frame.collect())


def test_the_key_is_shown_whichever_input_has_it(lake: MakeLake) -> None:
    """The key is the first column, under a name of its own, whichever input has it."""
    join = lake(required_inputs="", key_columns="customer id", selected_fields="customers.name")

    join.run_job()

    assert join.read_rows() == [(1, "Alex"), (2, "Bob"), (2, "Bob"), (3, "Cathie"), (9, None)]


def test_odd_names_are_kept_from_the_first_run_to_the_next(lake: MakeLake) -> None:
    """Names with blanks, commas, equal signs and other scripts are kept in the first and in later runs."""
    odd = "käufer, id = (1)"
    fields = [{"input": "customers", "field": "id", "as": odd}, "customers.name as группа name"]
    join = lake(selected_fields=fields, join_type="innerjoin")

    join.run_job()
    join.write_rows("purchases", ONE_MORE, mode="append")
    join.run_job()

    frame = join.spark.read.format("delta").load(str(join.folder / "joined"))
    assert frame.columns == [odd, "группа name"]
    assert len(join.read_rows()) == 4
    assert join.read_version() == 1


def test_odd_names_are_refused_where_the_table_cannot_take_them(lake: MakeLake) -> None:
    """A table without column mapping rejects such names before anything is computed."""
    join = lake()
    join.run_job()

    with pytest.raises(DataError, match="does not support these column names: 'an id'"):
        join.run_job(selected_fields="customers.id as an id")
    assert join.read_version() == 0


def test_another_columns_replace_those_of_the_run_before(lake: MakeLake) -> None:
    """Overwriting replaces the schema in the commit that replaces the rows."""
    join = lake()
    join.run_job()

    join.run_job(selected_fields="purchases.customer as id", join_type="innerjoin")

    assert join.read_rows() == [(1,), (2,), (2,)]
    assert join.read_version() == 1


def test_plain_files_are_inputs_too(lake: MakeLake) -> None:
    """Plain files are inputs: the report warns of the inferred schema, and changed files are a change."""
    join = lake(join_keys="customers.id = purchases.customer & customers.name = purchases.who")
    folder = join.folder / "files"
    folder.mkdir()
    (folder / "a.csv").write_text("purchase,customer,who\n23,1,Alex\n")
    file = {"dataset": str(folder), "format": "csv", "options": {"header": "true", "inferSchema": "true"}}
    inputs = {"customers": "customers", "purchases": file}

    with pytest.raises(ConfigError, match=r"customers\.id is long and purchases\.customer is int"):
        join.run_job(inputs=inputs)
    report = join.run_job(inputs=inputs, join_keys="customers.name = purchases.who", join_type="innerjoin")

    assert join.read_rows() == [(1, "Alex", 23)]
    assert report["warnings"][-1] == "inputs.purchases: the schema of csv files is inferred"


def test_no_rows_come_out_as_a_table_without_rows(lake: MakeLake) -> None:
    """Without rows the target is created with its schema."""
    join = lake(join_type="innerjoin")
    join.write_rows("purchases", PURCHASES.slice(0, 0))

    assert join.run_job()["counts"] == {"records_in": 3, "outputs": 0, "unmatched": 0}
    assert join.read_rows() == []
    assert join.read_version() == 0


def test_a_table_joined_to_itself_is_read_at_one_version(lake: MakeLake) -> None:
    """A table joined to itself is read at one version, and its rows are counted under each name."""
    join = lake(
        inputs={"x": "customers", "y": "customers"},
        join_keys="x.id = y.id",
        required_inputs="x,y",
        selected_fields=None,
    )

    assert {name: source["rows"] for name, source in join.run_job()["sources"].items()} == {"x": 3, "y": 3}
    assert join.read_rows()[0] == (1, "Alex", 1, "Alex")


def test_an_input_is_not_written_under_another_name(lake: MakeLake) -> None:
    """The target is rejected as an input also if one is given as a bare id and the other as a location."""
    join = lake(target="purchases", inputs={"customers": "customers", "purchases": "other"})
    location = str(join.folder / "purchases")

    with pytest.raises(ConfigError, match="target: 'purchases' is one of the inputs"):
        join.run_job(inputs={"customers": "customers", "purchases": location})


def test_a_target_of_another_capability_is_left_alone(lake: MakeLake) -> None:
    """A target of another capability is rejected; the error names its owner."""
    join = lake(target="purchases", inputs={"customers": "customers", "p": "other"})
    join.write_rows("other", PURCHASES)

    with pytest.raises(DataError, match="was written by another writer, not by joiner"):
        join.run_job(join_keys="customers.id = p.customer", selected_fields="customers.id")


def test_a_result_of_another_size_is_stopped(lake: MakeLake) -> None:
    """A change of four rows to two is limited: a dry run warns, a run fails; the limit itself is allowed."""
    join = lake()
    first = join.run_job(max_change_ratio=0.0)
    join.write_rows("purchases", PURCHASES.slice(3))
    join.write_rows("customers", CUSTOMERS.slice(1))

    dry = join.run_job(until="transform", max_change_ratio=0.4)
    with pytest.raises(RiskError, match=r"replace 4 rows with 2 rows, a net change ratio of 0.5") as refused:
        join.run_job(max_change_ratio=0.4)

    assert dry["warnings"] == [f"max_change_ratio: {refused.value.problems[0].message}"]
    assert refused.value.report.counts["outputs"] == 2
    assert join.run_job(max_change_ratio=0.5)["target"]["version"] == first["target"]["version"] + 1
    with pytest.raises(RiskError, match=r"write 2 rows to a target of 2 rows"):
        join.run_job(write_mode="append", full_refresh=True, max_change_ratio=0.5)


def test_an_input_that_was_made_anew_is_joined_again(lake: MakeLake) -> None:
    """An input that was recreated at the same version with other rows is joined again."""
    join = lake()
    join.run_job()
    shutil.rmtree(join.folder / "purchases")
    join.write_rows("purchases", ONE_MORE)

    assert join.run_job()["changed"] is True
    assert join.read_rows() == [(1, "Alex", None), (2, "Bob", None), (3, "Cathie", 27)]
