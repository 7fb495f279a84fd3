"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.capture.catalog import table_schema as table_schema
from headrace.capture.slots import SlotStatus as SlotStatus
from headrace.capture.slots import drop_capture as drop_capture
from headrace.capture.slots import slot_status as slot_status
from headrace.capture.tasks import Task as Task
from headrace.capture.tasks import tasks_of as tasks_of
