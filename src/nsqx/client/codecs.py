"""Codecs: how the values of a program become the bodies of messages, and back.

A codec is any object with ``encode(value)`` and ``decode(body)``. ``codec_of`` chooses one for a type. msgspec and
pydantic are imported only for codecs that need them.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, Generic, Protocol, TypeVar, cast, overload

import orjson

from nsqx.errors import ConfigError, InvalidBody, InvalidMessage

_T = TypeVar("_T")

_MAX_REASONS = 5


class Codec(Protocol[_T]):
    """Converts values to bodies and back."""

    def encode(self, value: _T) -> bytes:
        """Return the body of a value; raises InvalidMessage if the value cannot be encoded."""

    def decode(self, body: bytes) -> _T:
        """Return the value of a body; raises InvalidBody if the body is not valid."""


class BytesCodec:
    """Bodies as they are."""

    def encode(self, value: bytes) -> bytes:
        """Return the value."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidMessage(f"the value must be bytes, not {type(value).__name__}")
        return bytes(value)

    def decode(self, body: bytes) -> bytes:
        """Return the body."""
        return body


class TextCodec:
    """Text in UTF-8."""

    def encode(self, value: str) -> bytes:
        """Return the text in UTF-8; raises InvalidMessage."""
        if not isinstance(value, str):
            raise InvalidMessage(f"the value must be str, not {type(value).__name__}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"the text is not valid Unicode: {error.reason} at {error.start}") from error

    def decode(self, body: bytes) -> str:
        """Return the text; raises InvalidBody."""
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise InvalidBody(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error


class JSONCodec:
    """JSON without a schema, by orjson: dicts, lists, strings, numbers, True, False and None.

    orjson also encodes dataclasses, dates and UUIDs. They are decoded as dicts and strings.
    """

    def __init__(self, kind: type[Any] | None = None) -> None:
        """``kind`` is dict or list: bodies with another value are invalid."""
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        """Return JSON; raises InvalidMessage."""
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError as error:
            raise InvalidMessage(f"the value cannot be encoded as JSON: {error}") from error

    def decode(self, body: bytes) -> Any:
        """Return the value of JSON; raises InvalidBody."""
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidBody(f"the body is not JSON: {error}") from error
        if self._kind is not None and not isinstance(value, self._kind):
            raise InvalidBody(f"the body is a JSON {type(value).__name__}, not a {self._kind.__name__}")
        return value


class MsgspecCodec(Generic[_T]):
    """JSON or MessagePack with a schema, by msgspec: Structs, dataclasses, TypedDicts and other types."""

    def __init__(self, schema: type[_T], form: str = "json") -> None:
        """``form`` is ``json`` or ``msgpack``; raises ConfigError."""
        if form not in ("json", "msgpack"):
            raise ConfigError(f"form {form!r}: must be json or msgpack")
        self._msgspec = _package("msgspec")
        self._schema = schema
        module = importlib.import_module(f"msgspec.{form}")
        try:
            self._decoder = module.Decoder(schema)
        except TypeError as error:
            raise ConfigError(f"codec for {_name_of(schema)}: {error}") from None
        self._encoder = module.Encoder()

    def encode(self, value: _T) -> bytes:
        """Return the encoded value; raises InvalidMessage."""
        _check_kind(self._schema, value)
        try:
            return cast("bytes", self._encoder.encode(value))
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"the value cannot be encoded: {error}") from error

    def decode(self, body: bytes) -> _T:
        """Return the decoded value; raises InvalidBody."""
        try:
            return cast("_T", self._decoder.decode(body))
        except (self._msgspec.DecodeError, ValueError) as error:
            raise InvalidBody(f"the body is not a valid {_name_of(self._schema)}: {error}") from error


class PydanticCodec(Generic[_T]):
    """JSON with a schema, by pydantic 2: models, dataclasses, TypedDicts and other types."""

    def __init__(self, schema: type[_T]) -> None:
        """Raises ConfigError."""
        pydantic = _package("pydantic")
        self._schema = schema
        self._invalid: Any = pydantic.ValidationError
        try:
            self._adapter = pydantic.TypeAdapter(schema)
        except pydantic.PydanticUserError as error:
            raise ConfigError(f"codec for {_name_of(schema)}: {error}") from None

    def encode(self, value: _T) -> bytes:
        """Return JSON; raises InvalidMessage."""
        _check_kind(self._schema, value)
        try:
            return cast("bytes", self._adapter.dump_json(value, warnings="error"))
        except ValueError as error:
            raise InvalidMessage(f"the value cannot be encoded: {error}") from error

    def decode(self, body: bytes) -> _T:
        """Return the validated value; raises InvalidBody."""
        try:
            return cast("_T", self._adapter.validate_json(body))
        except self._invalid as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            reasons = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in found]
            more = f" and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
            text = "; ".join(reasons[:_MAX_REASONS]) + more
            raise InvalidBody(f"the body is not a valid {_name_of(self._schema)}: {text}") from error


