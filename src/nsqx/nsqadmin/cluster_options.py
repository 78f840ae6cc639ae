"""Several clusters in one nsqadmin: their options, from ``[[cluster]]`` tables, and their paths.

The options of the command line and of the file are those of the first cluster, and the defaults of the others. A table
names a cluster and its addresses, and may change other options of it. Its pages and its API are at
``BASE_PATH/clusters/NAME``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqx.errors import ConfigError
from nsqx.gotext import quote
from nsqx.nsqadmin.inventory_file import IN_MEMORY
from nsqx.nsqadmin.options import CLUSTER_FLAGS, NsqadminOptions, normalized_base_path, validate

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

DEFAULT_NAME = "default"
MAX_CLUSTERS = 50
_NAME = re.compile("[a-z0-9][a-z0-9_-]{0,31}")
_ADDRESSES = ("nsqlookupd_http_addresses", "nsqd_http_addresses")
_TOKENS = ("auth_token", "view_token", "consume_token", "operate_token")


class ClusterLink(NamedTuple):
    """The name of a cluster and the path of its pages, with a slash at the end."""

    name: str
    path: str


def all_clusters(options: NsqadminOptions) -> list[NsqadminOptions]:
    """Return the valid options of every cluster, ``options`` first; raises ConfigError."""
    raw = deepcopy(options)
    validate(options)
    if not options.cluster:
        return [options]
    if len(options.cluster) >= MAX_CLUSTERS:
        raise ConfigError(f"{len(options.cluster)} [[cluster]] tables: use less than {MAX_CLUSTERS}")
    options.cluster_name = options.cluster_name or DEFAULT_NAME
    _read_name("cluster_name: ", options.cluster_name)
    every = [options]
    for number, table in enumerate(options.cluster, 1):
        each = _read_table(number, table, raw)
        if each.cluster_name in [other.cluster_name for other in every]:
            raise ConfigError(f"[[cluster]] table {number}: the name {quote(each.cluster_name)} is used twice")
        every.append(each)
    return every


def cluster_links(every: Sequence[NsqadminOptions]) -> list[ClusterLink]:
    """Return the links to all clusters; empty if there is only one."""
    if len(every) < 2:
        return []
    return [ClusterLink(each.cluster_name, f"{each.base_path.rstrip('/')}/") for each in every]


def _read_table(number: int, table: Mapping[str, Any], raw: NsqadminOptions) -> NsqadminOptions:
    where = f"[[cluster]] table {number}: "
    name = _read_name(f"{where}name: ", table.get("name"))
    by_key = {flag.key: flag for flag in CLUSTER_FLAGS}
    changes: dict[str, Any] = {key: [] for key in _ADDRESSES}
    for key, value in table.items():
        if key == "name":
            continue
        flag = by_key.get(key)
        if flag is None:
            raise ConfigError(f"{where}unknown key {quote(key)}: use name and options that belong to one cluster")
        try:
            changes[key] = flag.kind.read_toml(value, flag.default)
        except ValueError as error:
            raise ConfigError(f"{where}invalid {key} - {error}") from None
    for token in _TOKENS:
        # A token in one form replaces that of the first cluster in the other form.
        if token in changes or f"{token}_file" in changes:
            changes = {token: "", f"{token}_file": "", **changes}
    changes.setdefault("state_file", _own_state_file(raw.state_file, name))
    base_path = f"{normalized_base_path(raw.base_path).rstrip('/')}/clusters/{name}"
    if raw.external_url:
        changes.setdefault("external_url", f"{raw.external_url.rstrip('/')}/clusters/{name}")
    options = replace(deepcopy(raw), **changes, cluster=[], cluster_name=name, base_path=base_path)
    try:
        validate(options)
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    return options


def _read_name(where: str, name: object) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        shown = quote(name) if isinstance(name, str) else str(name)
        raise ConfigError(f"{where}invalid name {shown}: use 1 to 32 of a-z 0-9 _ -")
    return name


def _own_state_file(path: str, name: str) -> str:
    """Return the file of a further cluster beside that of the first one."""
    if path in ("", IN_MEMORY):
        return path
    stem, extension = os.path.splitext(path)
    return f"{stem}-{name}{extension}"


class ClusterPaths:
    """Passes each request to the application of its cluster."""

    def __init__(self, main: ASGIApp, others: Mapping[str, ASGIApp]) -> None:
        """``others`` has the application of every further cluster by its path."""
        self._main = main
        self._others = dict(others)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        for prefix, app in self._others.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                await app(scope, receive, send)
                return
        await self._main(scope, receive, send)
