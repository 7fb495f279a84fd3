"""Exactly-once writing to topics: producers, the transactional writer, and its ledger."""
