"""Typed clients over confluent-kafka: rows in and out by a topic's schema, and receipts for what was sent."""

from headrace.clients.consumer import Consumer, read_to_end
from headrace.clients.producer import Producer
from headrace.clients.records import Receipt, Record

__all__ = ["Consumer", "Producer", "Receipt", "Record", "read_to_end"]
