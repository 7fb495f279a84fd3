"""Reads the arguments of a declaration. An invalid argument is recorded as a problem, and reading continues."""

import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

from headrace.errors import InputError, Problem
from headrace.topology.choices import Latency, OnError
from headrace.topology.datatypes import DataType, Decimal, Primitive
from headrace.topology.names import LATE, REJECTED, rejected_topic
from headrace.topology.nearest import did_you_mean
from headrace.topology.nodes import Channel, Node, Parameter, Stream
from headrace.topology.place import Place
from headrace.topology.schema import Schema
from headrace.topology.sinks import Sink

__all__ = ["Declaration", "KeyLike", "column_of", "name_of", "names_of", "parameters_of"]

KeyLike: TypeAlias = str | Sequence[str] | None
T = TypeVar("T")
D = TypeVar("D")

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
LONGEST_NODE_NAME = 63  # a view's name is a PostgreSQL identifier
LONGEST_TOPIC_NAME = 249 - len(rejected_topic(""))  # Kafka's limit, with room for what cannot be used


class Declaration:
    """A declaration being read: its name, its place in the file, and its problems."""

    def __init__(self, label: str, place: Place, problems: list[Problem]) -> None:
        self.label = label
        self.place = place
        self._problems = problems

    def problem(self, message: str, next_step: str | None = None) -> None:
        self._problems.append(problem_at(self.place, f"{self.label}: {message}", next_step))

    def read(self, option: str, parse: Callable[[Any], T], value: Any, otherwise: D) -> T | D:
        """The parsed value; a value that cannot be parsed is a problem and gives `otherwise`."""
        try:
            return parse(value)
        except InputError as error:
            self.problem(f"{option}: {error.problem}", error.next_step)
            return otherwise

    def check_node_name(self, name: str) -> None:
        if not NAME.fullmatch(name) or keyword.iskeyword(name):
            self.problem(
                f"the name {name!r} cannot be a parameter's name",
                "use letters, digits and _, starting with a letter",
            )
        elif len(name) > LONGEST_NODE_NAME:
            self.problem(f"the name has {len(name)} characters; {LONGEST_NODE_NAME} are allowed")

    def check_topic_name(self, topic_name: str) -> None:
        if not TOPIC_NAME.fullmatch(topic_name) or topic_name in (".", ".."):
            self.problem(f"{topic_name!r} cannot be a topic's name", "use letters, digits, '.', '_' and '-'")
        elif len(topic_name) > LONGEST_TOPIC_NAME:
            self.problem(f"the topic's name is longer than {LONGEST_TOPIC_NAME} characters")

    def check_channel_names(self, channels: Sequence[str], topic_name: str) -> None:
        taken = {*dir(Stream), *(field.name for field in fields(Stream)), LATE, REJECTED}
        for channel in channels:
            if channel in taken:
                self.problem(f"the channel {channel!r} has a name that a stream uses itself", "rename it")
            elif not NAME.fullmatch(channel) or keyword.iskeyword(channel):
                self.problem(
                    f"the channel {channel!r} cannot be an attribute's name",
                    "use letters, digits and _, starting with a letter",
                )
            elif len(topic_name) <= LONGEST_TOPIC_NAME < len(f"{topic_name}.{channel}"):
                self.problem(f"the topic of channel {channel!r} has a name longer than {LONGEST_TOPIC_NAME} characters")

    def check_on_error(self, on_error: OnError, latency: Latency, channels: Sequence[str]) -> None:
        if on_error is not OnError.DIVERT:
            return
        if latency is Latency.REAL_TIME:
            self.problem(
                'latency="real-time" does not go with on_error="divert": real-time mode has no batch to run again',
                "leave one of them out",
            )
        if channels:
            self.problem(
                'channels= does not go with on_error="divert": each channel reads the topic on its own',
                "call the function in a node of its own, and split its rows in the next node",
            )

    def check_sink(self, sink: Sink, latency: Latency, channels: Sequence[str]) -> None:
        if sink.takes_records:
            return
        if latency is Latency.REAL_TIME:
            self.problem('latency="real-time" writes to a topic only', "leave to= out, or leave latency out")
        if channels:
            self.problem(
                f"channels are topics, and its rows go to {sink.described}",
                "leave channels out, or let nodes that read the channels write to the sink",
            )

    def check_key(self, key: tuple[str, ...], schema: Schema, also: Sequence[str]) -> None:
        for name in key:
            if name in schema:
                if not _has_text(schema[name].type):
                    self.problem(
                        f"key {name!r} is {schema[name].type.ddl}, which cannot be a key",
                        "make a column of plain type the key",
                    )
            elif name not in also:
                self.problem(f"key {name!r} is not a column", did_you_mean(name, schema.names))

    def check_timestamp(self, option: str, name: str, schema: Schema) -> None:
        if name == "_timestamp":
            return
        if name not in schema:
            times = [column.name for column in schema if column.type is Primitive.TIMESTAMP]
            self.problem(f"{option} {name!r} is not a column", did_you_mean(name, times or schema.names))
        elif schema[name].type is not Primitive.TIMESTAMP:
            self.problem(f"{option} {name!r} is {schema[name].type.ddl}", "make it TIMESTAMP in the schema")


def problem_at(place: Place, message: str, next_step: str | None = None) -> Problem:
    return Problem(message, place.shown_file, place.line, next_step)


def names_of(value: KeyLike) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise InputError(f"{value!r} is neither a name nor a list of names")
    names = (value,) if isinstance(value, str) else tuple(value)
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"{name!r} is not a name")
    if len(set(names)) < len(names):
        raise InputError(f"a name is repeated in {list(names)}")
    return names


def column_of(value: str | None) -> str | None:
    """The column of a stream's event time, which its function must return. Other kinds of time are for topics."""
    if value is None or (isinstance(value, str) and value):
        return value
    raise InputError(f"{value!r} is not a column name", next_step="name a column that the function returns")


def name_of(function: Callable[..., Any], kind: str) -> str:
    """The name of a function. A callable without a name gets one that is not valid for a node."""
    if not callable(function):
        raise InputError(
            f"{function!r} is not a function: a node has the name of its function",
            next_step=f"write @app.{kind}(key=...) above `def {function}(...)`",
        )
    return str(getattr(function, "__name__", f"<{type(function).__name__}>"))


def parameters_of(function: Callable[..., Any], declaration: Declaration) -> tuple[Parameter, ...]:
    """The upstreams a function's signature names. Defaults that are not nodes stay ordinary defaults."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        declaration.problem("a node is a plain function", "return a DataFrame: no async, no yield")
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            declaration.problem(
                f"the parameter {str(parameter)!r} cannot name an upstream",
                "use one parameter for each upstream",
            )
        elif isinstance(parameter.default, Node | Channel):
            parameters.append(Parameter(parameter.name, parameter.default))
        elif parameter.default is parameter.empty:
            parameters.append(Parameter(parameter.name, parameter.name))
    return tuple(parameters)


def _has_text(type_: DataType) -> bool:
    return isinstance(type_, Decimal) or (isinstance(type_, Primitive) and type_ is not Primitive.BINARY)
