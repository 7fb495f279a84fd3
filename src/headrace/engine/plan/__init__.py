"""From a topology to the queries that Spark will run, checked before any of them starts."""
