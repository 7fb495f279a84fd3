"""The public names. `__init__.py` reads them here and loads each when it is first used."""

from headrace.engine.adapters import SinkAdapter as SinkAdapter
from headrace.engine.adapters import SourceAdapter as SourceAdapter
from headrace.engine.adapters import register_sink as register_sink
from headrace.engine.adapters import register_source as register_source
