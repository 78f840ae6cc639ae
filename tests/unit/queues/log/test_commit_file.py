"""Commit files: headers, frames, and what is left of damaged ones."""

import random

import pytest
from log_bench import items

from nsqx.queues.log.batch import MESSAGES, new_batch, seed_of
from nsqx.queues.log.commit_file import (
    FRAMES_AT,
    CommitFile,
    CommitHeader,
    Entry,
    FrameScanner,
    commit_paths,
    decode_header,
    encode_frame,
    header_of_frames,
    identity_record,
    is_header_damaged,
    read_commit_file,
)
from nsqx.queues.log.identity import LogIdentity

HEADER = CommitHeader(7, 6, 5, 1234, b"b" * 16, 99, False)
IDENTITY = LogIdentity("topic", 42, 1, 2, 3)


def entries(first, *bodies, binds=False):
    batch = new_batch(MESSAGES, first, len(bodies), 5, items(*bodies))
    bind = [Entry(1, identity_record(IDENTITY, 10, 20), seed_of(0), 0)] * 2 if binds else []
    return [*bind, Entry(1, batch, seed_of(42), 0)]


def content_of(*frames, header=HEADER):
    """Return a file with frames of one batch each."""
    data = header.encode()
    for number, bodies in enumerate(frames):
        serial = header.first_serial + number
        data += b"".join(encode_frame(header, serial, serial, 99, entries(10 * number, *bodies, binds=number == 0)))
    return data


def scan(data, header=HEADER, known=()):
    return FrameScanner(data, header, known).frames()


def bodies_of(frame):
    return [body for _, batch in frame.entries for _, body in batch.bodies()]


def test_a_header_has_two_copies():
    data = HEADER.encode()
    assert len(data) == FRAMES_AT
    for position in range(0, FRAMES_AT, 3):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert decode_header(bytes(damaged)) == HEADER
    assert decode_header(bytes(FRAMES_AT)) is None
    assert decode_header(b"") is None


def test_the_newer_copy_of_a_header_is_used():
    newer = HEADER._replace(generation=8)
    assert decode_header(HEADER.encode()[:4096] + newer.encode()[4096:]) == newer
    assert decode_header(newer.encode()[:4096] + HEADER.encode()[4096:]) == newer


def test_frames_are_read_as_they_were_written():
    frames = scan(content_of([b"a", b"b"], [b"c"]))
    assert [(frame.serial - HEADER.first_serial, frame.is_whole, frame.is_written) for frame in frames] == [
        (0, True, True),
        (1, True, True),
    ]
    assert [bodies_of(frame) for frame in frames] == [[b"a", b"b"], [b"c"]]
    assert frames[0].identities == [(IDENTITY, (10, 20))] * 2
    assert {log_id for frame in frames for log_id, _ in frame.entries} == {42}


def test_frames_of_an_older_generation_are_ignored():
    old = content_of([b"a"], [b"b"], [b"c"])
    new_header = HEADER._replace(generation=8, nonce=5678)
    new = content_of([b"x"], header=new_header)
    assert [bodies_of(frame) for frame in scan(new + old[len(new) :], new_header)] == [[b"x"]]


def test_a_frame_that_is_cut_short_is_not_whole():
    data = content_of([b"a"], [b"b" * 50, b"c"])
    start = len(content_of([b"a"]))
    for end in range(start, len(data)):
        frames = scan(data[:end])
        assert [frame.is_whole for frame in frames if frame.serial == HEADER.first_serial] == [True]
        assert all(not frame.is_whole and not frame.is_written for frame in frames[1:])
        frames = scan(data[:end] + bytes(len(data) - end))
        assert not any(frame.is_written for frame in frames[1:])


