"""Queues: the broker's share groups beside Apache Kafka's, and what is built on them."""
