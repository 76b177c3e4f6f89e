"""Apache Airflow 3 as a runner of rechecks, by its REST API v2."""
