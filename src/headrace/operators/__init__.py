"""What Spark lacks: windows per event, sessions, late rows that are kept, joins with the row valid at a time.

All are based on one operator: a bucket of keys, its rows of a batch as whole Arrow tables, and its state as Arrow
tables by name. The modules that compute do not depend on Spark; `hosting` runs them in Spark.
"""
