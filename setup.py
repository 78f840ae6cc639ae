"""Compiles the hot modules; everything else about the package is in pyproject.toml.

A hot module is a plain ``.py`` file with a sibling ``.pxd`` that types it. NSQX_PURE=1 installs them uncompiled.
"""

import os

from setuptools import setup

HOT_MODULES = [
    "nsqx.wire.message",
    "nsqx.wire.commands",
    "nsqx.wire.batches",
    "nsqx.queues.files",
    "nsqx.queues.ids",
    "nsqx.queues.deadlines",
    "nsqx.queues.record_reader",
    "nsqx.queues.diskqueue",
    "nsqx.queues.backlog",
    "nsqx.queues.log.batch",
    "nsqx.queues.log.tail",
    "nsqx.queues.log.index",
    "nsqx.queues.log.segment",
    "nsqx.queues.log.commit_file",
    "nsqx.queues.log.log",
    "nsqx.queues.log.jobs",
    "nsqx.queues.log.reader",
    "nsqx.queues.log.store",
    "nsqx.queues.log.window",
    "nsqx.nsqd.output",
    "nsqx.net.read_pause",
    "nsqx.nsqd.client",
    "nsqx.nsqd.busy_poll",
    "nsqx.nsqd.turn",
    "nsqx.nsqd.group_commit",
    "nsqx.nsqd.free_disk",
    "nsqx.nsqd.histogram",
    "nsqx.nsqd.log_commits",
    "nsqx.nsqd.log_flow",
    "nsqx.nsqd.ready_clients",
    "nsqx.nsqd.channel_store",
    "nsqx.nsqd.channel",
    "nsqx.nsqd.classic_store",
    "nsqx.nsqd.log_cursor",
    "nsqx.nsqd.topic_flow",
    "nsqx.nsqd.topic",
    "nsqx.nsqd.classic_flow",
    "nsqx.nsqd.session",
    "nsqx.nsqd.heartbeat",
    "nsqx.nsqd.connection",
    "nsqx.wire.responses",
    "nsqx.client.connection",
    "nsqx.client.publisher",
    "nsqx.client.deadlines",
    "nsqx.client.producer",
    "nsqx.client.subscription",
    "nsqx.client.dispatcher",
    "nsqx.net.request_reader",
    "nsqx.net.http_connection",
    "nsqx.spark.columns",
    "nsqx.spark.dedup",
    "nsqx.spark.log_columns",
    "nsqx.bench.drain",
]


def extensions():
    if os.environ.get("NSQX_PURE") == "1":
        return []
    from Cython.Build import cythonize
    from setuptools import Extension

    modules = [
        Extension(name, [f"src/{name.replace('.', '/')}.py"], extra_compile_args=["-O2", "-g0"]) for name in HOT_MODULES
    ]
    directives = {
        "language_level": 3,
        "annotation_typing": False,
        "boundscheck": False,
        "wraparound": False,
        "initializedcheck": False,
        "cdivision": True,
    }
    return cythonize(modules, compiler_directives=directives, build_dir="build", nthreads=os.cpu_count() or 1)


setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count()}})
