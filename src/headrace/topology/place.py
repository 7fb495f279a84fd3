"""Where in the user's files something was declared."""

import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Place", "place_of_caller"]

HERE = str(Path(__file__).parent)


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
