"""Spark's exceptions in one line."""

from nsqx.pipeline.spark_errors import explain


def test_the_class_the_state_and_the_plan_are_left_out():
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. Did you mean [`a`]."
        " SQLSTATE: 42703; line 1 pos 7;\n'Project ['nope]\n+- ~SubqueryAlias clicks"
    )
    said = "A column with name `nope` cannot be resolved. Did you mean [`a`]. (line 1, column 8)"
    assert explain(Exception(text)) == said


def test_a_syntax_error_has_its_place():
    text = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL ==\nSELEC 1"
    )
    assert explain(Exception(text)) == "Syntax error at or near 'SELEC'. (line 1, column 1)"


def test_of_an_exception_in_python_its_last_line_is_told():
    text = (
        "[PYTHON_STREAMING] failed:\nTraceback (most recent call last):\n"
        '  File "x.py", line 1, in f\nnsqx.errors.ConfigError: nsq: segmentDir is in use\n\n\tat java.Stack'
    )
    assert explain(Exception(text)) == "segmentDir is in use"


def test_it_is_one_line_and_not_endless():
    said = explain(Exception("x " * 1000))
    assert len(said) <= 501
    assert explain(ValueError()) == "ValueError"
