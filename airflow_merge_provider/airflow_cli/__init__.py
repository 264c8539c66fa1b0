"""The commands of the command line as ``airflow merge``, with Airflow's settings and connections."""
