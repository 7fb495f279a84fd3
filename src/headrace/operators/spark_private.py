"""What operators need of PySpark's private parts, which can change with any release. The engine has its own module.

Covered by `tests/engine/test_spark_private.py`.
"""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

__all__ = ["arrow_schema", "spark_schema"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's columns as an operator's, all of which may be null."""
    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(schema, timezone="UTC")])


def spark_schema(schema: pa.Schema) -> StructType:
    return from_arrow_schema(schema)
