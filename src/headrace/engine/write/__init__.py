"""From rows to records and tables: encoding, batches, sinks and their guarantees."""
