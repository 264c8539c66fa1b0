"""Test the view of links over a target against the links computed without Spark."""

from __future__ import annotations

from airflow_merge_provider.explain.merge_source import list_all_links as links_on_disk
from airflow_merge_provider.jobs.merge_source.links import build_links
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import build_table


def test_the_view_has_the_links_of_every_output(make_pipe: MakePipe) -> None:
    """The view follows the target and has n - 1 rows for n members; without a JVM the result is the same."""
    pipe = make_pipe("AB", equality=[["eq", "a.x", "b.x"], ["eq", "a.y", "a.y"]])
    pipe.write_rows("A", build_table({"_id": ["a1", "a2", "a3"], "x": [1, 2, 3], "y": ["p", "p", "q"]}))
    pipe.write_rows("B", build_table({"_id": ["b1", "b2"], "x": [1, 9]}))
    pipe.run_job()

    rows = build_links(pipe.target_rows()).collect()

    links = sorted(tuple(row) for row in rows)
    cluster = "0|a1|0|a2|1|b1"
    assert links == [
        (cluster, "A/a1", "A/a2", "a.y = a.y", '"p"'),
        (cluster, "A/a1", "B/b1", "a.x = b.x", "1"),
    ]
    assert sorted(tuple(row.values()) for row in links_on_disk(str(pipe.target))) == links
