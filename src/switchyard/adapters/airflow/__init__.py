"""Apache Airflow 3 as a runner of rechecks, by its REST API v2. Built by `bootstrap`, if it is configured."""
