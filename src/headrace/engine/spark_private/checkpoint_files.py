"""What Spark writes to the folder of a checkpoint.

metadata         the id of the query, as JSON
offsets/<batch>  written before a batch: `v1`, a JSON object with the watermark, then a line of JSON for each source
commits/<batch>  written after it: `v1` and a JSON object
sources/<n>/     what the source number n keeps itself: the initial offsets of a topic, or the list of files
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CheckpointFiles", "SourceOffsets", "files_of_batch", "lists_files_of", "new_metadata", "reason_of"]

VERSION = "v1"
NO_OFFSET = "-"
FILE_LOG_OFFSET = "logOffset"
"""The key of an offset of a source of files: the number of its last list of files."""
FILE_LOG_ENTRY = "path STRING, batchId BIGINT"


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """The offsets of one source in a batch, in Spark's JSON. `start` is None if the first batch has no fixed start.

    For a source with a single number as offset, such as `rate`, both are empty.
    """

    start: Mapping[str, Any] | None
    end: Mapping[str, Any]
    log: Path


class CheckpointFiles:
    """The files of one checkpoint. What cannot be read is raised as the error that `damaged` makes of its reason."""

    def __init__(self, folder: Path, damaged: Callable[[str], CheckpointError]) -> None:
        self.folder = folder
        self._damaged = damaged
        self._offsets = folder / "offsets"
        self._commits = folder / "commits"

    @property
    def metadata(self) -> Path:
        """The file with the id of the query. Spark uses the one that it finds."""
        return self.folder / "metadata"

    @property
    def query_id(self) -> str:
        """The query's id in Spark, the same for every run on this checkpoint."""
        return str(self.read_json(self.metadata)["id"])

    @property
    def has_batches(self) -> bool:
        return self._offsets.exists()

    def last_batch(self) -> int | None:
        """The newest batch that Spark has started."""
        return max(_batches(self._offsets), default=None)

    def committed_batch(self) -> int | None:
        """The newest batch that Spark has finished."""
        return max(_batches(self._commits), default=None)

    def sources(self, batch: int) -> list[SourceOffsets]:
        """The offsets of a batch, source by source; sources without any are left out."""
        before: list[str] = []
        if batch > 0:
            before = self._offset_lines(batch - 1)
        found = []
        for index, line in enumerate(self._offset_lines(batch)):
            if line == NO_OFFSET:
                continue
            log = self.folder / "sources" / str(index)
            earlier = before[index] if index < len(before) else NO_OFFSET
            end = self._parsed(self._offsets / str(batch), line)
            if earlier != NO_OFFSET:
                start: Mapping[str, Any] | None = self._parsed(self._offsets / str(batch - 1), earlier)
            else:
                # The log of a source of files begins with a list of files in its place.
                start = None if FILE_LOG_OFFSET in end else self._initial_offsets(log)
            found.append(SourceOffsets(start, end, log))
        return found

    def watermark(self, batch: int) -> datetime | None:
        """The watermark that a batch began with; None where there was none yet."""
        return self._time(self._offsets / str(batch), "batchWatermarkMs")

    def watermark_after(self, batch: int) -> datetime | None:
        """The watermark that the batch after a finished one begins with; None where there is none yet."""
        return self._time(self._commits / str(batch), "nextBatchWatermarkMs")

    def check(self) -> None:
        """Check what Spark reads at its start. Spark's own error names neither the place nor what to do."""
        last, committed = self.last_batch(), self.committed_batch()
        if last is None and committed is None:
            return
        if not self.metadata.exists():
            raise self._damaged(f"{self.metadata} is missing")
        if last is None or (committed is not None and committed > last):
            raise self._damaged(f"batch {committed} is finished, but is missing in {self._offsets}")
        self.sources(last)
        if committed is not None:
            path = self._commits / str(committed)
            self._parsed(path, self._lines(path, at_least=2)[1])

    def read_json(self, path: Path) -> dict[str, Any]:
        try:
            return _object(path.read_text())
        except (OSError, ValueError) as error:
            raise self._damaged(f"{path} cannot be read ({reason_of(error)})") from error

    def _offset_lines(self, batch: int) -> list[str]:
        path = self._offsets / str(batch)
        version, _, *lines = self._lines(path, at_least=2)
        if version != VERSION:
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
        return self._parsed(path, body) if version == VERSION and body.startswith("{") else None

    def _time(self, path: Path, name: str) -> datetime | None:
        milliseconds = self._parsed(path, self._lines(path, at_least=2)[1]).get(name, 0)
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds) if milliseconds > 0 else None

    def _lines(self, path: Path, at_least: int) -> list[str]:
        try:
            lines = path.read_text().splitlines()
        except (OSError, ValueError) as error:
            raise self._damaged(f"{path} cannot be read ({reason_of(error)})") from error
        if len(lines) < at_least:
            raise self._damaged(f"{path} is truncated")
        return lines

    def _parsed(self, path: Path, text: str) -> dict[str, Any]:
        try:
            return {} if text.isdecimal() else _object(text)
        except ValueError as error:
            raise self._damaged(f"{path} cannot be read ({error})") from error


def new_metadata() -> dict[str, Any]:
    """The content of `metadata` for a query that has not run yet."""
    return {"id": str(uuid.uuid4())}


def files_of_batch(spark: "SparkSession", offsets: SourceOffsets) -> list[str]:
    """The files that a source of files has read in a batch, out of its log, `sources/<n>`."""
    from pyspark.sql import functions as F

    entries = spark.read.text(str(offsets.log)).select(F.from_json("value", FILE_LOG_ENTRY).alias("entry"))
    first = -1 if offsets.start is None else int(offsets.start[FILE_LOG_OFFSET])
    listed = entries.filter(f"entry.batchId > {first} AND entry.batchId <= {int(offsets.end[FILE_LOG_OFFSET])}")
    return sorted({row.path for row in listed.select("entry.path").collect()})


def lists_files_of(offsets: SourceOffsets, folder: str) -> bool:
    """Whether the offsets are those of a source of files, and its log, `sources/<n>`, has files of the folder."""
    if FILE_LOG_OFFSET not in offsets.end:
        return False
    start = f'"path":"{Path(folder).absolute().as_uri()}'
    return any(start in path.read_text(errors="replace") for path in offsets.log.iterdir() if path.name[0] != ".")


def _batches(log: Path) -> Iterator[int]:
    if log.exists():
        yield from (int(path.name) for path in log.iterdir() if path.name.isdecimal())


def reason_of(error: Exception) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text[:40]!r} is not a JSON object")
    return value
