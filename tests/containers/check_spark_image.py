"""The image with Spark: containers of it read a topic on a cluster, and its entry point starts executors.

`make image SPARK=1` builds the image and runs these tests.
"""

import json
import os
import subprocess

import pytest

from containers import LIMITS, PODMAN, Container, new_host, nsqd, podman, removed, require_podman
from daemons import wait_until

pytestmark = pytest.mark.timeout(900)

SPARK_IMAGE = os.environ.get("NSQX_SPARK_IMAGE", "nsqx-spark")
# Spark writes to its working directory and to /tmp.
RUN_FLAGS = ("--network=host", "--cap-drop=ALL", *LIMITS)
COUNT = 5000
DRIVER = """\
import sys
from pyspark.sql import SparkSession

nsqd, master, host = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.driver.host", host)
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .getOrCreate()
)
frame = spark.read.format("nsq").option("nsq.nsqd", nsqd).option("subscribe", "orders").load()
row = frame.selectExpr(
    "count(*)", "count(DISTINCT value)", "sum(CAST(CAST(value AS STRING) AS BIGINT))"
).collect()[0]
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("ROW", *row, executors)
"""


@pytest.fixture(scope="module", autouse=True)
def _image() -> None:
    require_podman()
    if subprocess.run([*PODMAN, "image", "exists", SPARK_IMAGE], check=False).returncode != 0:
        pytest.skip(f"there is no image {SPARK_IMAGE}: run make image SPARK=1")


class SparkDaemon(Container):
    """A master or a worker of a standalone cluster."""

    def __init__(self, name: str, host: str, *words: str) -> None:
        command = ["spark-class", f"org.apache.spark.deploy.{name}", "--host", host, "--webui-port", "0", *words]
        super().__init__(command, host, (0, 0))
        self._sign = {"master.Master": "Starting Spark master at", "worker.Worker": "Successfully registered"}[name]
        self._words = command

    def run(self, image: str = SPARK_IMAGE) -> None:
        flags = (*RUN_FLAGS, f"--env=SPARK_LOCAL_IP={self.host}", "--env=SPARK_DAEMON_MEMORY=256m")
        podman("run", "--detach", f"--name={self.name}", *flags, image, *self._words)
        try:
            wait_until(lambda: self._sign in self.log, self._sign, 180)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-2000:]}") from None


def test_a_cluster_of_the_image_reads_a_topic() -> None:
    host = new_host()
    broker = nsqd(host, "--store=log")
    master = SparkDaemon("master.Master", host, "--port", "7077")
    worker = SparkDaemon("worker.Worker", host, "--cores", "1", "--memory", "1g", f"spark://{host}:7077")
    with removed(broker, master, worker):
        broker.run()
        body = "\n".join(map(str, range(COUNT))).encode()
        assert broker.get("/mpub?topic=orders", "POST", body)[0] == 200
        master.run()
        worker.run()
        environment = (f"--env=SPARK_LOCAL_IP={host}", "--env=SPARK_HOME=/opt/spark")
        words = ("python", "-c", DRIVER, broker.tcp_address, f"spark://{host}:7077", host)
        printed = podman("run", "--rm", *RUN_FLAGS, *environment, SPARK_IMAGE, *words)
    assert f"ROW {COUNT} {COUNT} {sum(range(COUNT))} 1" in printed


def test_the_entry_point_starts_the_executor_that_the_environment_describes() -> None:
    host = new_host()
    variables = {
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{host}:7078",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": host,
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pipeline-exec-1",
        "SPARK_JAVA_OPT_0": "-Dspark.rpc.numRetries=1",
        "SPARK_JAVA_OPT_1": "-Dspark.rpc.lookupTimeout=5s",
    }
    flags = [f"--env={name}={value}" for name, value in variables.items()]
    done = subprocess.run(
        [*PODMAN, "run", "--rm", *RUN_FLAGS, *flags, SPARK_IMAGE, "executor"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    # The executor asks its driver for the configuration, and nothing listens there.
    assert done.returncode != 0
    assert "KubernetesExecutorBackend" in done.stderr, done.stderr[-3000:]
    assert f"Failed to connect to /{host}:7078" in done.stderr, done.stderr[-3000:]


def test_an_executor_outside_of_kubernetes_is_refused() -> None:
    done = subprocess.run(
        [*PODMAN, "run", "--rm", *RUN_FLAGS, SPARK_IMAGE, "executor"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        done.stderr == "spark-entrypoint: SPARK_EXECUTOR_MEMORY is not set: only Spark on Kubernetes starts executors\n"
    )


def test_the_image_has_the_commands_of_nsqx() -> None:
    image = json.loads(podman("inspect", SPARK_IMAGE))[0]
    print(f"\nimage with Spark: {image['Size'] / 1e6:.0f} MB")
    assert "usage: nsqx COMMAND" in podman("run", "--rm", *RUN_FLAGS, SPARK_IMAGE)
    assert podman("run", "--rm", *RUN_FLAGS, SPARK_IMAGE, "id", "-u") == "185\n"
