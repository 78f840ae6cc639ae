"""Tables are printed in full, without optional columns, or stacked if the terminal is too narrow."""

from nsqx.tools.table import narrow_table, plain_table, stacked_table

COLUMNS = ("topic", "channel", "depth", "in flight", "messages")
ROWS = [("orders", "billing", "5", "1", "1234"), ("o", "-", "0", "0", "7")]


def test_numbers_are_aligned_right():
    assert plain_table(COLUMNS, ROWS, 2).splitlines() == [
        "topic   channel  depth  in flight  messages",
        "orders  billing      5          1      1234",
        "o       -            0          0         7",
    ]


def test_optional_columns_are_left_out_one_by_one():
    assert narrow_table(COLUMNS, ROWS, 2, ["messages", "in flight"], 43) == (plain_table(COLUMNS, ROWS, 2), [])
    table, left_out = narrow_table(COLUMNS, ROWS, 2, ["messages", "in flight"], 42)
    assert (table.splitlines()[0], left_out) == ("topic   channel  depth  in flight", ["messages"])
    table, left_out = narrow_table(COLUMNS, ROWS, 2, ["messages", "in flight"], 22)
    assert (table.splitlines()[1], left_out) == ("orders  billing      5", ["in flight", "messages"])
    assert narrow_table(COLUMNS, ROWS, 2, ["messages", "in flight"], 21) is None


def test_numbers_stay_aligned_right_if_a_column_of_names_is_left_out():
    table, left_out = narrow_table(COLUMNS, ROWS, 2, ["channel"], 34)
    assert (table.splitlines()[1:], left_out) == (
        ["orders      5          1      1234", "o           0          0         7"],
        ["channel"],
    )


def test_a_stacked_table_shows_every_column():
    assert stacked_table(COLUMNS, ROWS[:1], 2, 30).splitlines() == [
        "orders",
        "    channel billing",
        "    depth 5  in flight 1",
        "    messages 1234",
    ]


def test_lists_of_names_are_wrapped_between_names():
    rows = [("t" * 64, "first-channel second-channel third-channel", "5")]
    assert stacked_table(("topic", "channels", "depth"), rows, 2, 40).splitlines() == [
        "t" * 64,
        "    channels first-channel",
        "    second-channel third-channel",
        "    depth 5",
    ]


def test_a_table_without_rows_has_its_header():
    assert narrow_table(COLUMNS, [], 2, [], 80) == ("topic  channel  depth  in flight  messages\n", [])
