"""Contexts: named clusters with their addresses, certificates and tokens, in one file of the user.

The file is nsqx/contexts.toml in ``$XDG_CONFIG_HOME`` (default ~/.config), with mode 0600. A command uses the context
that ``--context`` or ``$NSQX_CONTEXT`` names. Without one, and without addresses in flags or in the environment, it
uses the current context, which ``nsqx context use`` chooses.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nsqx.cli.did_you_mean import did_you_mean
from nsqx.errors import ConfigError
from nsqx.flags import STRING, Flag
from nsqx.names import is_valid_producer

CONTEXT_VARIABLE = "NSQX_CONTEXT"
CONTEXT_FLAG = Flag(
    "context",
    STRING,
    "",
    f"`name` of the cluster, see nsqx help context; default ${CONTEXT_VARIABLE}, else the current",
)
SECRET_FIELDS = ("nsqd_http_token", "lookupd_http_token", "auth_secret")
_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster. Empty values mean the defaults."""

    lookupd_http_addresses: list[str] = field(default_factory=list)
    nsqd_http_addresses: list[str] = field(default_factory=list)
    nsqd_tcp_addresses: list[str] = field(default_factory=list)
    nsqd_http_token: str = field(default="", repr=False)
    lookupd_http_token: str = field(default="", repr=False)
    auth_secret: str = field(default="", repr=False)
    tls_v1: bool = False
    """Use TLS for TCP connections."""
    tls_root_ca_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_insecure_skip_verify: bool = False

    @property
    def shown(self) -> dict[str, Any]:
        """The values that are set, with the secrets hidden."""
        values = {name: value for name, value in asdict(self).items() if value}
        return {name: "(set)" if name in SECRET_FIELDS else value for name, value in values.items()}

    @property
    def client_options(self) -> list[str]:
        """The options of TCP clients, as values of ``--consumer-opt``."""
        names = ("auth_secret", "tls_v1", "tls_root_ca_file", "tls_cert", "tls_key", "tls_insecure_skip_verify")
        return [f"{name},{_text(getattr(self, name))}" for name in names if getattr(self, name)]


def _text(value: str | bool) -> str:
    return "true" if value is True else str(value)


class ContextFile:
    """The contexts of the user; a missing file has none."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read the file; raises ConfigError."""
        self._environment = environment
        base = environment.get("XDG_CONFIG_HOME", "")
        if not os.path.isabs(base):  # a file in the current directory could name another cluster
            base = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".config")
        self.path = Path(base) / "nsqx" / "contexts.toml"
        self.current = ""
        self.contexts: dict[str, Context] = {}
        try:
            mode = self.path.stat().st_mode
            document = tomllib.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.path}: {getattr(error, 'strerror', None) or f'invalid TOML: {error}'}") from None
        self._read(document)
        has_secrets = any(getattr(each, name) for each in self.contexts.values() for name in SECRET_FIELDS)
        if has_secrets and mode & 0o077:
            raise ConfigError(f"{self.path} contains tokens and other users may read it: chmod 600 {self.path}")

    def _read(self, document: dict[str, Any]) -> None:
        tables = document.get("context", {})
        self.current = document.get("current", "")
        if not isinstance(self.current, str) or not isinstance(tables, dict):
            raise ConfigError(f"{self.path}: current must be a name, and context a table of tables")
        for name, table in tables.items():
            self.contexts[name] = self._context(name, table)

    def _context(self, name: str, table: object) -> Context:
        if not isinstance(table, dict):
            raise ConfigError(f"{self.path}: context.{name} must be a table")
        kinds = {each.name: type(getattr(Context(), each.name)) for each in fields(Context)}
        for key, value in table.items():
            if key not in kinds:
                raise ConfigError(f"{self.path}: unknown key context.{name}.{key}{did_you_mean(key, kinds)}")
            if type(value) is not kinds[key] or (type(value) is list and not all(type(each) is str for each in value)):
                raise ConfigError(f"{self.path}: invalid context.{name}.{key}: use a {_KIND_WORDS[kinds[key]]}")
        return Context(**table)

    def get(self, name: str) -> Context:
        """Return a context; raises ConfigError."""
        if name not in self.contexts:
            known = f"; the contexts are {', '.join(self.contexts)}" if self.contexts else "; nsqx context add adds one"
            raise ConfigError(f'no context is named "{name}"{did_you_mean(name, self.contexts) or known}')
        return self.contexts[name]

    def save(self) -> None:
        """Write the file, readable by the user only; raises ConfigError."""
        lines = [f"current = {json.dumps(self.current)}"]
        for name, context in self.contexts.items():
            lines += ["", f"[context.{json.dumps(name)}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in asdict(context).items() if value]
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkstemp creates the file with mode 0600.
            descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".contexts-")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write("".join(f"{line}\n" for line in lines))
                    file.flush()
                    os.fsync(descriptor)
                os.chmod(temporary, _MODE)
                os.replace(temporary, self.path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from None


_KIND_WORDS: dict[type, str] = {list: "list of strings", str: "string", bool: "boolean"}


def _toml(value: object) -> str:
    # JSON's strings, lists of strings and booleans without control characters are valid TOML.
    return json.dumps(value, ensure_ascii=False)


def check_context_name(name: str) -> None:
    """Raise ConfigError unless a name can be that of a context."""
    if not is_valid_producer(name):
        raise ConfigError(f"invalid context name {name!r}: use 1 to 64 of a-z A-Z 0-9 . _ -")


def chosen_context(
    name: str, *, has_addresses: bool, address_variables: tuple[str, ...], environment: Mapping[str, str] = os.environ
) -> Context | None:
    """Return the context for a command, or None; raises ConfigError.

    ``name`` is the value of ``--context``. With addresses in flags, only a context that is named there counts: the
    credentials of another cluster are not sent to them.
    """
    if name:
        return ContextFile(environment).get(name)
    if has_addresses:
        return None
    name = environment.get(CONTEXT_VARIABLE, "")
    if name:
        return ContextFile(environment).get(name)
    if any(environment.get(variable) for variable in address_variables):
        return None
    file = ContextFile(environment)
    return file.get(file.current) if file.current else None
