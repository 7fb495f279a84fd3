"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.queues.messages import Message as Message
from headrace.queues.running import children as children
from headrace.queues.running import serve_until_stopped as serve_until_stopped
from headrace.queues.running import work_until_stopped as work_until_stopped
from headrace.queues.sending import QueueSender as QueueSender
from headrace.queues.sending import shared_sender as shared_sender
from headrace.queues.working import prepare_queues as prepare_queues
