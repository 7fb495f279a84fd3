"""Packages whose public names are loaded when they are first used: importing such a package costs nothing.

The names stand once, as imports in the package's `__init__.pyi`. Type checkers and editors read that file, and so does
`public_names`, which the package's `__init__` calls:

    __all__, __getattr__, __dir__ = public_names(__name__)
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import PurePath
from typing import Any, NamedTuple, cast

__all__ = ["PublicNames", "public_names"]


class PublicNames(NamedTuple):
    """What a package needs so that its names are loaded late."""

    all: list[str]
    get: Callable[[str], Any]
    dir: Callable[[], list[str]]


def public_names(package: str) -> PublicNames:
    """The names that the package's `__init__.pyi` imports; nothing of them is loaded yet."""
    places = _places(package)
    names = sorted(places)
    module = sys.modules[package]

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        value = getattr(import_module(places[name]), name)
        setattr(module, name, value)
        return value

    return PublicNames(names, get, lambda: sorted({*vars(module), *names}))


def _places(package: str) -> dict[str, str]:
    """The names, and the module that each is in."""
    spec = sys.modules[package].__spec__
    assert spec is not None
    assert spec.origin is not None
    # The loader reads from a zip file too, which is how packages may come to a cluster.
    source = cast(Any, spec.loader).get_data(str(PurePath(spec.origin).with_suffix(".pyi")))
    return {
        alias.name: node.module
        for node in ast.parse(source).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
