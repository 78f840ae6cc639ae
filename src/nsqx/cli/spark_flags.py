"""What the commands on Spark share: their flags, and a clear word where its packages are not installed."""

from importlib.util import find_spec

from nsqx.errors import ConfigError
from nsqx.flags import STRING, STRINGS, Flag
from nsqx.spark.session import check_pyspark
from nsqx.tools.sources import CLIENT_OPTIONS

MASTER_FLAG = Flag(
    "master", STRING, "", "Spark's master, such as local[4] or spark://host:7077; else all cores of this machine"
)

# Of commands that have no file which says where the cluster is.
CLUSTER_FLAGS = (
    MASTER_FLAG,
    Flag("lookupd", STRINGS, [], "HTTP address of an nsqlookupd, may be repeated; else $NSQX_LOOKUPD or local"),
    Flag("nsqd", STRINGS, [], "TCP address of an nsqd, may be repeated; else $NSQX_NSQD or local"),
    Flag(
        "client-opt",
        CLIENT_OPTIONS,
        [],
        "`option,value` of the NSQ client, such as tls_v1,true or lookupd_http_token_file,FILE; may be repeated",
        config_key="client_options",
    ),
    Flag("set", STRINGS, [], "`spark.x.y=value`, a setting of Spark; may be repeated"),
)


def check_packages() -> None:
    """Raise ConfigError unless the packages are here, without which the modules of pipelines cannot be imported."""
    for name in ("pyspark", "pyarrow"):
        if find_spec(name) is None:
            raise ConfigError(f"{name} is missing: install with pip install 'nsqx[spark]'")
    check_pyspark()
