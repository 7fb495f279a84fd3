"""Which leader epoch wrote which offsets."""

from bisect import bisect_right


class Epochs:
    """Each epoch and the offset it started at, both rising. A new partition is in epoch 0."""

    def __init__(self, starts: list[tuple[int, int]] | None = None) -> None:
        self.entries = starts or [(0, 0)]
        self.current = self.entries[-1][0]
        self._offsets = [offset for _, offset in self.entries]

    def begin(self, epoch: int, offset: int) -> "Epochs":
        """The same with `epoch` beginning at `offset`: earlier ones that wrote nothing before it are gone."""
        return Epochs([entry for entry in self.entries if entry[1] < offset] + [(epoch, offset)])

    def at(self, offset: int) -> int:
        found = bisect_right(self._offsets, offset) - 1
        return self.entries[max(found, 0)][0]

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The highest epoch at or below `epoch` and the offset after its last; (-1, -1) where it is unknown."""
        if epoch > self.current:
            return -1, -1
        found = -1
        for number, (known, _) in enumerate(self.entries):
            if known <= epoch:
                found = number
        if found < 0:
            # Kafka answers an epoch older than all it knows with the first known offset.
            return epoch, self.entries[0][1]
        end = self.entries[found + 1][1] if found + 1 < len(self.entries) else log_end
        return self.entries[found][0], end
