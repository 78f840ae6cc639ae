#!/opt/nsqx/bin/python -IS
"""Run a command, or an executor of Spark on Kubernetes.

Spark starts a pod of an executor with the argument `executor`, and puts everything else into environment variables.
"""

import os
import re
import sys

BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# The flags of the backend, and the variables with their values.
FLAGS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
# Spark sets these for the class path, or they are empty.
CLASS_PATH = ("SPARK_CONF_DIR", "SPARK_CLASSPATH", "SPARK_EXTRA_CLASSPATH", "HADOOP_CONF_DIR")


def executor_command(environment: dict[str, str]) -> list[str]:
    """Return the command line of the executor that the environment describes; exit with 2 if a variable is missing."""
    missing = [name for name in ("SPARK_EXECUTOR_MEMORY", *FLAGS.values()) if name not in environment]
    if missing:
        print(f"spark-entrypoint: {missing[0]} is not set: only Spark on Kubernetes starts executors", file=sys.stderr)
        sys.exit(2)
    numbered = {int(found[1]): value for name, value in environment.items() if (found := _JAVA_OPTION.fullmatch(name))}
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    places = [*filter(None, (environment.get(name) for name in CLASS_PATH)), f"{environment['SPARK_HOME']}/jars/*"]
    java = f"{environment['JAVA_HOME']}/bin/java" if "JAVA_HOME" in environment else "java"
    flags = [word for flag, name in FLAGS.items() for word in (flag, environment[name])]
    options = [numbered[number] for number in sorted(numbered)]
    return [java, *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", ":".join(places), BACKEND, *flags]


def main() -> None:
    words = sys.argv[1:]
    command = executor_command(dict(os.environ)) if words[:1] == ["executor"] else words
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
