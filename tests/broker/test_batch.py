"""Record batches: what is refused, what is patched, and what is found inside, in every codec."""

import struct

import lz4.frame
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.storage import batch as batches
from headrace.broker.storage.codecs import CODECS, MAX_DECOMPRESSED, UndecodableError, compress, decompress
from headrace.broker.wire.errors import ApiError, ErrorCode
from tests.broker.faults.batches import encode

values = st.lists(st.binary(max_size=300), min_size=1, max_size=20)


def produced(*given: bytes, **how: int) -> bytearray:
    return bytearray(encode(list(given) or [b"x"], **how))


def patched(position: int, layout: str, value: int, *, mend_crc: bool = True) -> memoryview:
    data = produced(b"one", b"two")
    struct.pack_into(layout, data, position, value)
    if mend_crc:
        struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return memoryview(data)


@given(values)
def test_a_batch_as_clients_write_it_is_accepted(given: list[bytes]) -> None:
    data = memoryview(bytearray(encode(given, 7, 1, 5)))
    batch = batches.check_produced(data, 9)
    assert (batch.records, batch.producer_id, batch.base_sequence) == (len(given), 7, 5)
    assert batch.last_sequence == 5 + len(given) - 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(60), ErrorCode.CORRUPT_MESSAGE),
        (patched(16, ">b", 1), ErrorCode.INVALID_RECORD),  # an older message format
        (patched(8, ">i", 10**6), ErrorCode.CORRUPT_MESSAGE),
        (patched(8, ">i", 3), ErrorCode.CORRUPT_MESSAGE),
        (patched(40, ">b", 1, mend_crc=False), ErrorCode.CORRUPT_MESSAGE),
        (patched(21, ">h", 0x20), ErrorCode.INVALID_RECORD),  # a control batch
        (patched(21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (patched(21, ">h", 0x08), ErrorCode.INVALID_TIMESTAMP),  # claims append time
        (patched(21, ">h", 0x10), ErrorCode.INVALID_RECORD),  # transactional without a producer id
        (patched(57, ">i", 0), ErrorCode.INVALID_RECORD),
        (patched(57, ">i", 3), ErrorCode.INVALID_RECORD),  # more records than offsets
        (patched(43, ">q", 9), ErrorCode.INVALID_RECORD),  # a producer id without epoch and sequence
        (memoryview(produced() + produced()), ErrorCode.INVALID_RECORD),  # two batches
    ],
)
def test_what_kafka_refuses_is_refused(data: bytes, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        batches.check_produced(memoryview(bytearray(data)), 9)
    assert refused.value.code == code


@pytest.mark.parametrize("codec", sorted(CODECS.values()))
def test_more_records_than_fit_are_refused(codec: int) -> None:
    def claiming(count: int, payload: bytes) -> memoryview:
        return memoryview(batches.build(payload, attributes=codec, count=count, base_timestamp=1, max_timestamp=1))

    with pytest.raises(ApiError) as refused:
        batches.check_produced(claiming(2**31 - 1, b"x"), 9)
    assert refused.value.code == ErrorCode.INVALID_RECORD
    # The smallest records there are, compressed as far as the codec can.
    smallest = b"\x0c\x00\x00\x00\x01\x01\x00"
    packed = bytes(compress(codec, smallest * 100_000))
    assert batches.check_produced(claiming(100_000, packed), 9).records == 100_000


@pytest.mark.parametrize("codec", sorted(set(CODECS.values()) - {0}))
def test_decompression_has_a_limit(codec: int) -> None:
    fits = bytes(MAX_DECOMPRESSED)
    assert len(decompress(codec, memoryview(compress(codec, fits)))) == MAX_DECOMPRESSED
    with pytest.raises(UndecodableError):
        decompress(codec, memoryview(compress(codec, fits + b"x")))


@pytest.mark.parametrize("codec", sorted(set(CODECS.values()) - {0}))
@given(damage=st.binary(max_size=100), cut=st.integers(0, 60))
def test_bytes_of_no_codec_are_undecodable_or_decoded(codec: int, damage: bytes, cut: int) -> None:
    whole = bytes(compress(codec, b"some text, some more text " * 10))
    try:
        decompress(codec, memoryview(whole[:cut] + damage))
    except UndecodableError:
        pass


@given(st.integers(1, 2**31 - 1), st.binary(max_size=200))
def test_malformed_records_are_told_at_once(count: int, data: bytes) -> None:
    batch = batches.parse_header(produced())._replace(records=count)
    try:
        found = list(batches.record_times(batch, data))
    except ValueError:
        return
    assert len(found) == count


def test_zstd_needs_a_client_that_knows_it() -> None:
    data = patched(21, ">h", 4)
    assert batches.check_produced(data, 7).codec == 4
    with pytest.raises(ApiError) as refused:
        batches.check_produced(data, 6)
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@given(values, st.integers(0, 2**40), st.integers(0, 2**30))
def test_its_place_lies_outside_the_checksum(given: list[bytes], offset: int, epoch: int) -> None:
    data = memoryview(bytearray(encode(given)))
    batches.place(data, offset, epoch)
    batch = batches.parse_header(data)
    assert (batch.base_offset, batch.leader_epoch) == (offset, epoch)
    assert batches.checksum_holds(data, batch)


def test_append_time_replaces_the_producers() -> None:
    data = memoryview(produced(b"a", b"b"))
    batches.stamp_append_time(data, 12345)
    batch = batches.parse_header(data)
    assert batch.append_time
    assert batch.max_timestamp == 12345
    assert batches.checksum_holds(data, batch)
    assert list(batches.record_times(batch, data[batches.HEADER_SIZE :])) == [(0, 12345), (1, 12345)]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_says_what_it_ends(commit: bool) -> None:
    data = memoryview(batches.control_batch(9, 2, commit, 1000))
    batch = batches.parse_header(data)
    assert batch.control
    assert batch.transactional
    assert (batch.producer_id, batch.producer_epoch) == (9, 2)
    assert batches.checksum_holds(data, batch)
    assert batches.marker_commits(data, batch) is commit


@given(st.binary(max_size=200_000), st.sampled_from(sorted(CODECS.values())))
def test_codecs_round_trip(data: bytes, codec: int) -> None:
    assert decompress(codec, memoryview(compress(codec, data))) == data


@given(st.binary(max_size=200_000))
def test_lz4_is_the_frame_format_with_independent_blocks(data: bytes) -> None:
    frame = compress(CODECS["lz4"], data)
    assert lz4.frame.decompress(frame) == data
    assert lz4.frame.get_frame_info(frame)["block_linked"] is False


@given(values, st.sampled_from(sorted(CODECS.values())))
def test_recompressed_batches_keep_their_records(given: list[bytes], codec: int) -> None:
    data = memoryview(bytearray(encode(given, 7, 1, 5, timestamp=99)))
    before = batches.parse_header(data)
    plain = decompress(before.codec, data[batches.HEADER_SIZE :])
    changed = memoryview(batches.with_records(before, compress(codec, plain), codec))
    after = batches.check_produced(changed, 9)
    assert after.codec == codec
    assert after._replace(length=0, crc=0, attributes=0) == before._replace(length=0, crc=0, attributes=0)
    assert decompress(codec, changed[batches.HEADER_SIZE :]) == plain
    assert list(batches.record_times(after, plain)) == [(number, 99) for number in range(len(given))]


def test_sequences_wrap_after_the_highest_number() -> None:
    assert batches.following(2**31 - 1, 1) == 0
    assert batches.following(2**31 - 2, 3) == 1
