"""Checkpoints under the home folder, each with notes of what it belongs to.

    <home>/checkpoints/<app>/<node>/spark/             Spark's own checkpoint
                                   /fingerprint.json   what its state depends on, compared at each start
                                   /sink.json          the Kafka cluster, the topics and the ledgers it belongs to
                                   /start.json         where a replay began to read
                                   /progress.json      the size of the state after the last batch, shown after a restart
    <home>/checkpoints/<app>/.kept/<node>-<time>/      set aside by a reset or a replay

Nothing here is ever deleted.
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.config.run import Offsets
from headrace.engine.plan.fingerprints import OPERATORS, changes
from headrace.engine.read.reading import SourceOffsets
from headrace.errors import CheckpointError

__all__ = ["Checkpoint", "Checkpoints", "SinkNote"]

NO_OFFSET = "-"


@dataclass(frozen=True, slots=True)
class SinkNote:
    """What a checkpoint depends on outside of it."""

    cluster: str | None = None
    """The id of the Kafka cluster whose offsets the checkpoint holds."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The ids of the topics that it read: a topic that is created again has another id."""
    registered: tuple[str, ...] = ()
    """The ledgers that have an entry of this checkpoint. If one of them is empty, it is not the one it wrote to."""
    starts_over: bool = False
    """Whether the node was reset, so that ledgers may have entries of an earlier checkpoint."""


