"""Where in the user's files something was declared."""

import sys
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Place", "place_of_caller", "raised_at", "users_place"]

HERE = str(Path(__file__).parent)
# Headrace itself, installed packages, and Python's own library.
NOT_THE_USERS = (
    str(Path(__file__).parent.parent),
    *(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")),
    "<",
)


@dataclass(frozen=True, slots=True)
class Place:
    file: str
    line: int

    @property
    def shown_file(self) -> str:
        """The file as a person in the current folder would name it."""
        path = Path(self.file)
        return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else self.file

    def __str__(self) -> str:
        return f"{self.shown_file}:{self.line}"


def place_of_caller() -> Place:
    """The line outside this package that the call comes from."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(Path(frame.f_code.co_filename).parent) == HERE:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def users_place(lines: Iterable[tuple[str, int | None]]) -> Place | None:
    """Of the files and lines of a traceback, the innermost of the user's own."""
    for file, line in reversed(list(lines)):
        # On a cluster, PySpark may come as an archive, or from Spark's own folder.
        if line is not None and not file.startswith(NOT_THE_USERS) and "/pyspark" not in file:
            return Place(file, line)
    return None


def raised_at(error: BaseException) -> tuple[str | None, str]:
    """The innermost of the user's own lines that an error was raised through, if any, and the error in one line."""
    place = users_place((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
    line = traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
    return None if place is None else str(place), line
