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
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.config.run import Offsets
from headrace.engine.plan.fingerprints import OPERATORS, changes
from headrace.engine.spark_private.checkpoint_files import CheckpointFiles, SourceOffsets, new_metadata, reason_of
from headrace.errors import CheckpointError

__all__ = ["Checkpoint", "Checkpoints", "SinkNote"]


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
        self._files = CheckpointFiles(self.spark, self._damaged)

    @property
    def exists(self) -> bool:
        return self.folder.exists()

    @property
    def query_id(self) -> str:
        """The query's id in Spark, the same for every run on this checkpoint."""
        return self._files.query_id

    @property
    def note(self) -> SinkNote:
        path = self.folder / "sink.json"
        if not path.exists():
            return SinkNote()
        said = self._files.read_json(path)
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
            for topic, partitions in self._files.read_json(path).items()
        }

    def check(self, fingerprint: Mapping[str, Any]) -> None:
        """Raise CheckpointError if a query of the current code cannot resume from it. Nothing is changed."""
        if self.exists and (self.folder / "fingerprint.json").exists():
            self._check(fingerprint)
        elif self.exists and self._files.has_batches:
            raise CheckpointError(
                f"the checkpoint of {self.node!r} at {self.folder} has no fingerprint.json, so it cannot be compared "
                "with the code",
                next_step=f"restore the file, or start over with --reset {self.node}",
            )
        self._files.check()

    def open(self, fingerprint: Mapping[str, Any]) -> None:
        """Prepare it for a query, after `check`."""
        self.check(fingerprint)
        if not self._files.metadata.exists():
            # The id is chosen before Spark starts, because the sink looks it up in its ledger first.
            _write(self._files.metadata, new_metadata())
        _write(self.folder / "fingerprint.json", _plain(fingerprint))

    def last_batch(self) -> int | None:
        """The newest batch that Spark has started."""
        return self._files.last_batch()

    def committed_batch(self) -> int | None:
        """The newest batch that Spark has finished."""
        return self._files.committed_batch()

    def sources(self, batch: int) -> list[SourceOffsets]:
        """The offsets of a batch, source by source; sources without any are left out."""
        return self._files.sources(batch)

    def watermark(self, batch: int | None) -> datetime | None:
        """The watermark that a batch began with; None where there was none yet."""
        return None if batch is None else self._files.watermark(batch)

    def watermark_after(self, batch: int | None) -> datetime | None:
        """The watermark that the batch after a finished one begins with; None where there is none yet."""
        return None if batch is None else self._files.watermark_after(batch)

    def positions(self) -> dict[str, dict[int, int]]:
        """The end offsets of the last finished batch, by topic and partition."""
        batch = self.committed_batch()
        if batch is None:
            return {topic: dict(partitions) for topic, partitions in self.starting_offsets.items()}
        return topic_offsets(source.end for source in self.sources(batch))

    def progress_note(self) -> dict[str, Any]:
        """What `note_progress` kept; empty if there is nothing that can be read."""
        try:
            return dict(json.loads((self.folder / "progress.json").read_text()))
        except (OSError, TypeError, ValueError):
            return {}

    def note_progress(self, state_sizes: Mapping[str, Any]) -> None:
        """Keep what a restarted run shows until its first batch. Nothing depends on it, so a failure is ignored."""
        part = self.folder / ".progress.json.part"
        try:
            part.write_text(json.dumps(state_sizes) + "\n")
            part.replace(self.folder / "progress.json")
        except OSError:
            pass

    def _check(self, fingerprint: Mapping[str, Any]) -> None:
        now, before = _plain(fingerprint), self._files.read_json(self.folder / "fingerprint.json")
        if OPERATORS not in before and OPERATORS not in now:
            before, now = _without_state(before), _without_state(now)
        if changed := changes(before, now):
            raise CheckpointError(
                f"the code of {self.node!r} no longer fits its checkpoint at {self.folder}: {', '.join(changed)}",
                next_step=f"undo the change, or start over by adding --reset {self.node} (the old checkpoint is kept), "
                "or give the node a new name",
            )

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
            f"{path} cannot be written: {reason_of(error)}",
            next_step="free some space, or choose another folder with --home",
        ) from error
