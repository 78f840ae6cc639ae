"""Shared flags of the commands that use Spark, and the check for its packages."""

from importlib.util import find_spec

from nsqx.cli.contexts import CONTEXT_FLAG
from nsqx.errors import ConfigError
from nsqx.flags import STRING, STRINGS, Flag
from nsqx.spark.session import check_pyspark
from nsqx.tools.sources import CLIENT_OPTIONS

MASTER_FLAG = Flag(
    "master",
    STRING,
    "",
    "Spark master: local[4], spark://host:7077, sc://host:15002 (Spark Connect); default all cores of this machine",
)

# For commands without a file that contains the address of the cluster.
CLUSTER_FLAGS = (
    MASTER_FLAG,
    CONTEXT_FLAG,
    Flag("lookupd", STRINGS, [], "HTTP address of an nsqlookupd (may be repeated); default $NSQX_LOOKUPD, else local"),
    Flag("nsqd", STRINGS, [], "TCP address of an nsqd (may be repeated); default $NSQX_NSQD, else local"),
    Flag(
        "client-opt",
        CLIENT_OPTIONS,
        [],
        "`option,value` of the NSQ client, such as tls_v1,true or lookupd_http_token_file,FILE (may be repeated)",
        config_key="client_options",
    ),
    Flag("set", STRINGS, [], "`spark.x.y=value`, a setting of Spark (may be repeated)"),
)


def check_packages() -> None:
    """Raise ConfigError unless the packages that the modules of pipelines import are installed."""
    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            raise ConfigError(f"{name} is not installed: pip install 'nsqx[spark]'")
    check_pyspark()
