"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.queues.delays import DelayService as DelayService
from headrace.queues.delays import instance_name as instance_name
from headrace.queues.messages import Message as Message
from headrace.queues.sending import QueueSender as QueueSender
from headrace.queues.sending import shared_sender as shared_sender
