"""The operators beside Spark's own windows and beside the same logic in Python for each key."""
