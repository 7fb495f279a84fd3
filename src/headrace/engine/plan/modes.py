"""The output mode of a query: what a sink gets of a window, and when."""

from pyspark.sql import DataFrame

from headrace.engine.calls.windows import WindowUse
from headrace.engine.plan.analysis import (
    APPEND,
    UPDATE,
    keeps_python_state,
    mode_problem,
    real_time_complaint,
    real_time_problems,
)
from headrace.errors import InputError
from headrace.topology import Emit, QueryNode

__all__ = ["output_mode", "real_time_mode"]


def real_time_mode(frame: DataFrame, windows: list[WindowUse]) -> str:
    """The output mode of real-time mode, once it is known that Spark can run the plan in it."""
    if any(window.emit is not Emit.CHANGES for window in windows):
        raise InputError(
            'latency="real-time" emits a window\'s row whenever it changes, and cannot wait for the final one',
            next_step='add emit="changes" to the window, or leave latency out',
        )
    problems = real_time_problems(frame)
    if problems:
        raise InputError(
            f'latency="real-time" cannot run {", ".join(problems)}',
            next_step="leave latency out, or move that to the next node",
        )
    complaint = real_time_complaint(frame)
    if complaint is not None:
        raise InputError(f'latency="real-time" cannot run it: {complaint}', next_step="leave latency out")
    return UPDATE


def output_mode(node: QueryNode, frame: DataFrame, windows: list[WindowUse]) -> str:
    """The output mode that `emit` asks for; otherwise that of the sink, or the other one if Spark refuses it."""
    native = [window for window in windows if window.why_operator is None]
    if keeps_python_state(frame):
        if any(window.emit is Emit.CHANGES for window in native):
            raise InputError(
                'it has a native Spark window with emit="changes" and an operator of Headrace, '
                "and a query has one output mode",
                next_step="move one of them to another node",
            )
        native = []
    emits = {window.emit for window in native if window.emit is not None}
    if len(emits) > 1:
        raise InputError(
            'windows of one node emit "final" and "changes", and a query has one output mode',
            next_step="move one of them to another node",
        )
    if emits:
        modes = [UPDATE if emits == {Emit.CHANGES} else APPEND]
    else:
        modes = [UPDATE, APPEND] if node.holds_table else [APPEND, UPDATE]
    if keeps_python_state(frame):
        modes = [APPEND]
    complaints = []
    for mode in modes:
        complaint = mode_problem(frame, mode)
        if complaint is None:
            return mode
        complaints.append(complaint)
    raise InputError(complaints[0])
