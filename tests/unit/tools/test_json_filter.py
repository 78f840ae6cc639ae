import pytest

from nsqx.tools.json_filter import JSONFilter, Verdict


def test_every_body_passes_unchanged_without_rules() -> None:
    assert not JSONFilter().is_needed
    assert JSONFilter().apply(b"no json") == (Verdict.PASS, b"no json")


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b"1", b'"text"', b'{"a":NaN}', b"[" * 100_000])
def test_a_body_that_is_not_a_json_object_is_unreadable(body: bytes) -> None:
    assert JSONFilter("a").apply(body)[0] is Verdict.UNREADABLE


@pytest.mark.parametrize(
    ("value", "body", "verdict"),
    [
        ("", b'{"f":null}', Verdict.PASS),
        ("", b"{}", Verdict.DROP),
        ("", b"null", Verdict.DROP),
        ("v", b"{}", Verdict.RETRY),
        ("v", b'{"f":"v"}', Verdict.PASS),
        ("v", b'{"f":"w"}', Verdict.DROP),
        ("v", b'{"f":1}', Verdict.DROP),
        ("1", b'{"f":"1"}', Verdict.PASS),
        ("1", b'{"f":1.0}', Verdict.PASS),
        ("1e0", b'{"f":1}', Verdict.PASS),
        ("1", b'{"f":true}', Verdict.DROP),
        ("1", b'{"f":2}', Verdict.DROP),
        ("1", b'{"f":[1]}', Verdict.DROP),
    ],
)
def test_a_required_field_and_value_decide_the_verdict(value: str, body: bytes, verdict: Verdict) -> None:
    assert JSONFilter("f", value).apply(body)[0] is verdict


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"b":1,"a":2,"c":3}', b'{"a":2,"b":1}'),
        (b'{"a":1.0,"b":1.5}', b'{"a":1,"b":1.5}'),
        (b'{"a":1e-7,"b":1e21}', b'{"a":1e-7,"b":1e+21}'),
        (b'{"a":12345678901234567890}', b'{"a":12345678901234567890}'),
        (b'{"a":"<&>","b":{"z":[],"y":null}}', b'{"a":"\\u003c\\u0026\\u003e","b":{"y":null,"z":[]}}'),
        (b'{"a":"\\ud800"}', b'{"a":"\xef\xbf\xbd"}'),
        (b'{"c":1}', b"{}"),
    ],
)
def test_selected_fields_are_encoded_as_go_encodes_them(body: bytes, expected: bytes) -> None:
    assert JSONFilter(fields=["b", "a", "a"]).apply(body) == (Verdict.PASS, expected)
