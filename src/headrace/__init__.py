"""Headrace: event streams end to end, for Python engineers.

Importing it loads neither Spark nor a client: what needs them is loaded when it is first used.
"""

import typing

from headrace import errors as _errors
from headrace import suggestions as _suggestions
from headrace.lazy import public_names as _public_names

__version__ = "0.1.0"

_names = _public_names(__name__)
__all__ = sorted([*_names.all, "__version__"])
__dir__ = _names.dir


def __getattr__(name: str) -> typing.Any:
    if name in _names.all:
        return _names.get(name)
    if name in _errors.RENAMED:
        return _errors.renamed(name)
    suggestion = _suggestions.suggestion(__name__, name, __all__)
    # Without `obj`, Python would add a suggestion of its own.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{suggestion}", name=name, obj=None)
