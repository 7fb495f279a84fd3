"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.services.children import capture_child as capture_child
from headrace.services.describing import with_captures_described as with_captures_described
from headrace.services.embedded import Addresses as Addresses
from headrace.services.embedded import Services as Services
from headrace.services.embedded import ServiceStatus as ServiceStatus
from headrace.services.finding import find_cluster as find_cluster
from headrace.services.finding import with_kafka as with_kafka
from headrace.services.finding import with_postgres as with_postgres
from headrace.services.health import CHECK_NAMES as CHECK_NAMES
from headrace.services.health import Check as Check
from headrace.services.health import check_all as check_all
from headrace.services.health import check_java as check_java
from headrace.services.home import Home as Home
from headrace.services.home import RunningApp as RunningApp
from headrace.services.launching import Needs as Needs
from headrace.services.launching import launch as launch
from headrace.services.launching import needs_of as needs_of
from headrace.services.launching import processes_of as processes_of
from headrace.services.readers import TopicReaders as TopicReaders
from headrace.services.readers import readers_of as readers_of
