"""The parser reads pipeline files and rejects invalid ones, without Spark."""

import pytest

from nsqx.errors import ConfigError
from nsqx.pipeline.model import source_options
from nsqx.pipeline.parser import read_pipeline

GOOD = """
[pipeline]
name = "shop"

[nsq]
lookupd = "127.0.0.1:4161"

[source.orders]
topic = "orders"
schema = "id INT"

[sink.files]
from = "orders"
type = "parquet"
path = "out"
"""


@pytest.fixture
def read(tmp_path):
    def read(text=GOOD, **overrides):
        path = tmp_path / "shop.toml"
        path.write_text(text)
        settings = {name.replace("__", "."): value for name, value in overrides.items()}
        return read_pipeline(str(path), overrides=settings)

    return read


def test_paths_are_relative_to_the_file(read, tmp_path):
    pipeline = read()
    assert pipeline.state == str(tmp_path / "shop.state")
    assert pipeline.sinks["files"].path == str(tmp_path / "out")
    assert pipeline.dead_letters.directory == str(tmp_path / "shop.state" / "dead-letters")
    assert read(sink__files__path="s3://bucket/x").sinks["files"].path == "s3://bucket/x"
    assert read(pipeline__state="/state").state == "/state"


def test_each_sink_has_its_own_channel_and_segment_directory(read, tmp_path):
    pipeline = read()
    options = source_options(pipeline, pipeline.sources["orders"], pipeline.sinks["files"])
    assert options == {
        "nsq.lookupd": "127.0.0.1:4161",
        "subscribe": "orders",
        "channel": "shop.files",
        "segmentDir": str(tmp_path / "shop.state" / "files" / "segments-orders"),
    }
    pipeline = read(source__orders__channel="other", source__orders__max_rows_per_batch="100")
    options = source_options(pipeline, pipeline.sources["orders"], pipeline.sinks["files"])
    assert options["channel"] == "other.files"
    assert options["maxRowsPerTrigger"] == "100"


def test_command_line_addresses_override_those_of_the_file(read, tmp_path):
    read()
    pipeline = read_pipeline(str(tmp_path / "shop.toml"), nsqd=["127.0.0.1:4150"])
    assert pipeline.nsq.settings() == {"nsq.nsqd": "127.0.0.1:4150"}


def test_a_delay_may_be_a_go_duration_or_a_spark_interval(read):
    for delay, expected in (
        ("90s", "90000 milliseconds"),
        ("1h30m", "5400000 milliseconds"),
        ("10 minutes", "10 minutes"),
    ):
        pipeline = read(source__orders__watermark=f"{{ column = 'time', delay = '{delay}' }}")
        assert pipeline.sources["orders"].watermark.delay == expected


def test_a_schema_may_be_in_a_file(read, tmp_path):
    (tmp_path / "orders.ddl").write_text("id INT, name STRING\n")
    assert read(source__orders__schema="orders.ddl").sources["orders"].schema == "id INT, name STRING\n"


