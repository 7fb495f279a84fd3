"""Checkpoints: what fits goes on, what does not is refused by name, and nothing is deleted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.engine.run.checkpoints import Checkpoint, Checkpoints
from headrace.engine.write.batch import Batch

WINDOWED: dict[str, Any] = {
    "kind": "stream",
    "key": ["card"],
    "sources": {"topic payments": {"lateness": "1 minute"}},
    "operators": ["Aggregate: window"],
    "windows": [{"window": "tumbling 5 minutes", "by": ["card"], "aggregates": {"n": "count(*)"}}],
    "partitions": 2,
}
STATELESS = {"kind": "stream", "key": ["card"], "sources": {"topic payments": {"lateness": "1 minute"}}}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, "fraud")


def opened(checkpoints: Checkpoints, fingerprint: Mapping[str, Any] = WINDOWED) -> Checkpoint:
    checkpoint = checkpoints.of("bursts")
    checkpoint.open(fingerprint)
    return checkpoint


def write_batch(checkpoint: Checkpoint, batch: int, *sources: str, done: bool = True) -> None:
    """As Spark writes it."""
    for log in ("offsets", "commits"):
        (checkpoint.spark / log).mkdir(exist_ok=True)
    (checkpoint.spark / "offsets" / str(batch)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *sources]))
    (checkpoint.spark / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    if done:
        (checkpoint.spark / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_new_one_has_an_id_and_a_fingerprint_before_spark_starts(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoint = opened(checkpoints)
    assert checkpoint.folder == tmp_path / "checkpoints" / "fraud" / "bursts"
    assert json.loads((checkpoint.folder / "fingerprint.json").read_text()) == WINDOWED
    assert checkpoint.query_id == opened(checkpoints).query_id
    assert checkpoint.last_batch() is None
    assert checkpoint.positions() == {}


def test_where_a_topic_is_read_twice_what_both_have_read_counts(checkpoints: Checkpoints) -> None:
    checkpoint = opened(checkpoints)
    ahead, behind = '{"payments":{"0":9,"1":4,"2":1}}', '{"payments":{"0":7,"1":5},"cards":{"0":3}}'
    read = {"payments": {0: 7, 1: 4}, "cards": {0: 3}}
    for batch, sources in enumerate([(ahead, behind), (behind, ahead)]):
        write_batch(checkpoint, batch, *sources)
        assert checkpoint.positions() == read
        assert Batch(batch, None, None, checkpoint, None).offsets() == read  # type: ignore[arg-type]


def test_a_change_that_state_cannot_follow_is_refused_with_what_changed(checkpoints: Checkpoints) -> None:
    opened(checkpoints)
    windows = [WINDOWED["windows"][0] | {"window": "tumbling 1 hour"}]
    changed = WINDOWED | {"windows": windows, "sources": {"topic payments": {"lateness": "2 minutes"}}}
    with pytest.raises(headrace.CheckpointError) as raised:
        opened(checkpoints, changed)
    said = str(raised.value)
    assert (
        f"the code of 'bursts' no longer fits its checkpoint at {checkpoints.folder / 'bursts'}: lateness of topic "
        "payments was 1 minute and is 2 minutes, its window was tumbling 5 minutes and is tumbling 1 hour; undo"
    ) in said
    assert "--reset bursts" in said
    assert "new name" in said
    opened(checkpoints)  # the refused one was not noted


def test_edits_without_state_pass_but_for_the_sources(checkpoints: Checkpoints) -> None:
    opened(checkpoints, STATELESS)
    opened(checkpoints, STATELESS | {"key": ["id"], "sources": {"topic payments": {"lateness": "1 hour"}}})
    with pytest.raises(headrace.CheckpointError, match="it now reads topic orders, it no longer reads topic payments"):
        opened(checkpoints, STATELESS | {"sources": {"topic orders": {}}})


def test_state_that_comes_or_goes_is_refused(checkpoints: Checkpoints) -> None:
    opened(checkpoints, STATELESS)
    with pytest.raises(headrace.CheckpointError, match=": it had no state and now has some;"):
        opened(checkpoints, WINDOWED)
    checkpoints.reset("bursts")
    opened(checkpoints, WINDOWED)
    with pytest.raises(headrace.CheckpointError, match=": it had state and now has none;"):
        opened(checkpoints, STATELESS)


def test_a_reset_keeps_the_old_one(checkpoints: Checkpoints) -> None:
    old = opened(checkpoints)
    write_batch(old, 0, '{"payments":{"0":5}}')
    old_id = old.query_id
    kept = checkpoints.reset("bursts")
    assert kept is not None
    assert Checkpoint("bursts", kept).query_id == old_id
    assert (kept / "spark" / "offsets" / "0").exists()
    new = opened(checkpoints)
    assert new.query_id != old_id
    assert new.note.starts_over
    assert new.last_batch() is None
    assert checkpoints.reset("bursts") != kept
    assert len(list(kept.parent.iterdir())) == 2


def test_a_reset_of_what_was_never_there_only_leaves_word(checkpoints: Checkpoints) -> None:
    assert checkpoints.reset("bursts") is None
    assert opened(checkpoints).note.starts_over


def test_where_a_replay_starts_stays_with_the_checkpoint(checkpoints: Checkpoints) -> None:
    checkpoints.reset("bursts", {"payments": {0: 7, 1: 9}})
    checkpoint = opened(checkpoints)
    assert checkpoint.starting_offsets == {"payments": {0: 7, 1: 9}}
    assert checkpoint.positions() == {"payments": {0: 7, 1: 9}}
    assert checkpoints.starting_offsets(["bursts", "spend"]) == {"bursts": {"payments": {0: 7, 1: 9}}}


def test_what_a_batch_covers(checkpoints: Checkpoints) -> None:
    checkpoint = opened(checkpoints)
    write_batch(checkpoint, 0, '{"payments":{"0":5,"1":6}}', "-", '{"logOffset":0}')
    write_batch(checkpoint, 1, '{"payments":{"0":8,"1":6}}', '{"orders":{"0":2}}', '{"logOffset":1}', done=False)
    log = checkpoint.spark / "sources" / "0"
    log.mkdir(parents=True)
    (log / "0").write_bytes(b'\0v1\n{"payments":{"0":1,"1":2}}')
    first, files = checkpoint.sources(0)
    assert first.start == {"payments": {"0": 1, "1": 2}}
    assert first.end == {"payments": {"0": 5, "1": 6}}
    assert files.start is None
    payments, orders, files = checkpoint.sources(1)
    assert payments.start == first.end
    assert orders.start is None
    assert (files.start, files.end) == ({"logOffset": 0}, {"logOffset": 1})
    assert (checkpoint.last_batch(), checkpoint.committed_batch()) == (1, 0)
    assert checkpoint.positions() == {"payments": {0: 5, 1: 6}}


def test_notes_are_kept(checkpoints: Checkpoints) -> None:
    checkpoint = opened(checkpoints)
    checkpoint.take_note(cluster="abc", registered=("kafka",))
    note = checkpoints.of("bursts").note
    assert (note.cluster, note.registered, note.starts_over) == ("abc", ("kafka",), False)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "fingerprint.json").unlink(), "has no fingerprint.json"),
        (lambda folder: (folder / "fingerprint.json").write_text("{"), "damaged"),
        (lambda folder: (folder / "spark" / "metadata").unlink(), "spark/metadata is missing"),
        (lambda folder: (folder / "sink.json").write_text("[]"), "damaged"),
        (lambda folder: (folder / "spark" / "offsets" / "0").write_text("v9\n{}\n{}"), "has the format 'v9'"),
        (lambda folder: (folder / "spark" / "offsets" / "0").write_text(""), "is truncated"),
    ],
)
def test_damage_is_told_and_nothing_is_made_over_it(checkpoints: Checkpoints, damage: Any, said: str) -> None:
    checkpoint = opened(checkpoints)
    write_batch(checkpoint, 0, '{"payments":{"0":5}}')
    damage(checkpoint.folder)
    with pytest.raises(headrace.CheckpointError, match=said):
        _ = opened(checkpoints).note, checkpoint.positions()


def test_a_source_that_counts_by_a_number_has_no_topics(checkpoints: Checkpoints) -> None:
    checkpoint = opened(checkpoints)
    for batch in range(2):
        write_batch(checkpoint, batch, str(batch + 5))
    assert opened(checkpoints).positions() == {}
