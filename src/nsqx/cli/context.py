"""nsqx context: adds, lists, shows, chooses and removes contexts, the named clusters of the user.

      nsqx context add NAME --lookupd-http-address=HOST:PORT [--nsqd-http-token-file=FILE] …
      nsqx context use NAME

Tokens are copied from files into the file of the contexts, so they never are on a command line.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsqx.cli.command_line import read_words, usage_error
from nsqx.cli.contexts import Context, ContextFile, check_context_name
from nsqx.cli.json_lines import JSON_FLAG, print_json
from nsqx.errors import ConfigError, NSQError
from nsqx.flags import BOOL, STRING, STRINGS, Flag, UsageError
from nsqx.tools.colours import GREEN, paint
from nsqx.tools.table import print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "nsqx context"
VERBS = ("add", "use", "ls", "show", "rm")
_ADDRESSES = ("lookupd_http_addresses", "nsqd_http_addresses", "nsqd_tcp_addresses")
_TOKEN_FLAGS = {
    "nsqd_http_token": "nsqd-http-token-file",
    "lookupd_http_token": "lookupd-http-token-file",
    "auth_secret": "auth-secret-file",
}

FLAGS: tuple[Flag, ...] = (
    Flag("use", BOOL, False, "add: make it the current context"),
    Flag("replace", BOOL, False, "add: replace a context of this name", config_key="is_replaced"),
    JSON_FLAG,
    Flag("lookupd-http-address", STRINGS, [], "add: HTTP address of an nsqlookupd (may be repeated)", _ADDRESSES[0]),
    Flag("nsqd-http-address", STRINGS, [], "add: HTTP address of an nsqd (may be repeated)", _ADDRESSES[1]),
    Flag("nsqd-tcp-address", STRINGS, [], "add: TCP address of an nsqd (may be repeated)", _ADDRESSES[2]),
    Flag("nsqd-http-token-file", STRING, "", "add: `file` with the token for nsqd's HTTP API; the token is copied"),
    Flag("lookupd-http-token-file", STRING, "", "add: `file` with the token for nsqlookupd's HTTP API, copied too"),
    Flag("auth-secret-file", STRING, "", "add: `file` with the secret for the auth server of nsqd, copied too"),
    Flag("tls", BOOL, False, "add: TLS for TCP connections to nsqd", config_key="tls_v1"),
    Flag("tls-root-ca-file", STRING, "", "add: CA `file` to verify the certificates of the daemons"),
    Flag("tls-cert", STRING, "", "add: `file` of the client certificate"),
    Flag("tls-key", STRING, "", "add: `file` of its private key"),
    Flag("tls-insecure-skip-verify", BOOL, False, "add: accept any certificate of the daemons"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command on the contexts; return the exit code."""
    title = f"{PROGRAM} {'|'.join(VERBS)} [NAME]"
    try:
        values, words = read_words(FLAGS, sys.argv[1:] if argv is None else argv, title, most=2, verbs=VERBS)
        verb, name = [*words, ""][:2]
        if not name and verb in ("add", "use", "rm"):
            raise usage_error(title, "NAME is missing")
        file = ContextFile()
        {"add": _add, "use": _use, "ls": _list, "show": _show, "rm": _remove}[verb](file, name, values)
    except UsageError as error:
        return error.show()
    except NSQError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    return 0


def _add(file: ContextFile, name: str, values: Mapping[str, Any]) -> None:
    check_context_name(name)
    if name in file.contexts and not values["is_replaced"]:
        raise ConfigError(f"context {name} exists: --replace replaces it")
    if not any(values[each] for each in _ADDRESSES):
        raise ConfigError("an address is required: --lookupd-http-address, --nsqd-http-address or --nsqd-tcp-address")
    if bool(values["tls_cert"]) != bool(values["tls_key"]):
        raise ConfigError("--tls-cert and --tls-key must be given together")
    tls = ("tls_v1", "tls_root_ca_file", "tls_cert", "tls_key", "tls_insecure_skip_verify")
    for key in (*_ADDRESSES, *tls):
        for text in values[key] if isinstance(values[key], list) else [values[key]]:
            if isinstance(text, str) and not text.isprintable():
                raise ConfigError(f"invalid {key} {text!r}: it has control characters")
    chosen = {key: values[key] for key in (*_ADDRESSES, *tls)}
    chosen |= {key: _secret_in(values[flag.replace("-", "_")], f"--{flag}") for key, flag in _TOKEN_FLAGS.items()}
    file.contexts[name] = Context(**chosen)
    if values["use"] or not file.current:
        file.current = name
    file.save()
    hint = ", the current one" if file.current == name else f"; nsqx context use {name} chooses it"
    print(f"context {name} added{hint}")


def _secret_in(path: str, flag: str) -> str:
    """Return the first line of a file; raises ConfigError."""
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.readline().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag} {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(f"{flag} {path}: the first line must be a token without spaces")
    return text


def _use(file: ContextFile, name: str, _values: Mapping[str, Any]) -> None:
    file.get(name)
    file.current = name
    file.save()
    print(f"context {name} is the current one")


def _list(file: ContextFile, name: str, values: Mapping[str, Any]) -> None:
    if name:
        raise ConfigError(f"ls takes no name: nsqx context show {name} shows one")
    if values["is_json"]:
        for each, context in file.contexts.items():
            print_json({"name": each, "current": each == file.current, **context.shown})
    elif file.contexts:
        rows = [
            (
                paint(each, GREEN) if each == file.current else each,
                "yes" if each == file.current else "-",
                _where(context),
            )
            for each, context in file.contexts.items()
        ]
        print_table(("context", "current", "addresses"), rows, text_columns=3)
    else:
        print("no contexts: nsqx context add NAME --lookupd-http-address=HOST:PORT adds one")


def _where(context: Context) -> str:
    addresses = [address for name in _ADDRESSES for address in getattr(context, name)]
    return " ".join(addresses)


def _show(file: ContextFile, name: str, values: Mapping[str, Any]) -> None:
    name = name or file.current
    if not name:
        raise ConfigError("there is no current context: nsqx context use NAME chooses one")
    shown = {"name": name, "current": name == file.current, **file.get(name).shown}
    if values["is_json"]:
        print_json(shown)
        return
    for key, value in shown.items():
        text = " ".join(value) if isinstance(value, list) else {True: "yes", False: "no"}.get(value, value)
        print(f"{key}: {text}")


def _remove(file: ContextFile, name: str, _values: Mapping[str, Any]) -> None:
    file.get(name)
    del file.contexts[name]
    if file.current == name:
        file.current = ""
    file.save()
    print(f"context {name} removed{'' if file.current else '; there is no current context now'}")


if __name__ == "__main__":
    sys.exit(main())
