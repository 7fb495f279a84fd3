"""The name somebody probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to the word, whatever its case; None where nothing is close."""
    by_folded = {name.casefold(): name for name in known}
    matches = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A next step that names the nearest of the known names, or lists them all where none is near."""
    names = list(known)
    name = nearest(word, names)
    if name is not None:
        return f"did you mean {name!r}?"
    return f"known here: {', '.join(names)}" if names else None
