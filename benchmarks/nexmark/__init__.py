"""The queries of Nexmark, an auction house in a stream: their results held to SQL, their rates beside PySpark's."""
