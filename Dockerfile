# One image for Airflow and Spark: driver and executors have the same Python and the same PySpark.
ARG AIRFLOW_VERSION=3.3.2
FROM apache/airflow:${AIRFLOW_VERSION}-python3.11

# The version of PySpark is that of pyproject.toml; it is given here only to name the image by.
ARG SPARK_VERSION=4.2.0
LABEL org.apache.spark.version=${SPARK_VERSION}

USER root
# Folders that volumes are mounted on must belong to the user, or fresh volumes belong to root.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless curl \
    && apt-get clean && rm -rf /var/lib/apt/lists/* \
    && mkdir -p /data/warehouse /opt/airflow/auth /opt/merge/cache \
    && chown -R airflow:0 /data/warehouse /opt/airflow/auth /opt/merge

USER airflow
ENV AIRFLOW_MERGE_PROVIDER_CACHE=/opt/merge/cache
WORKDIR /opt/merge
COPY --chown=airflow:0 pyproject.toml hatch_build.py README.md LICENSE constraints.txt ./
COPY --chown=airflow:0 airflow_merge_provider ./airflow_merge_provider
RUN pip install --no-cache-dir -c constraints.txt '.[spark,s3,openlineage,examples]' asyncpg psycopg2-binary \
    && python -m airflow_merge_provider prepare
WORKDIR /opt/airflow