class Checkpoint:
    """The checkpoint of one node."""

    def __init__(self, node: str, folder: Path) -> None:
        self.node = node
        self.folder = folder
        self.spark = folder / "spark"

    @property
    def exists(self) -> bool:
        return self.folder.exists()

    @property
    def query_id(self) -> str:
        """The query's id in Spark, the same for every run on this checkpoint."""
        return str(self._json(self.spark / "metadata")["id"])

    @property
    def note(self) -> SinkNote:
        path = self.folder / "sink.json"
        if not path.exists():
            return SinkNote()
        said = self._json(path)
        return SinkNote(**said | {"registered": tuple(said.get("registered", ()))})

    def take_note(self, **changes: Any) -> None:
        before = self.note
        after = replace(before, **changes)
        if after != before:
            _write(self.folder / "sink.json", asdict(after))

    @property
    def starting_offsets(self) -> Offsets:
        path = self.folder / "start.json"
        if not path.exists():
            return {}
        return {
            topic: {int(partition): offset for partition, offset in partitions.items()}
            for topic, partitions in self._json(path).items()
        }

    def check(self, fingerprint: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a query of the current code cannot resume from it. Nothing is changed."""
        if self.exists and (self.folder / "fingerprint.json").exists():
            self._check(fingerprint)
        elif self.exists and (self.spark / "offsets").exists():
            raise CheckpointError(
                f"the checkpoint of {self.node!r} at {self.folder} has no fingerprint.json, so it cannot be compared "
                "with the code",
                next_step=f"restore the file, or start over with --reset {self.node}",
            )
        self._check_not_damaged()

    def open(self, fingerprint: Mapping[str, Any]) -> None:
        """Prepare it for a query, after `check`."""
        self.check(fingerprint)
        if not (self.spark / "metadata").exists():
            # The id is chosen before Spark starts, because the sink looks it up in its ledger first.
            _write(self.spark / "metadata", {"id": str(uuid.uuid4())})
        _write(self.folder / "fingerprint.json", _plain(fingerprint))

    def last_batch(self) -> int | None:
        """The newest batch that Spark has started."""
        return max(self._batches("offsets"), default=None)

    def committed_batch(self) -> int | None:
        """The newest batch that Spark has finished."""
        return max(self._batches("commits"), default=None)

    def sources(self, batch: int) -> list[SourceOffsets]:
        """The offsets of a batch, source by source; sources without any are left out."""
        before: list[str] = []
        if batch > 0:
            before = self._offset_lines(batch - 1)
        found = []
        offsets = self.spark / "offsets"
        for index, line in enumerate(self._offset_lines(batch)):
            if line == NO_OFFSET:
                continue
            log = self.spark / "sources" / str(index)
            earlier = before[index] if index < len(before) else NO_OFFSET
            known = earlier != NO_OFFSET
            start = self._parsed(offsets / str(batch - 1), earlier) if known else self._initial_offsets(log)
            found.append(SourceOffsets(start, self._parsed(offsets / str(batch), line), log))
        return found

    def watermark(self, batch: int | None) -> datetime | None:
        """The watermark that a batch began with; None where there was none yet."""
        if batch is None:
            return None
        path = self.spark / "offsets" / str(batch)
        milliseconds = self._parsed(path, self._lines(path, at_least=2)[1]).get("batchWatermarkMs", 0)
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds) if milliseconds > 0 else None

    def positions(self) -> dict[str, dict[int, int]]:
        """The end offsets of the last finished batch, by topic and partition."""
        batch = self.committed_batch()
        if batch is None:
            return {topic: dict(partitions) for topic, partitions in self.starting_offsets.items()}
        return topic_offsets(source.end for source in self.sources(batch))

    def progress_note(self) -> dict[str, Any]:
        """What `note_progress` kept; empty if there is nothing that can be read."""
        try:
            return _object((self.folder / "progress.json").read_text())
        except (OSError, ValueError):
            return {}

    def note_progress(self, told: Mapping[str, Any]) -> None:
        """Keep what a restarted run shows until its first batch. Nothing depends on it, so a failure is ignored."""
        part = self.folder / ".progress.json.part"
        try:
            part.write_text(json.dumps(told) + "\n")
            part.replace(self.folder / "progress.json")
        except OSError:
            pass

    def _offset_lines(self, batch: int) -> list[str]:
        path = self.spark / "offsets" / str(batch)
        version, _, *lines = self._lines(path, at_least=2)
        if version != "v1":
            raise CheckpointError(
                f"{path} has the format {version!r}, which this version of Headrace cannot read",
                next_step="update Headrace to the version that wrote it",
            )
        return lines

    def _initial_offsets(self, log: Path) -> dict[str, Any] | None:
        """The initial offsets, which Spark's Kafka source writes before its first batch."""
        path = log / "0"
        if not path.is_file():
            return None
        version, _, body = path.read_bytes().lstrip(b"\0").decode(errors="replace").partition("\n")
        return self._parsed(path, body) if version == "v1" and body.startswith("{") else None

    def _lines(self, path: Path, at_least: int) -> list[str]:
        try:
            lines = path.read_text().splitlines()
        except (OSError, ValueError) as error:
            raise self._damaged(f"{path} cannot be read ({_reason(error)})") from error
        if len(lines) < at_least:
            raise self._damaged(f"{path} is truncated")
        return lines

    def _batches(self, log: str) -> Iterator[int]:
        folder = self.spark / log
        if folder.exists():
            yield from (int(path.name) for path in folder.iterdir() if path.name.isdecimal())

    def _check(self, fingerprint: Mapping[str, Any]) -> None:
        now, before = _plain(fingerprint), self._json(self.folder / "fingerprint.json")
        if OPERATORS not in before and OPERATORS not in now:
            before, now = _without_state(before), _without_state(now)
        if told := changes(before, now):
            raise CheckpointError(
                f"the code of {self.node!r} no longer fits its checkpoint at {self.folder}: {', '.join(told)}",
                next_step=f"undo the change, or start over by adding --reset {self.node} (the old checkpoint is kept), "
                "or give the node a new name",
            )

    def _check_not_damaged(self) -> None:
        """Check what Spark reads at its start. Spark's own error names neither the place nor what to do."""
        last, committed = self.last_batch(), self.committed_batch()
        if last is None and committed is None:
            return
        if not (self.spark / "metadata").exists():
            raise self._damaged(f"{self.spark / 'metadata'} is missing")
        if last is None or (committed is not None and committed > last):
            raise self._damaged(f"batch {committed} is finished, but is missing in {self.spark / 'offsets'}")
        self.sources(last)
        if committed is not None:
            path = self.spark / "commits" / str(committed)
            self._parsed(path, self._lines(path, at_least=2)[1])

    def _json(self, path: Path) -> dict[str, Any]:
        try:
            return _object(path.read_text())
        except (OSError, ValueError) as error:
            raise self._damaged(f"{path} cannot be read ({_reason(error)})") from error

    def _parsed(self, path: Path, text: str) -> dict[str, Any]:
        try:
            return {} if text.isdecimal() else _object(text)
        except ValueError as error:
            raise self._damaged(f"{path} cannot be read ({error})") from error

    def _damaged(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint of {self.node!r} is damaged: {how}",
            next_step=f"restore it from a backup, or start over with --reset {self.node}",
        )


class Checkpoints:
    """The checkpoints of one app."""

    def __init__(self, home: Path, app: str) -> None:
        self.folder = home.absolute() / "checkpoints" / app

    def of(self, node: str) -> Checkpoint:
        return Checkpoint(node, self.folder / node)

    def reset(self, node: str, start: Offsets | None = None) -> Path | None:
        """Set a checkpoint aside; the next run starts over, from `start` if that is given.

        Returns the new place of the old one; None if there was none.
        """
        current = self.of(node)
        kept = None
        if current.exists:
            now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
            kept = self.folder / ".kept" / f"{node}-{now}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            current.folder.rename(kept)
        if start is not None:
            _write(current.folder / "start.json", _plain(start))
        current.take_note(starts_over=True)
        return kept

    def starting_offsets(self, nodes: Iterable[str]) -> dict[str, Offsets]:
        return {node: start for node in nodes if (start := self.of(node).starting_offsets)}


def topic_offsets(ends: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, int]]:
    """Spark's JSON of several sources as offsets by topic; sources that are not topics are left out.

    Of a topic that several sources read: what all of them have read.
    """
    found: dict[str, dict[int, int]] = {}
    for end in ends:
        for topic, partitions in end.items():
            if isinstance(partitions, Mapping):
                read = {int(partition): offset for partition, offset in partitions.items()}
                others = found.setdefault(topic, read)
                found[topic] = {number: min(read[number], others[number]) for number in read if number in others}
    return found


def _without_state(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Without state, Spark can follow every change of a node except that of its sources."""
    return {"kind": fingerprint.get("kind"), "sources": {name: {} for name in fingerprint.get("sources", ())}}


def _reason(error: Exception) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text[:40]!r} is not a JSON object")
    return value


def _plain(value: Mapping[str, Any]) -> Any:
    """As it is after it was written and read back."""
    return json.loads(json.dumps(value, default=str))


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Atomically and durably."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w") as file:
            json.dump(value, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {_reason(error)}",
            next_step="free some space, or choose another folder with --home",
        ) from error
