"""Where things are: addresses, settings, security, reachability, and the one adapter to a Kafka cluster."""

from headrace.lazy import public_names

__all__, __getattr__, __dir__ = public_names(__name__)
