"""Regular expressions from clients, matched in time linear in the text, as RE2 does for Kafka.

Python's own engine backtracks: one hostile pattern would block the event loop, and with it every client.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

_MAX_PROGRAM = 2_000
_MAX_DEPTH = 50
_MAX_REPEAT = 1_000  # RE2's own limit
_MAX_REMEMBERED = 10_000

_Accepts = Callable[[str], bool]


def _other_than(accepts: _Accepts) -> _Accepts:
    return lambda character: not accepts(character)


_CLASSES: dict[str, _Accepts] = {
    "d": lambda c: c in "0123456789",
    "w": lambda c: c == "_" or (c.isascii() and c.isalnum()),
    "s": lambda c: c in " \t\n\f\r",
}
_CLASSES |= {name.upper(): _other_than(accepts) for name, accepts in _CLASSES.items()}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class InvalidPattern(ValueError):
    """Not a regular expression, or one with a construct that is not served."""


class _Step(NamedTuple):
    """One step of the program: takes a character, forks (so many steps on or back), or asserts an edge of the text.

    The last step does none of these: reaching it is a match.
    """

    takes: _Accepts | None = None
    forks: tuple[int, ...] = ()
    asserts: str = ""


class Pattern:
    """A compiled expression. States seen together are remembered as one, so a text costs a look-up a character."""

    def __init__(self, expression: str) -> None:
        self._program = _Compiler(expression).program
        self._states: dict[frozenset[int], int] = {}
        self._members: list[frozenset[int]] = []
        self._next: dict[tuple[int, str], int] = {}
        self._start = self._state(self._closure([0], "^"))

    def matches(self, text: str) -> bool:
        """Whether the expression describes the whole text."""
        if len(self._next) > _MAX_REMEMBERED:
            self._states, self._members, self._next = {}, [], {}
            self._start = self._state(self._closure([0], "^"))
        state = self._start
        for character in text:
            step = (state, character)
            following = self._next.get(step)
            if following is None:
                following = self._next[step] = self._advance(state, character)
            state = following
        ends = self._closure(self._members[state], "$") if text else self._closure([0], "^$")
        return len(self._program) - 1 in ends

    def _advance(self, state: int, character: str) -> int:
        reached = []
        for index in self._members[state]:
            takes = self._program[index].takes
            if takes is not None and takes(character):
                reached.append(index + 1)
        return self._state(self._closure(reached, ""))

    def _closure(self, begin: Iterable[int], where: str) -> frozenset[int]:
        """All steps that can be reached without taking a character, at the text's edges given by `where`."""
        reached: set[int] = set()
        pending = list(begin)
        while pending:
            index = pending.pop()
            if index in reached:
                continue
            reached.add(index)
            step = self._program[index]
            pending += [index + distance for distance in step.forks]
            if step.asserts and step.asserts in where:
                pending.append(index + 1)
        return frozenset(reached)

    def _state(self, members: frozenset[int]) -> int:
        number = self._states.get(members)
        if number is None:
            number = self._states[members] = len(self._members)
            self._members.append(members)
        return number


