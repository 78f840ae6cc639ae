"""Damage to a file loses only the damaged record, which is never delivered (rows 7 to 11)."""

import damage
import pytest
from damage import COUNT, DAMAGED, Damage
from stage import Stage, bodies

pytestmark = pytest.mark.usefixtures("classic_store")

TORN = [damage.tear_last_record, damage.tear_last_length]
FLIPPED = [damage.flip_body, damage.flip_id]
LENGTHS = [damage.flip_length_upwards, damage.flip_length_a_little, damage.flip_length_below_zero]
METAS = [damage.remove_meta, damage.empty_meta, damage.cut_meta, damage.garble_meta]
METADATA = [
    b"",
    b"half",
    pytest.param(b"\x00" * 100, marks=pytest.mark.slow),
    pytest.param(b'{"topics":7}', marks=pytest.mark.slow),
]
SIDECARS = [
    damage.remove_sidecars,
    damage.garble_sidecars,
    damage.flip_bits_of_sidecars,
    damage.cut_sidecars,
    damage.empty_sidecars,
]


def named(damages: list[Damage]) -> list[str]:
    return [each.__name__.replace("_", " ") for each in damages]


def some_slow(damages: list[Damage], quick: int) -> list[object]:
    """Return the first few as they are, and the others marked as slow."""
    return [
        each if number < quick else pytest.param(each, marks=pytest.mark.slow) for number, each in enumerate(damages)
    ]


AFTER = pytest.mark.parametrize(
    "crashed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["after an exit", "after a crash"]
)


@pytest.mark.parametrize("crashed", [False, True], ids=["after an exit", "after a crash"])
@pytest.mark.parametrize("tear", TORN, ids=named(TORN))
def test_a_torn_last_record_is_the_only_loss(stage: Stage, tear: Damage, crashed: bool) -> None:
    """Row 7: only the torn record is lost, and no message that is published afterwards."""
    outcome = damage.damaged(stage, tear, crashed=crashed)
    assert stage.tracker.lost == {bodies("stored", COUNT)[-1]}
    assert outcome.lost == 1
    assert (outcome.duplicated, outcome.foreign) == (0, 0)


@AFTER
def test_a_torn_record_that_was_never_acknowledged_is_skipped(stage: Stage, crashed: bool) -> None:
    """Row 7: half a record after the last one is not a loss."""
    outcome = damage.damaged(stage, damage.add_torn_record, crashed=crashed)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert "depth after restart" not in outcome.seen


@AFTER
@pytest.mark.parametrize("flip", FLIPPED, ids=named(FLIPPED))
def test_a_damaged_message_is_not_delivered(stage: Stage, flip: Damage, crashed: bool) -> None:
    """Row 8: the damaged message is not delivered and is logged; all others are delivered once."""
    outcome = damage.damaged(stage, flip, crashed=crashed)
    assert stage.tracker.lost == {bodies("stored", COUNT)[DAMAGED]}
    assert (outcome.duplicated, outcome.foreign) == (0, 0)
    _assert_reported(stage)


def test_damage_at_both_ends_loses_two_messages(stage: Stage) -> None:
    """Row 8: damage in the first record of the first file and in the last record of the last file."""
    outcome = damage.damaged(stage, damage.flip_first_and_last)
    stored = bodies("stored", COUNT)
    assert stage.tracker.lost == {stored[0], stored[-1]}
    assert (outcome.duplicated, outcome.foreign) == (0, 0)
    _assert_reported(stage)


@AFTER
@pytest.mark.parametrize("flip", LENGTHS, ids=named(LENGTHS))
def test_a_damaged_length_loses_one_message(stage: Stage, flip: Damage, crashed: bool) -> None:
    """Row 9: at most the record with the damaged length is lost, and no garbage is delivered."""
    outcome = damage.damaged(stage, flip, crashed=crashed)
    assert stage.tracker.lost <= {bodies("stored", COUNT)[DAMAGED]}
    assert (outcome.duplicated, outcome.foreign) == (0, 0)
    _assert_reported(stage)


@pytest.mark.parametrize("spoil", some_slow(SIDECARS, 3), ids=named(SIDECARS))
def test_missing_or_damaged_checksums_lose_no_message(stage: Stage, spoil: Damage) -> None:
    """Rows 8, 9, 31: no good message is lost because its checksum is damaged or missing."""
    outcome = damage.damaged(stage, spoil)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert dict(outcome.seen) == {}


@pytest.mark.parametrize("spoil", some_slow(METAS, 2), ids=named(METAS))
def test_a_queue_is_rebuilt_without_its_meta_file(stage: Stage, spoil: Damage) -> None:
    """Row 10: the queue is rebuilt from its data files with the right depth, and this is logged."""
    outcome = damage.damaged(stage, spoil)
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)
    assert dict(outcome.seen) == {}
    assert "WARNING: DISKQUEUE" in stage.log


def test_a_queue_in_use_is_rebuilt_without_its_meta_file(stage: Stage) -> None:
    """Row 10: without positions, finished messages of a remaining file may be delivered again; nothing is lost."""
    damage.fill(stage, finished=70)
    damage.remove_meta(stage.data_path)
    outcome = stage.restart_and_drain(damage.FILES)
    assert (outcome.lost, outcome.foreign) == (0, 0)
    assert outcome.duplicated <= 70
    assert dict(outcome.seen) == {}


@pytest.mark.parametrize("content", METADATA, ids=["empty", "half", "zeros", "7"])
def test_nsqd_refuses_to_start_on_a_damaged_nsqd_dat(stage: Stage, content: bytes) -> None:
    """Row 11: nsqd does not start on a damaged nsqd.dat, logs advice, and changes no message."""
    outcome = damage.start_with_metadata(stage, content)
    text = outcome.seen["refuses to start"]
    assert str(stage.data_path / "nsqd.dat") in text
    assert "move it away" in text or "restore" in text
    assert "Traceback" not in text
    assert (outcome.lost, outcome.duplicated, outcome.foreign) == (0, 0, 0)


def _assert_reported(stage: Stage) -> None:
    lines = [line for line in stage.log.splitlines() if "ERROR: DISKQUEUE" in line]
    assert any("checksum" in line.lower() or "corrupt" in line.lower() for line in lines), lines