def test_a_changed_byte_costs_at_most_a_message_or_a_batch():
    data = content_of([b"a", b"b"], [b"c", b"dd", b"e"], [b"f"])
    start, end = len(content_of([b"a", b"b"])), len(content_of([b"a", b"b"], [b"c", b"dd", b"e"]))
    for position in range(FRAMES_AT, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << random.randrange(8)
        found = [body for frame in scan(bytes(damaged)) for body in bodies_of(frame)]
        assert set(found) <= {b"a", b"b", b"c", b"dd", b"e", b"f"}
        if start <= position < end:
            assert {b"a", b"b", b"f"} <= set(found)


def test_a_damaged_head_of_a_frame_is_replaced_by_its_end():
    data = bytearray(content_of([b"a"], [b"b"]))
    data[FRAMES_AT + 5] ^= 1
    assert [(bodies_of(frame), frame.is_whole) for frame in scan(bytes(data))] == [([b"a"], True), ([b"b"], True)]


def test_a_frame_in_a_message_is_not_taken_for_one():
    inner = b"".join(encode_frame(HEADER._replace(nonce=1), HEADER.first_serial + 1, 0, 0, entries(5, b"false")))
    data = bytearray(content_of([inner], [b"b"]))
    data[FRAMES_AT + 5] ^= 1
    data[FRAMES_AT + 60] ^= 1
    assert b"false" not in [body for frame in scan(bytes(data)) for body in bodies_of(frame)]


def test_a_log_without_its_identity_is_found_among_the_known_ones():
    data = HEADER.encode() + b"".join(encode_frame(HEADER, HEADER.first_serial, 0, 0, entries(0, b"a")))
    assert [frame.entries for frame in scan(data)] == [[]]
    assert [bodies_of(frame) for frame in scan(data, known=[IDENTITY])] == [[b"a"]]


def test_a_file_is_written_and_read(tmp_path):
    file = CommitFile(str(tmp_path / "nsqx.commit.0"))
    file.allocate(20_000)
    assert (tmp_path / "nsqx.commit.0").stat().st_size == 20_000
    file.begin_generation(HEADER)
    buffers = encode_frame(HEADER, file.next_serial, 0, 0, entries(0, b"a", binds=True))
    file.write(buffers)
    file.sync()
    header, data = read_commit_file(file.path)
    assert header == HEADER
    assert [bodies_of(frame) for frame in scan(data)] == [[b"a"]]
    file.save_header(HEADER._replace(is_clean=True))
    assert read_commit_file(file.path)[0].is_clean
    file.close()


@pytest.mark.parametrize("size", [0, 10, 8191])
def test_a_short_file_has_no_header_or_no_frames(tmp_path, size):
    path = tmp_path / "nsqx.commit.0"
    path.write_bytes(HEADER.encode()[:size])
    header, data = read_commit_file(str(path))
    assert header is None or scan(data) == []


@pytest.mark.parametrize("nonce", [0, 1234, (1 << 64) - 1])
def test_frames_are_readable_without_their_header(nonce):
    header = HEADER._replace(nonce=nonce)
    data = bytearray(content_of([b"a"], [b"b"], header=header))
    assert not is_header_damaged(data)
    data[20] ^= 1
    data[4096 + 30] ^= 1
    assert is_header_damaged(data)
    found = header_of_frames(bytes(data))
    assert (found.generation, found.seed, found.is_clean) == (header.generation, header.seed, False)
    assert [bodies_of(frame) for frame in scan(bytes(data), found)] == [[b"a"], [b"b"]]
    data[FRAMES_AT + 5] ^= 1  # the head of the first frame
    found = header_of_frames(bytes(data))
    assert [bodies_of(frame) for frame in scan(bytes(data), found)] == [[b"a"], [b"b"]]


def test_zeros_are_not_a_damaged_header_and_have_no_frames():
    assert not is_header_damaged(bytes(FRAMES_AT))
    assert header_of_frames(bytes(20_000)) is None


def test_files_that_were_set_aside_are_not_commit_files(tmp_path):
    for name in ("nsqx.commit.0", "nsqx.commit.12", "nsqx.commit.1.bad", "nsqx.commit.", "other"):
        (tmp_path / name).touch()
    assert commit_paths(str(tmp_path)) == [str(tmp_path / "nsqx.commit.0"), str(tmp_path / "nsqx.commit.12")]


def test_a_header_that_a_power_cut_tore_is_not_damaged():
    whole = content_of([b"a"])
    for seed in range(50):
        rng = random.Random(seed)
        data = bytearray(whole)
        for position in (0, 4096):
            kept = rng.randrange(9)
            for at in range(0, 72, 8):
                if at // 8 == kept or rng.random() < 0.5:
                    data[position + at : position + at + 8] = bytes(8)
        assert not is_header_damaged(bytes(data))


def torn(data, position, *lost):
    """Replace words of a copy of the header with zeros, as a power cut does while it is erased or written."""
    changed = bytearray(data)
    for word in lost:
        start = position + 8 * word
        changed[start : min(start + 8, position + 65)] = bytes(min(8, position + 65 - start))
    return bytes(changed)


@pytest.mark.parametrize("lost", [(8,), (0,), (5,), (6, 7), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_a_header_that_a_power_cut_tore_while_it_was_erased_is_not_damaged(lost):
    # The frames of the generation before are still there.
    data = content_of([b"a"], [b"b"], [b"c"], header=header_with_crc(lambda crc: crc & 0xFF))
    one_left = torn(torn(data, 0, *lost), 4096, *range(9))
    assert decode_header(one_left) is None
    assert not is_header_damaged(one_left)
    both_left = torn(torn(data, 0, *lost), 4096, 2, 3)
    assert decode_header(both_left) is None
    assert not is_header_damaged(both_left)


def test_torn_copies_of_two_headers_are_not_damaged():
    # The process has ended before it had replaced both copies, and the file is erased then.
    other = HEADER._replace(nonce=77, synced_below=1 << 33, is_clean=True).encode()
    data = content_of([b"a"], [b"b"])
    data = data[:4096] + other[4096:] + data[FRAMES_AT:]
    assert not is_header_damaged(torn(torn(data, 0, 1), 4096, 3))


def test_a_torn_copy_does_not_hide_a_changed_one():
    data = bytearray(torn(content_of([b"a"], [b"b"]), 0, 1))
    data[4096 + 30] ^= 1
    assert is_header_damaged(bytes(data))


def header_with_crc(is_right, header=HEADER):
    """Return a header with a nonce for which the CRC is as wanted."""
    headers = (header._replace(nonce=nonce << 32 | nonce) for nonce in range(1, 5000))
    return next(one for one in headers if is_right(int.from_bytes(one.encode()[61:65])))


@pytest.mark.parametrize(
    "header",
    [
        header_with_crc(lambda crc: crc & 0xFF),
        header_with_crc(lambda crc: not crc & 0xFF),
        header_with_crc(lambda crc: crc & 0xFF, HEADER._replace(boot_id=bytes(16), highest_id=1 << 50)),
    ],
    ids=["usual", "crc-ends-with-zero", "no-boot-id"],
)
def test_every_changed_bit_in_both_copies_is_damage(header):
    data = content_of([b"a"], header=header)
    for position in range(65):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            changed[4096 + random.randrange(60)] ^= 1 << random.randrange(8)
            assert is_header_damaged(bytes(changed)), (position, bit)
