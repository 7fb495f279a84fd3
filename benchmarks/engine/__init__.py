"""Headrace beside the same job written by hand in PySpark: rate, latency, and the time to the first result."""
