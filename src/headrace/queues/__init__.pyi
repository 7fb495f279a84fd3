"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.queues.inspecting import QueueFigures as QueueFigures
from headrace.queues.inspecting import check_queue as check_queue
from headrace.queues.inspecting import figures_of as figures_of
from headrace.queues.inspecting import found_queues as found_queues
from headrace.queues.inspecting import peek as peek
from headrace.queues.inspecting import purge as purge
from headrace.queues.inspecting import retry_dead as retry_dead
from headrace.queues.messages import Message as Message
from headrace.queues.running import children as children
from headrace.queues.running import serve_until_stopped as serve_until_stopped
from headrace.queues.running import work_until_stopped as work_until_stopped
from headrace.queues.sending import QueueSender as QueueSender
from headrace.queues.sending import shared_sender as shared_sender
from headrace.queues.working import prepare_queues as prepare_queues
