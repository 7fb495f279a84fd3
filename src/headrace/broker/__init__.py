"""What Kafka clients talk to: a durable, partitioned, replayable log."""
