"""Finds wording that must not come back: the phrases of phrases.txt, in the texts of the repository.

Prints `file:line: "phrase": write: wanted` for each, and exits 1 if there is any.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_name("phrases.txt")
PLACES = ("src", "docs", "README.md", "examples", "benchmarks")
SUFFIXES = (".py", ".md")
# Between two words: white space, the next line of a comment, or the next of several strings that make one.
BETWEEN = r"""(?:\s*\n\s*\#\s*|\s*["']\s*\n\s*[rbf]*["']\s*|\s+)"""


class Phrase(NamedTuple):
    text: str
    wanted: str

    @property
    def pattern(self) -> re.Pattern[str]:
        words = BETWEEN.join(re.escape(word) for word in self.text.split())
        return re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE)


class Finding(NamedTuple):
    file: Path
    line: int
    phrase: Phrase


def read_phrases(path: Path = LIST) -> list[Phrase]:
    """The phrases of the list, each with its wanted wording."""
    phrases = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        text, bar, wanted = (part.strip() for part in line.partition("|"))
        if not (text and bar and wanted):
            raise ValueError(f"{path.name}:{number}: write: phrase | wanted")
        phrases.append(Phrase(text, wanted))
    return phrases


def find(phrases: Sequence[Phrase], files: Sequence[Path]) -> Iterator[Finding]:
    """Every place of a phrase, in the order of the files and of their lines."""
    for file in files:
        text = file.read_text()
        found = [
            Finding(file, text.count("\n", 0, match.start()) + 1, phrase)
            for phrase in phrases
            for match in phrase.pattern.finditer(text)
        ]
        yield from sorted(found, key=lambda finding: finding.line)


def files_in(root: Path) -> list[Path]:
    """The files with texts, in a stable order."""
    places = [root / name for name in PLACES]
    found = {file for place in places for file in ([place] if place.is_file() else place.rglob("*"))}
    return sorted(file for file in found if file.suffix in SUFFIXES)


def main(root: Path = ROOT, phrases: Path = LIST) -> int:
    findings = list(find(read_phrases(phrases), files_in(root)))
    for file, line, phrase in findings:
        print(f'{file.relative_to(root)}:{line}: "{phrase.text}": write: {phrase.wanted}')
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
