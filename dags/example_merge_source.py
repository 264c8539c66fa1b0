"""The worked example of the merge source: three small datasets are merged into one."""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_merge_provider.operators.merge_source import MergeSourceOperator

with DAG(
    "example_merge_source",
    schedule=None,
    catchup=False,
    tags=["example", "merge"],
    doc_md=__doc__,
) as dag:
    # a1 and b1 share f1 = 1, b1 and c1 share "x" if case is ignored: the three are one entity.
    # Deleted entities (c2, c3) never merge, and a2 and b2 match nothing.
    MergeSourceOperator(
        task_id="merge",
        target="seed_merged",
        datasets=["A a", "B b", "C c"],
        equality=[
            ["eq", "a.f1", "b.f1"],
            ["eq", "b.f2", ["lower", "c.f3"]],
        ],
    )

if __name__ == "__main__":
    dag.test()
