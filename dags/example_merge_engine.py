"""Orders from two systems in one row: each system's columns have their own order, and totals are summed.

The shop writes ``shop_order_changes`` (status and address, with the time of the change), the payment system
writes ``payments`` (payments and refunds). Both arrive late, out of order and more than once.
"""

from __future__ import annotations

from airflow.sdk import DAG

from airflow_merge_provider.operators.merge_engine import MergeEngineOperator

with DAG(
    "example_merge_engine",
    schedule=None,
    catchup=False,
    tags=["example", "merge"],
    doc_md=__doc__,
) as dag:
    orders = MergeEngineOperator(
        task_id="orders",
        source="shop_order_changes",
        target="orders",
        primary_key=["order_id"],
        merge_engine="partial-update",
        options={
            # An older status never replaces a newer one; the address has a separate sequence.
            "fields.status_at.sequence-group": "status",
            "fields.address_at.sequence-group": "street,city",
        },
        changelog="order_history",
    )
    paid = MergeEngineOperator(
        task_id="paid",
        source="payments",
        target="paid_per_order",
        primary_key=["order_id"],
        merge_engine="aggregation",
        options={
            "fields.amount.aggregate-function": "sum",
            "fields.payments.aggregate-function": "count",
            "fields.last_paid_at.aggregate-function": "max",
            "fields.last_paid_at.ignore-retract": "true",
        },
        row_kind_column="op",
    )

if __name__ == "__main__":
    dag.test()
