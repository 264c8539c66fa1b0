"""Golden airports: three published lists of airports become one, joined by the codes they share."""

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
    # u: airports of the United States by what their publisher calls the IATA code.
    # Codes are not names: an FAA code here is an IATA code there, so some of these merges are wrong on
    # purpose. `make demo` shows the worst ones and the chain of codes that made them.
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