class _Compiler:
    """Reads an expression and writes its program, whose last step is the end."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._at = 0
        self._depth = 0
        self.program = [*self._alternatives(), _Step()]
        if self._at < len(expression):
            raise InvalidPattern("a closing parenthesis has no opening one")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            raise InvalidPattern("the expression ends too early")
        self._at += 1
        return character

    def _accept(self, token: str) -> bool:
        if self._text.startswith(token, self._at):
            self._at += len(token)
            return True
        return False

    def _alternatives(self) -> list[_Step]:
        left = self._sequence()
        while self._accept("|"):
            right = self._sequence()
            fork, leave = _Step(forks=(1, len(left) + 2)), _Step(forks=(len(right) + 1,))
            left = _joined([fork], left, [leave], right)
        return left

    def _sequence(self) -> list[_Step]:
        pieces: list[list[_Step]] = []
        while self._peek() not in ("", "|", ")"):
            pieces.append(self._repeated(self._atom()))
        return _joined(*pieces)

    def _repeated(self, piece: list[_Step]) -> list[_Step]:
        bounds = self._bounds()
        if bounds is None:
            return piece
        self._accept("?")  # a lazy repetition describes the same texts
        if self._bounds() is not None:
            raise InvalidPattern("a repetition of a repetition")
        low, high = bounds
        if len(piece) * max(low, high or 0) > _MAX_PROGRAM:
            raise InvalidPattern("the expression is too large")
        pieces = [piece] * low
        if high is None:
            fork, again = _Step(forks=(1, len(piece) + 2)), _Step(forks=(-len(piece) - 1,))
            pieces.append(_joined([fork], piece, [again]))
        else:
            pieces += [_joined([_Step(forks=(1, len(piece) + 1))], piece)] * (high - low)
        return _joined(*pieces)

    def _bounds(self) -> tuple[int, int | None] | None:
        for token, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(token):
                return bounds
        closing = self._text.find("}", self._at)
        if self._peek() != "{" or closing < 0:
            return None
        low, comma, high = self._text[self._at + 1 : closing].partition(",")
        if not low.isdecimal() or not (high.isdecimal() or not high):
            return None  # then the brace stands for itself
        self._at = closing + 1
        least = int(low)
        most = int(high) if high else (None if comma else least)
        if least > _MAX_REPEAT or (most is not None and not least <= most <= _MAX_REPEAT):
            raise InvalidPattern("the bounds of a repetition are out of range")
        return least, most

    def _atom(self) -> list[_Step]:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return [_Step(takes=self._set())]
        if character == ".":
            return [_Step(takes=lambda c: c != "\n")]
        if character in "^$":
            return [_Step(asserts=character)]
        if character == "\\":
            if self._peek() in ("A", "z"):
                return [_Step(asserts="^" if self._take() == "A" else "$")]
            return [_Step(takes=self._escaped())]
        if character in "*+?":
            raise InvalidPattern(f"nothing to repeat before {character!r}")
        return [_Step(takes=character.__eq__)]

    def _group(self) -> list[_Step]:
        if self._accept("?"):
            named = self._accept("P<") or self._accept("<")
            if named:
                name_end = self._text.find(">", self._at)
                if not self._text[self._at : name_end].isidentifier() or name_end < 0:
                    raise InvalidPattern("the name of a group is not one")
                self._at = name_end + 1
            elif not self._accept(":"):
                raise InvalidPattern("flags and look-around are not served")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InvalidPattern("groups are nested too deep")
        inside = self._alternatives()
        self._depth -= 1
        if not self._accept(")"):
            raise InvalidPattern("an opening parenthesis has no closing one")
        return inside

    def _escaped(self) -> _Accepts:
        character = self._take()
        if character in _CLASSES:
            return _CLASSES[character]
        return self._literal_escape(character).__eq__

    @staticmethod
    def _literal_escape(character: str) -> str:
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character.isalnum():
            raise InvalidPattern(f"the escape \\{character} is not served")
        return character

    def _set(self) -> _Accepts:
        negated = self._accept("^")
        classes: list[_Accepts] = []
        ranges: list[tuple[str, str]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._take()
            if low == "[" and self._peek() == ":":
                raise InvalidPattern("named classes are not served")
            if low == "\\":
                low = self._take()
                if low in _CLASSES:
                    classes.append(_CLASSES[low])
                    continue
                low = self._literal_escape(low)
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._take()
                high = self._take()
                if high == "\\":
                    high = self._literal_escape(self._take())
                if high < low:
                    raise InvalidPattern(f"the range {low}-{high} is empty")
            ranges.append((low, high))
        self._take()

        def accepts(character: str) -> bool:
            found = any(low <= character <= high for low, high in ranges)
            return (found or any(each(character) for each in classes)) != negated

        return accepts


def _joined(*pieces: list[_Step]) -> list[_Step]:
    joined = [step for piece in pieces for step in piece]
    if len(joined) > _MAX_PROGRAM:
        raise InvalidPattern("the expression is too large")
    return joined
