"""Exceptions of Spark are explained in one line."""

from nsqx.pipeline.spark_errors import explain


def test_error_class_sqlstate_and_plan_are_removed():
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean [`a`]."
        " SQLSTATE: 42703; line 1 pos 7;\n'Project ['nope]\n+- ~SubqueryAlias clicks"
    )
    expected = "A column with name `nope` cannot be resolved. Did you mean [`a`]. (line 1, column 8)"
    assert explain(Exception(text)) == expected


def test_a_syntax_error_has_line_and_column():
    text = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nSELEC 1"
    )
    assert explain(Exception(text)) == "Syntax error at or near 'SELEC'. (line 1, column 1)"


def test_a_python_traceback_is_reduced_to_its_message():
    text = (
        "[PYTHON_STREAMING] failed:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in f\nnsqx.errors.ConfigError: nsq: segmentDir is in use\n\n\tat java.Stack'
    )
    assert explain(Exception(text)) == "segmentDir is in use"


def test_long_messages_are_shortened_and_empty_ones_name_the_type():
    expected = explain(Exception("x " * 1000))
    assert len(expected) <= 501
    assert explain(ValueError()) == "ValueError"
