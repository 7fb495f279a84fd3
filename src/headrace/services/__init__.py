"""The services of a home folder: what `up`, `run` and the tests start and stop, find and check."""

from headrace.services.embedded import Addresses, Services, ServiceStatus
from headrace.services.finding import find_cluster, with_kafka, with_postgres
from headrace.services.health import CHECK_NAMES, Check, check_all, check_java
from headrace.services.home import Home, RunningApp
from headrace.services.readers import TopicReaders, readers_of

__all__ = [
    "CHECK_NAMES",
    "Addresses",
    "Check",
    "Home",
    "RunningApp",
    "ServiceStatus",
    "Services",
    "TopicReaders",
    "check_all",
    "check_java",
    "find_cluster",
    "readers_of",
    "with_kafka",
    "with_postgres",
]
