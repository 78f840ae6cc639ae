"""Decoding of messages: the body becomes columns by its format, beside the columns ``_topic``, ``_id``,
``_timestamp``, ``_attempts`` and ``_node``.

Messages that cannot be decoded, or do not meet the requirements of the source, go to the dead letters. A streaming
query has one output, so this happens inside its plan: rejected rows take a separate branch, which writes them in the
executors and returns no rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nsqx.errors import ConfigError
from nsqx.pipeline.dead_letters import DeadLetter, DeadLetters
from nsqx.pipeline.decode_errors import NOT_UTF8, explain_json_error, unknown_fields

if TYPE_CHECKING:
    import pyarrow as pa

    from nsqx.pipeline.model import Source

META = {
    "topic": "_topic",
    "id": "_id",
    "timestamp": "_timestamp",
    "attempts": "_attempts",
    "node": "_node",
}
# Only in log mode, with the option includeOffset.
LOG_META = {"offset": "_offset", "log": "_log"}
_CORRUPT = "_corrupt_record"
# Internal columns: the original body, and the reason for rejecting the row.
_VALUE = "__value"
_REASON = "__reason"
INTERNAL = (_VALUE, _REASON)
_DECODED = "__decoded"
# A placeholder: the stage that writes the dead letters determines the reason.
_UNDECODABLE = "?"
# One message in this many is checked for fields that are not in the schema.
_DRIFT_SAMPLE = 64


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decodes one source. If ``dead_letters`` is None, rejected rows are dropped: another sink's query writes them."""

    source: Source
    schema: Any
    """A StructType; None for text and raw."""
    dead_letters: DeadLetters | None
    note_drift: Callable[[str], None]
    """Called in executors with the name of a field that is not in the schema."""

    def apply(self, raw: Any) -> Any:
        """Return the decoded rows of the source's messages."""
        rows = self._decode_avro(raw) if self.source.format == "avro" else self._decode_in_spark(raw)
        rows = self._require(rows)
        return self._divert_rejected(rows)

    def classify(self, raw: Any) -> tuple[Any, list[str], RejectedRows]:
        """Return all rows, the names of the columns of decoded rows, and the stage that splits the rows.

        Unlike ``apply`` this reads and decodes the messages once. The rows are for a stage of Python, in which the
        result of ``RejectedRows.split`` is written.
        """
        from pyspark.sql import functions as F  # noqa: N812

        rows = self._decode_avro(raw) if self.source.format == "avro" else self._decode_in_spark(raw)
        rows = self._require(rows)
        names = [*self._names(), *self._meta(rows)]
        # Other rows do not take their body along.
        value = F.when(self._is_diverted(), F.col(_VALUE)).alias(_VALUE)
        return rows.select(*(F.col(f"`{name}`") for name in names), value, _REASON), names, self._rejected()

    def _names(self) -> list[str]:
        return [field.name for field in self.schema.fields] if self.schema is not None else ["value"]

    def _decode_in_spark(self, raw: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.types import StringType, StructField, StructType

        kind = self.source.format
        undecodable = F.lit(_UNDECODABLE)
        no_reason = F.lit(None).cast("string")
        meta = [F.col(f"`{name}`").alias(alias) for name, alias in _meta_of(raw).items()]
        if kind == "raw":
            return raw.select("value", *meta, F.col("value").alias(_VALUE), no_reason.alias(_REASON))
        is_text = F.expr("is_valid_utf8(value)")
        if kind == "text":
            reason = F.when(is_text, no_reason).otherwise(F.lit(NOT_UTF8))
            return raw.select(
                F.col("value").cast("string").alias("value"),
                *meta,
                F.col("value").alias(_VALUE),
                reason.alias(_REASON),
            )
        read = F.from_json if kind == "json" else F.from_csv
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        if kind == "csv":
            options["sep"] = self.source.delimiter
        schema = StructType([*self.schema.fields, StructField(_CORRUPT, StringType())])
        # from_csv accepts a schema only as text.
        wanted: Any = schema if kind == "json" else schema.toDDL()
        row = F.struct(read(F.col("value").cast("string"), wanted, options).alias(_DECODED))
        # inline() of an array with one element: Spark would copy a plain column into every later filter and decode the
        # body each time.
        parsed = raw.select("*", F.inline(F.array(row)))
        decoded = F.col(_DECODED)
        wrong = decoded.isNull() | decoded[_CORRUPT].isNotNull() | ~is_text
        columns = [decoded[name].alias(name) for name in self._names()]
        reason = F.when(wrong, undecodable).otherwise(no_reason)
        return parsed.select(*columns, *meta, F.col("value").alias(_VALUE), reason.alias(_REASON))

    def _decode_avro(self, raw: Any) -> Any:
        from pyspark.sql.types import BinaryType, StringType, StructField, StructType

        from nsqx.pipeline.avro import avro_reader

        by_name = {field.name: field for field in raw.schema.fields}
        meta = [StructField(alias, by_name[name].dataType) for name, alias in _meta_of(raw).items()]
        kept = [StructField(_VALUE, BinaryType()), StructField(_REASON, StringType())]
        out = StructType([*self.schema.fields, *meta, *kept])
        read = avro_reader(self.source.schema, self.source.framing)
        width = len(self.schema.fields)
        stage = _AvroStage(self._origin, read, out.jsonValue(), width, _meta_of(raw), self.dead_letters)
        return raw.mapInArrow(stage, out)

    def _require(self, rows: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        for number, condition in enumerate(self.source.require):
            try:
                holds = F.coalesce(F.expr(condition).cast("boolean"), F.lit(False))
                missed = F.when(F.col(_REASON).isNotNull(), F.col(_REASON)).when(
                    ~holds, F.lit(f"does not meet the requirement: {condition}")
                )
                rows = rows.withColumn(_REASON, missed)
                rows.schema  # noqa: B018  (Spark Connect puts off the analysis)
            except Exception as error:
                raise RequirementWrong(number, condition) from error
        return rows

    def _divert_rejected(self, rows: Any) -> Any:
        from pyspark.sql import functions as F  # noqa: N812

        columns = [F.col(f"`{name}`") for name in (*self._names(), *self._meta(rows))]
        good = rows.filter(F.col(_REASON).isNull()).select(*columns)
        can_be_wrong = self.source.format in ("json", "csv", "text") or self.source.require
        if self.dead_letters is None or not can_be_wrong:
            return good
        diverted = rows.filter(self._is_diverted()).select(_VALUE, *META.values(), _REASON)
        return good.union(diverted.mapInArrow(self._rejected(), good.schema))

    @staticmethod
    def _meta(rows: Any) -> list[str]:
        return [alias for alias in (*META.values(), *LOG_META.values()) if alias in rows.columns]

    def _is_diverted(self) -> Any:
        """Return the condition for rows whose body Python looks at: rejected ones, and a sample of the others."""
        from pyspark.sql import functions as F  # noqa: N812

        is_rejected = F.col(_REASON).isNotNull()
        if self.source.format != "json":
            return is_rejected
        return is_rejected | (F.pmod(F.xxhash64("_id"), F.lit(_DRIFT_SAMPLE)) == 0)

    def _rejected(self) -> RejectedRows:
        schema = self.schema.jsonValue() if self.source.format == "json" else None
        return RejectedRows(self._origin, self.source.format, schema, self.dead_letters, self.note_drift)

    @property
    def _origin(self) -> str:
        return f"source.{self.source.name}"


def _meta_of(raw: Any) -> dict[str, str]:
    return META | {name: alias for name, alias in LOG_META.items() if name in raw.columns}


class RequirementWrong(ConfigError):
    """A condition of ``require`` is not valid SQL over the source's columns; ``__cause__`` has the reason."""

    def __init__(self, number: int, condition: str) -> None:
        super().__init__(f"invalid condition {condition!r}")
        self.number = number


@dataclass(frozen=True, slots=True)
class RejectedRows:
    """Writes rejected rows to the dead letters, and checks a sample of the other rows for unknown fields."""

    origin: str
    format: str
    schema: Any
    dead_letters: DeadLetters | None
    """None to drop rejected rows: another query writes them."""
    note_drift: Callable[[str], None]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process diverted rows; yields nothing."""
        self.write([letter for batch in batches for letter in self._letters(batch)])
        return iter(())

    def split(self, batch: pa.RecordBatch, names: list[str]) -> tuple[pa.RecordBatch, list[DeadLetter]]:
        """Return the decoded rows of a batch of ``Decoder.classify``, and its dead letters, which are to be written."""
        import pyarrow.compute as pc

        values, reasons = batch.column(_VALUE), batch.column(_REASON)
        letters: list[DeadLetter] = []
        if values.null_count < batch.num_rows:
            letters = self._letters(batch.filter(pc.is_valid(values)))
        if reasons.null_count < batch.num_rows:
            batch = batch.filter(pc.is_null(reasons))
        return batch.select(names), letters

    def write(self, letters: list[DeadLetter]) -> None:
        """Write dead letters."""
        if self.dead_letters is not None:
            self.dead_letters.write(self.origin, letters)

    def _letters(self, batch: pa.RecordBatch) -> list[DeadLetter]:
        letters: list[DeadLetter] = []
        for row in batch.select([_VALUE, *META.values(), _REASON]).to_pylist():
            if row[_REASON] is None:
                for name in unknown_fields(row[_VALUE], self.schema):
                    self.note_drift(name)
            else:
                letters.append(dead_letter_of(row, self._reason(row)))
        return letters

    def _reason(self, row: dict[str, Any]) -> str:
        if row[_REASON] != _UNDECODABLE:
            return str(row[_REASON])
        if self.format == "json":
            return explain_json_error(row[_VALUE], self.schema)
        try:
            row[_VALUE].decode("utf-8")
        except UnicodeDecodeError:
            return NOT_UTF8
        return f"the value does not match the {self.format} schema"


def dead_letter_of(row: dict[str, Any], reason: str) -> DeadLetter:
    """Return a row of these stages as a dead letter."""
    return DeadLetter(row[_VALUE], reason, *(row[alias] for alias in META.values()))


@dataclass(frozen=True, slots=True)
class _AvroStage:
    """Decodes Avro in Python, because pyspark does not contain Spark's Avro module, and writes the dead letters."""

    origin: str
    read: Callable[[bytes], dict[str, Any]]
    schema: Any
    """The output schema, in its JSON form."""
    width: int
    """The number of columns that come from the record."""
    meta: dict[str, str]
    dead_letters: DeadLetters | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from nsqx.pipeline.arrow import arrow_schema_of, rows_to_batch

        schema = arrow_schema_of(self.schema)
        names = schema.names[: self.width]
        letters: list[DeadLetter] = []
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for message in batch.to_pylist():
                kept = {alias: message[name] for name, alias in self.meta.items()}
                kept |= {_VALUE: message["value"], _REASON: None}
                try:
                    record = self.read(message["value"])
                    rows.append({name: record.get(name) for name in names} | kept)
                except Exception as error:  # the decoder may raise anything on invalid bytes
                    reason = f"the value is not a record of this Avro schema: {error or type(error).__name__}"
                    letters.append(dead_letter_of(kept, reason))
            good, wrong = rows_to_batch(rows, schema)
            letters.extend(dead_letter_of(row, f"the record does not match the schema: {why}") for row, why in wrong)
            if isinstance(good, pa.RecordBatch) and good.num_rows:
                yield good
        if self.dead_letters is not None:
            self.dead_letters.write(self.origin, letters)