# The changed values, and the expected error.
WRONG = [
    ({"pipeline__nam": "x"}, "pipeline.nam: unknown key: did you mean name?"),
    ({"pipeline__name": "no good"}, "pipeline: invalid name 'no good': use 1 to 31 of a-z A-Z 0-9 _"),
    ({"pipelin__name": "x"}, "pipelin: unknown key: did you mean pipeline?"),
    ({"pipeline__trigger": "soon"}, "pipeline.trigger: 'soon' is not a duration"),
    ({"source__orders__topics": "more", "source__orders__pattern": "x"}, "source.orders.topic: set either topic"),
    ({"source__orders__topic": "no good"}, "source.orders.topic: invalid topic name 'no good': use 1 to 64 of"),
    ({"source__orders__format": "jsn"}, "source.orders.format: invalid value 'jsn': did you mean json?"),
    ({"source__orders__format": "text"}, "source.orders.schema: unknown key of a source of format text"),
    ({"source__orders__format": "avro"}, "source.orders.schema: an Avro schema must be a file"),
    (
        {"source__orders__format": "csv", "source__orders__schema": "infer"},
        "source.orders.schema: infer works only with",
    ),
    ({"source__orders__schema": "none.ddl"}, "source.orders.schema: "),
    ({"source__orders__dedup": "id"}, "source.orders.dedup: requires a watermark"),
    ({"source__orders__watermark": "time"}, "source.orders.watermark: must be a table"),
    ({"source__orders__watermark__delay": "1m"}, "source.orders.watermark.column: required, but not set"),
    (
        {"source__orders__options__maxInFlite": "1"},
        "source.orders: unknown option maxInFlite: did you mean maxInFlight?",
    ),
    ({"source__orders__options__channel": "x"}, "source.orders.options.channel: the pipeline sets it"),
    ({"source__orders__channel": "x" * 60}, "source.orders.channel: "),
    ({"source__ORDERS__topic": "x", "source__ORDERS__format": "raw"}, "source.ORDERS: a source has the same name"),
    ({"step__orders__sql": "SELECT 1"}, "step.orders: a source has the same name: rename one"),
    ({"step__a__sql": "SELECT 1", "step__a__function": "m:f"}, "step.a.sql: set exactly one of sql, file"),
    ({"step__a__function": "m.f", "step__a__from": "orders"}, "step.a.function: 'm.f' is not an import path"),
    (
        {"step__a__function": "m:f", "step__a__from": "no", "step__a__schema": "a INT"},
        "step.a.from: unknown source or step 'no': use one of orders",
    ),
    ({"table__a__path": "none.csv"}, "table.a.path: file or directory "),
    ({"table__a__path": "none"}, "table.a.format: required, but not set"),
    ({"sink__files__from": "order"}, "sink.files.from: unknown source or step 'order': use one of orders"),
    ({"sink__files__type": "parket"}, "sink.files.type: invalid value 'parket': did you mean parquet?"),
    ({"sink__files__mode": "update"}, "sink.files.mode: files support only append"),
    ({"sink__files__topic": "x"}, "sink.files.topic: unknown key of a sink of type parquet"),
    ({"sink__files__compression": "zip"}, "sink.files.compression: invalid value 'zip': did you mean gzip?"),
    ({"sink__db__from": "orders", "sink__db__type": "jdbc", "sink__db__url": "postgres://x"}, "sink.db.url: "),
    ({"dead_letter__topic": "a", "dead_letter__dir": "b"}, "dead_letter.topic: set either topic or dir, not both"),
    ({"dead_letter__topic": "orders"}, "dead_letter.topic: source orders reads this topic, which would be a loop"),
    ({"spark__master": "local"}, "spark.master: unknown key: use jars, packages or a setting of Spark"),
    ({"spark__jars": "none.jar"}, "spark.jars: file "),
]


@pytest.mark.parametrize(("overrides", "expected"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_errors_name_the_key(read, tmp_path, overrides, expected):
    with pytest.raises(ConfigError) as caught:
        read(**overrides)
    assert str(caught.value).startswith(f"{tmp_path / 'shop.toml'}: {expected}")
    assert "\n" not in str(caught.value)


def test_a_source_and_a_sink_are_required(read):
    with pytest.raises(ConfigError, match="source: a source is required"):
        read('[pipeline]\nname = "x"')
    with pytest.raises(ConfigError, match="sink: a sink is required"):
        read(GOOD.partition("[sink")[0])


def test_a_password_is_not_shown(read):
    settings = {"from": "orders", "type": "jdbc", "url": "jdbc:postgresql://h/d", "table": "t", "password": "secret"}
    pipeline = read(**{f"sink__db__{name}": value for name, value in settings.items()})
    assert pipeline.sinks["db"].password == "secret"
    assert "secret" not in repr(pipeline)
