"""Two joins in a row: customers with their purchases, and the result with their transactions.

A join compares the same keys in all its inputs. Other keys between some of the inputs need another join.
"""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.operators.joiner import JoinerOperator


@task(outlets=[dataset_asset(name) for name in ("customers", "purchases", "transactions")])
def tables() -> None:
    """Write the three tables of the example if they do not exist."""
    from pathlib import Path  # noqa: PLC0415 - import inside the task

    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    from airflow_merge_provider.hooks.warehouse import find_warehouse  # noqa: PLC0415

    content = {
        "customers": {
            "cust_id": [1, 2, 3],
            "cust_name": ["Alex", "Bob", "Cathie"],
            "location": ["Canada", "California", "Texas"],
        },
        "purchases": {
            "purchase_id": [23, 24, 25],
            "cust_id": [1, 2, 2],
            "store": ["Walmart", "Dstore", "Walmart"],
        },
        "transactions": {
            "purchase_id": [23, 24, 25],
            "transaction_date": ["2015-01-23", "2015-01-12", "2014-03-28"],
            "purchase_amount": [20, 400, 600],
        },
    }
    for name, columns in content.items():
        path = str(Path(find_warehouse() or ".") / name)
        if not DeltaTable.is_deltatable(path):
            write_deltalake(path, pa.table(columns))


with DAG(
    "example_joiner",
    schedule=None,
    catchup=False,
    tags=["example", "merge"],
    doc_md=__doc__,
) as dag:
    customers_purchases = JoinerOperator(
        task_id="customers_purchases",
        inputs={"customers": "customers", "purchases": "purchases"},
        join_keys="customers.cust_id = purchases.cust_id",
        join_type="innerjoin",
        fields_to_drop="purchases.cust_id",
        expect={"purchases": "one_to_many"},
        target="customers_purchases",
    )
    customers_purchases_transactions = JoinerOperator(
        task_id="customers_purchases_transactions",
        inputs={"bought": "customers_purchases", "paid": "transactions"},
        join_keys="bought.purchase_id = paid.purchase_id",
        join_type="innerjoin",
        selected_fields="bought.purchase_id, bought.cust_id, bought.cust_name, bought.location, bought.store,"
        " paid.transaction_date, paid.purchase_amount",
        target="customers_purchases_transactions",
    )
    tables() >> customers_purchases >> customers_purchases_transactions

if __name__ == "__main__":
    dag.test()
