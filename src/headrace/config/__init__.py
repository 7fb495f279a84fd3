"""Where things are: addresses, settings, security, reachability, and the one adapter to a Kafka cluster."""
