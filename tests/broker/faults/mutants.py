"""The broker with one of its promises taken out: tests that do not notice prove nothing."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace.broker.storage import manager
from headrace.broker.storage.files import Disk
from headrace.broker.storage.partition import Acknowledge, Partition
from headrace.broker.storage.producers import Written
from headrace.broker.storage.recovery import recover
from headrace.broker.store import Store

Patch = tuple[Any, str, Any]


def _nothing(*_: object) -> None:
    pass


class _UnsyncedDisk:
    """All of a disk but its syncs."""

    sync = sync_all = sync_folder = staticmethod(_nothing)

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def no_fdatasync(disk: type[Disk]) -> list[Patch]:
    return [(disk, "sync", _nothing)]


def no_folder_sync(disk: type[Disk]) -> list[Patch]:
    return [(disk, "sync_folder", _nothing)]


def no_folder_sync_at_a_roll(disk: type[Disk]) -> list[Patch]:
    sync_folder = disk.sync_folder

    def sync_all_but_logs(self: Disk, path: Path) -> None:
        if len(list(path.glob("*.log"))) < 2:
            sync_folder(self, path)

    return [(disk, "sync_folder", sync_all_but_logs)]


def synchronous_normal(disk: type[Disk]) -> list[Patch]:
    begin = Store.__init__

    def begin_carelessly(self: Store, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        self._connection.execute("PRAGMA synchronous=NORMAL")

    return [(Store, "__init__", begin_carelessly)]


def acknowledged_before_the_sync(disk: type[Disk]) -> list[Patch]:
    def when_synced(self: Partition, offset: int, acknowledge: Acknowledge) -> None:
        acknowledge(None)

    return [(Partition, "when_synced", when_synced)]


def recovery_without_a_sync(disk: type[Disk]) -> list[Patch]:
    def recover_carelessly(name: str, folder: Any, saved: Any, epochs: Any, disk: Any, now_ms: Any) -> Any:
        return recover(name, folder, saved, epochs, _UnsyncedDisk(disk), now_ms)  # type: ignore[arg-type]

    return [(manager, "recover", recover_carelessly)]


def sync_tried_again_after_a_failure(disk: type[Disk]) -> list[Patch]:
    once = disk.sync

    def sync(self: Disk, file: int) -> None:
        try:
            once(self, file)
        except OSError:
            once(self, file)

    return [(disk, "sync", sync)]


def duplicate_answered_early(disk: type[Disk]) -> list[Patch]:
    append = Partition.append

    def append_carelessly(self: Partition, *arguments: Any) -> Written | None:
        written = append(self, *arguments)
        return None if written is None else written._replace(next_offset=0)

    return [(Partition, "append", append_carelessly)]


MUTANTS: dict[str, Callable[[type[Disk]], list[Patch]]] = {
    "no fdatasync": no_fdatasync,
    "no folder sync": no_folder_sync,
    "no folder sync at a roll": no_folder_sync_at_a_roll,
    "synchronous=NORMAL": synchronous_normal,
    "acknowledging before the sync": acknowledged_before_the_sync,
    "recovery without a sync": recovery_without_a_sync,
    "fsync tried again after EIO": sync_tried_again_after_a_failure,
    "a duplicate answered early": duplicate_answered_early,
}
NONE = "none"


@contextmanager
def mutated(name: str, disk: type[Disk] = Disk) -> Iterator[None]:
    """The broker of this process with that mutant's change; `disk` is the class the test uses."""
    with ExitStack() as stack:
        for target, attribute, replacement in [] if name == NONE else MUTANTS[name](disk):
            stack.enter_context(patch.object(target, attribute, replacement))
        yield
