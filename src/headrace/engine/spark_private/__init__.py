"""All that depends on private parts of Spark and PySpark, which can change with any release.

- `plans`: analysed plans, which are Java objects, and what Spark's own checks say of them
- `rows`: the rows of a DataFrame as Arrow batches, as they arrive
- `reports`: the reports and the metrics of a query that runs
- `checkpoint_files`: what Spark writes to the folder of a checkpoint
- `process`: the Java process, its gateway, its settings and what they log

Other modules use the names from here, never the private parts themselves. Each is covered by a test in
`tests/engine/test_spark_private.py`, whose name says which private part it is: run it first with a new PySpark.
"""
