"""Exactly-once writing to topics: producers, the transactional writer, and its ledger of (writer, position)."""

from headrace.delivery.ledger import Entry, Position, TopicLedger
from headrace.delivery.producers import RecordProducer, TransactionalProducer
from headrace.delivery.writer import LedgeredWriter

__all__ = ["Entry", "LedgeredWriter", "Position", "RecordProducer", "TopicLedger", "TransactionalProducer"]