BYTES: Final = BytesCodec()
TEXT: Final = TextCodec()
JSON: Final = JSONCodec()


@overload
def codec_of(wanted: Codec[_T]) -> Codec[_T]: ...


@overload
def codec_of(wanted: type[_T]) -> Codec[_T]: ...


def codec_of(wanted: Any) -> Any:
    """Return the codec for a type, or ``wanted`` itself if it is a codec; raises ConfigError.

    ``bytes``, ``str``, ``dict``, ``list`` and ``Any`` need no package. A pydantic model selects pydantic. Other types,
    such as Structs, dataclasses and lists of them, select msgspec, or pydantic if msgspec is not installed.
    """
    if wanted not in (bytes, str) and hasattr(wanted, "encode") and hasattr(wanted, "decode"):
        if isinstance(wanted, type):
            raise ConfigError(f"codec {wanted.__name__}: pass an object, such as {wanted.__name__}(...), not the class")
        return wanted
    simple = {bytes: BYTES, str: TEXT, Any: JSON, object: JSON, dict: JSONCodec(dict), list: JSONCodec(list)}
    try:
        found = simple.get(wanted)
    except TypeError:
        found = None
    if found is not None:
        return found
    if not isinstance(wanted, type) and getattr(wanted, "__origin__", None) is None and not hasattr(wanted, "__args__"):
        raise ConfigError(f"codec {wanted!r}: must be a type, or have the methods encode and decode")
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(wanted, type) and issubclass(wanted, pydantic.BaseModel):
        return PydanticCodec(wanted)
    for name, kind in (("msgspec", MsgspecCodec), ("pydantic", PydanticCodec)):
        if _is_installed(name):
            return kind(wanted)
    raise ConfigError(f"a codec for {_name_of(wanted)} needs msgspec or pydantic: pip install 'nsqx[msgspec]'")


def decoded(codec: Codec[_T], body: bytes) -> _T:
    """Return the value of a body; raises InvalidBody, also for the other errors of a codec."""
    try:
        return codec.decode(body)
    except InvalidBody:
        raise
    except Exception as error:
        raise InvalidBody(f"the body cannot be decoded: {type(error).__name__}: {error}") from error


def encoded(codec: Codec[_T], topic: str, value: _T) -> bytes:
    """Return the body of a value for ``topic``; raises InvalidMessage, also for the other errors of a codec."""
    try:
        return codec.encode(value)
    except InvalidMessage as error:
        raise InvalidMessage(f"publish to {topic}: {error}") from error.__cause__
    except Exception as error:
        raise InvalidMessage(f"publish to {topic}: the value cannot be encoded: {error}") from error


def _check_kind(schema: Any, value: object) -> None:
    """Raise InvalidMessage for a value of another class. Types that are not plain classes are not checked."""
    if isinstance(schema, type) and hasattr(schema, "__annotations__"):
        try:
            is_valid = isinstance(value, schema)
        except TypeError:  # a TypedDict
            return
        if not is_valid:
            raise InvalidMessage(f"the value must be {_name_of(schema)}, not {type(value).__name__}")


def _name_of(schema: Any) -> str:
    return schema.__name__ if isinstance(schema, type) and not hasattr(schema, "__args__") else str(schema)


def _is_installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"this codec needs the package {name}: pip install 'nsqx[{name}]'") from None
