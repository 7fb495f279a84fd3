"""The services of a home folder: what `up`, `run` and the tests start and stop."""

from headrace.services.embedded import Addresses, Services, ServiceStatus
from headrace.services.finding import with_kafka, with_postgres
from headrace.services.home import Home

__all__ = ["Addresses", "Home", "ServiceStatus", "Services", "with_kafka", "with_postgres"]
