"""Transactions and producer ids."""

from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.state import Producer
from headrace.broker.transactions.table import SCHEMA

__all__ = ["SCHEMA", "Producer", "TransactionCoordinator"]
