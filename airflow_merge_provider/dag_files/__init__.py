"""Write DAG files and pipe files from tables that exist."""
