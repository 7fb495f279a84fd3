"""A topic's rows on their way out: validated against its schema, written as the engine writes them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.clients.values import Unfit, columns_of, key_text, object_encoder, shown
from headrace.errors import InputError
from headrace.topology import ColumnTime, CorrectedTime, Format, Topic

__all__ = ["RowWriter"]


class RowWriter:
    """Turns rows of one topic into the bytes of its records."""

    def __init__(self, topic: Topic) -> None:
        if topic.format is Format.DEBEZIUM:
            raise InputError(
                f"{topic.kind} {topic.name!r}: its topic has a database's changes, and rows cannot be sent to it",
                next_step="write to the database",
            )
        self.topic = topic
        self._is_json = topic.format is Format.JSON
        self._encode = object_encoder(topic.schema.columns) if self._is_json else _plain_encoder(topic)
        columns = [topic.schema[name] for name in topic.key if name in topic.schema]
        # A key that is the record's own (`_key`) is none that a row can tell.
        self._key = key_text(columns) if columns and len(columns) == len(topic.key) else None
        self._never_null = _times(topic)

    def key_of_delete(self, key: Any) -> bytes:
        """The key of a table's row that is to go: its one column's value, or a mapping, or a tuple in their order."""
        if not self.topic.is_table:
            raise InputError(
                f"topic {self.topic.name!r}: the row is None, which deletes a row: only tables support that"
            )
        names = self.topic.key
        if isinstance(key, Mapping):
            values = dict(key)
        else:
            parts = key if isinstance(key, tuple) else (key,)
            if key is None or len(parts) != len(names):
                raise InputError(
                    f"table {self.topic.name!r}: a delete needs the key of the row, and {key!r} is not one",
                    next_step=f"pass key= with {', '.join(names)}",
                )
            values = dict(zip(names, parts, strict=True))
        assert self._key is not None
        try:
            return _bytes(self._key(values), values)
        except Unfit as unfit:
            raise self._misfit(unfit) from None

    def write(self, row: Any) -> tuple[bytes | None, bytes]:
        """Key and value of a row; an InputError that names column and value if it does not fit."""
        try:
            value = self._encode(row)
            if not self._is_json:
                return None, _bytes(value, row)
            values = columns_of(row)
            for name in self._never_null:
                if values.get(name) is None:
                    raise Unfit("is null, and is the event time", path=f".{name}")
            key = None if self._key is None else self._key(values)
            return None if key is None else _bytes(key, row), _bytes(value, row)
        except Unfit as unfit:
            raise self._misfit(unfit) from None

    def _misfit(self, unfit: Unfit) -> InputError:
        place = f"column {unfit.path[1:]!r}" if unfit.path else "a row"
        return InputError(f"{self.topic.kind} {self.topic.name!r}: {place} {unfit.reason}", next_step=unfit.next_step)


def _times(topic: Topic) -> Sequence[str]:
    """The columns without which a row has no event time."""
    match topic.event_time:
        case ColumnTime(column):
            names: tuple[str, ...] = (column,)
        case CorrectedTime(occurred, sent, received):
            names = (occurred, sent, received)
        case _:
            names = ()
    return [name for name in names if name in topic.schema]


def _plain_encoder(topic: Topic) -> Callable[[Any], str | bytes]:
    """A topic of text or bytes has one column: a row may be that value itself."""
    (column,) = topic.schema.columns
    kind: type = str if topic.format is Format.STRING else bytes

    def encode(row: Any) -> str | bytes:
        value = row if isinstance(row, kind) else columns_of(row).get(column.name)
        if not isinstance(value, str | bytes) or not isinstance(value, kind):
            raise Unfit(f"is {shown(value)}, not {column.type.ddl}", path=f".{column.name}")
        if not value:
            raise Unfit("is empty, which cannot be told apart from no value", path=f".{column.name}")
        return value

    return encode


def _bytes(text: str | bytes, row: Any) -> bytes:
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        values = columns_of(row) if isinstance(row, Mapping) else {}
        bad = next((name for name, value in values.items() if isinstance(value, str) and _is_broken(value)), None)
        path = "" if bad is None else f".{bad}"
        raise Unfit("has an unpaired surrogate, which is not valid text", path=path) from None


def _is_broken(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
