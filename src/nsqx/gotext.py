r"""Go's text forms: durations, integers, floats and quoted strings.

Flags, configuration files, log lines and error frames contain these forms. Programs parse them, so they are reproduced
to the character. All functions are pure.

    1h2m3.5s    duration, kept as an integer of nanoseconds
    0x_ff       integer, as a Go literal
    "a\n\xff"   quoted string, as %q prints it
"""

import math
import re
from decimal import Decimal

from nsqx.units import NS_PER_MINUTE, NS_PER_MS, NS_PER_S

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)

PARSE_ERROR = "parse error"
OUT_OF_RANGE = "value out of range"

_UNIT_NS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,  # micro sign
    "\u03bcs": 1_000,  # Greek letter mu
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": NS_PER_MINUTE,
    "h": 3_600_000_000_000,
}

_DURATION_PART = re.compile(r"([0-9]*)(\.[0-9]*)?([^.0-9]*)", re.DOTALL)

_INT = re.compile(
    r"""([+-]?)
    (?: 0[xX] (?P<hexadecimal> (?:_?[0-9a-fA-F])+ )
      | 0[bB] (?P<binary>      (?:_?[01])+ )
      | 0[oO]?(?P<octal>       (?:_?[0-7])+ )
      |       (?P<decimal>     0 | [1-9](?:_?[0-9])* )
    )""",
    re.VERBOSE,
)
_INT_BASES = {"hexadecimal": 16, "binary": 2, "octal": 8, "decimal": 10}

_DIGITS = r"[0-9](?:_?[0-9])*"
_DECIMAL_FLOAT = re.compile(rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEXADECIMAL_FLOAT = re.compile(
    r"[+-]?0[xX](?:(?:_?[0-9a-fA-F])+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+",
)
_SPECIAL_FLOAT = re.compile(r"nan|[+-]?inf(?:inity)?", re.IGNORECASE)

_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}


def parse_duration_ns(text: str) -> int:
    """Parse a duration such as ``1h30m``, ``-1.5s``, ``250ms`` or ``0``; raises ValueError with Go's text."""
    sign, rest = (text[0], text[1:]) if text[:1] in ("+", "-") else ("+", text)
    if rest == "0":
        return 0
    if not rest:
        raise ValueError(f"time: invalid duration {quote(text)}")
    limit = INT64_MAX + 1 if sign == "-" else INT64_MAX
    total_ns = 0
    position = 0
    while position < len(rest):
        part = _DURATION_PART.match(rest, position)
        assert part is not None  # all groups of the pattern can match nothing
        total_ns += _duration_part_ns(text, *part.groups(default=""))
        if total_ns > limit:
            raise ValueError(f"time: invalid duration {quote(text)}")
        position = part.end()
    return -total_ns if sign == "-" else total_ns


def _duration_part_ns(text: str, whole: str, fraction: str, unit: str) -> int:
    """Return the nanoseconds of one number and unit, such as ``1.5h``. ``text`` is used in errors."""
    digits = fraction[1:]
    whole = whole.lstrip("0") or whole[:1]
    # int() rejects thousands of digits, so check the length first.
    too_big = len(whole) > len(str(INT64_MAX)) or int(whole or "0") > INT64_MAX + 1
    if too_big or not (whole or digits):
        raise ValueError(f"time: invalid duration {quote(text)}")
    if not unit:
        raise ValueError(f"time: missing unit in duration {quote(text)}")
    unit_ns = _UNIT_NS.get(unit)
    if unit_ns is None:
        raise ValueError(f"time: unknown unit {quote(unit)} in duration {quote(text)}")
    return int(whole or "0") * unit_ns + _fraction_ns(digits, unit_ns)


def _fraction_ns(digits: str, unit_ns: int) -> int:
    """Compute a fraction as Go does: digits beyond 63 bits are dropped, and the product is a truncated float."""
    numerator = 0
    scale = 1.0
    for digit in digits:
        longer = numerator * 10 + int(digit)
        if numerator > INT64_MAX // 10 or longer > INT64_MAX + 1:
            break
        numerator = longer
        scale *= 10
    return int(numerator * (unit_ns / scale))


def format_duration(duration_ns: int) -> str:
    """Format a duration as Go's Duration.String() does: ``1m0s``, ``250ms``, ``1.5s``, ``0s``."""
    sign = "-" if duration_ns < 0 else ""
    size_ns = abs(duration_ns)
    if size_ns == 0:
        return "0s"
    for unit, unit_ns in (("ns", 1), ("\u00b5s", 1_000), ("ms", 1_000_000)):
        if size_ns < unit_ns * 1_000:
            return sign + _with_fraction(size_ns, unit_ns) + unit
    minutes, seconds_ns = divmod(size_ns, NS_PER_MINUTE)
    seconds = _with_fraction(seconds_ns, NS_PER_S) + "s"
    if not minutes:
        return sign + seconds
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours}h{minutes}m{seconds}" if hours else f"{sign}{minutes}m{seconds}"


def _with_fraction(value: int, unit: int) -> str:
    whole, remainder = divmod(value, unit)
    if not remainder:
        return str(whole)
    width = len(str(unit)) - 1
    return f"{whole}.{remainder:0{width}d}".rstrip("0")


def parse_int(text: str) -> int:
    """Parse a signed 64-bit integer literal of Go: ``0x``, ``0o``, ``0b``, leading-zero octal and ``_`` are allowed."""
    match = _INT.fullmatch(text)
    if match is None:
        raise ValueError(PARSE_ERROR)
    kind = match.lastgroup
    assert kind is not None
    digits = match.group(kind).replace("_", "")
    if kind == "decimal" and len(digits) > len(str(INT64_MAX)):  # int() rejects thousands of digits
        raise ValueError(OUT_OF_RANGE)
    value = int(digits, _INT_BASES[kind])
    if match.group(1) == "-":
        value = -value
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError(OUT_OF_RANGE)
    return value


def parse_float(text: str) -> float:
    """Parse a float as strconv.ParseFloat does: decimal, hexadecimal with an exponent, ``inf`` and ``nan``."""
    if _DECIMAL_FLOAT.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise ValueError(OUT_OF_RANGE)
        return value
    if _HEXADECIMAL_FLOAT.fullmatch(text):
        try:
            return float.fromhex(text.replace("_", ""))
        except OverflowError:
            raise ValueError(OUT_OF_RANGE) from None
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text)
    raise ValueError(PARSE_ERROR)


def format_float(value: float) -> str:
    """Format a float as Go's %v does: shortest digits, with an exponent from a million up and below 0.0001."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    shortest = Decimal(repr(value)).normalize()
    exponent = shortest.adjusted()
    if value == 0 or -4 <= exponent < 6:
        return f"{shortest:f}"
    return f"{shortest.scaleb(-exponent):f}e{exponent:+03d}"


def quote(text: str | bytes) -> str:
    r"""Quote text as Go's %q does: bytes that are not UTF-8 become \xNN, unprintable characters \u and \U escapes."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_quote_character, text)) + '"'


def _quote_character(character: str) -> str:
    escape = _ESCAPES.get(character)
    if escape is not None:
        return escape
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if 0xD800 <= code <= 0xDFFF:
        return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
