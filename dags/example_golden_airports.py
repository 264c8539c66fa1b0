"""Golden airports: three published lists of airports are merged by the codes they share."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_merge_provider.operators.merge_source import MergeSourceOperator

with DAG(
    "example_golden_airports",
    schedule=None,
    catchup=False,
    tags=["example", "merge"],
    doc_md=__doc__,
) as dag:
    # w: the world's airports with up to three codes each, n: airports of a flight data set by FAA code,
    # u: airports of the United States by the code that their publisher labels as IATA code.
    # Codes are not unique across code systems: an FAA code may equal the IATA code of another airport, so
    # some of these merges are intentionally wrong. `make demo` shows the worst ones and the chain of codes
    # that linked them.
    MergeSourceOperator(
        task_id="merge",
        target="airports_golden",
        datasets=["airports_world w", "airports_nyc n", "airports_us u"],
        equality=[
            ["eq", "w.iata", "n.faa"],
            ["eq", "w.lid", "n.faa"],
            ["eq", "w.iata", "u.iata"],
            ["eq", "w.lid", "u.iata"],
            ["eq", "n.faa", "u.iata"],
        ],
        version=2,
    )

if __name__ == "__main__":
    dag.test()
