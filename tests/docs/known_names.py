"""Decides whether a name in the documentation exists.

A name resolves if the package, the repository or a command line defines it, or if the list of names from elsewhere has
it. A span with several names, such as a command or a JSON object, resolves if each of them does.
"""

import ast
import builtins
import importlib
import re
import sys
import tomllib
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from code_names import HOLE, Code, Signature

# Folders that a path may be relative to, besides the folder of the page.
_BASES = ("", "src", "src/nsqx", "tests", "docs")
# Files whose words count as names: configuration, examples, measured operations and the marks of snippets.
_WRITTEN = (
    "deploy/**/*",
    "examples/**/*",
    "release/**/*",
    "pyproject.toml",
    "setup.py",
    "tests/bench/instruction_counts.json",
    "tests/docs/markdown_pages.py",
)
_FOLDERS = ("src", "tests", "docs", "deploy", "examples", "interop", "release", "ui", ".github")

_LETTER = re.compile(r"[A-Za-z]")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_CALL = re.compile(r"(?:await )?([A-Za-z_][\w.]*)\((.*)\)")
_FLAG = re.compile(r"--?([a-z][a-z0-9-]*?)(\*|=\S*)?")
_SCRIPT_FLAG = re.compile(r"""["']--([a-z][a-z0-9-]*)["']""")
_ROUTE = re.compile(r"(?:(?:GET|POST|PUT|DELETE|HEAD) )?(/[\w/:-]*)(\?[\w=&]*)?")
# Single letters, numbers, durations, sizes, dates, addresses, escapes and URLs are values, not names.
_VALUE = re.compile(
    r'[a-z]|"?-?[\d.:,/*%T\s-]+(ns|us|µs|ms|[smhdkgb]|[\dsmh]+)?"?|0[xob]|(\\u[0-9a-f]{4})+|[a-z0-9]+://[\w./:-]*'
)
_ASSIGNMENT = re.compile(r"([A-Z_]+)=\S+")
_ATOM = re.compile(r"""[^\s"'{}\[\](),;?|=&…:]+""")
_WORD = re.compile(r"[A-Za-z0-9_.@/-]+")
_TOKEN = re.compile(r"[A-Za-z0-9]+(?:[._/-]+[A-Za-z0-9]+)+|\b[A-Z]{3,}\b")
# An answer of nsqd: an error code and a description.
_CODED = re.compile(r"(E_[A-Z_]+) (.+)")
_PLACEHOLDER = re.compile(r"<[a-z ]+>")
_VARYING = re.compile(r"<[a-z ]+>|…|\*")
_ELLIPSIS = re.compile(r"\.\.\.|…|<[a-z ]+>")
# An f-string stands for a family of names if this many of its characters are fixed.
_MIN_FIXED = 4


@dataclass
class KnownNames:
    """Every name that the documentation may use."""

    code: Code
    root: Path
    """The folder of the repository."""
    commands: dict[str, set[str]]
    """The flags of each program and of each command of nsqx."""
    elsewhere: dict[str, list[str]]
    """Names that the project does not define, by kind. The kind ``programs`` holds the programs of other projects."""
    used: set[str] = field(default_factory=set)
    """The names of ``elsewhere`` that were needed so far."""

    def resolves(self, span: str, scope: Collection[str] = (), folder: Path | None = None) -> bool:
        """Return True if everything that ``span`` names exists.

        ``scope`` holds names that exist at this place only, such as parameters. ``folder`` is the folder of the page.
        """
        if self._exists(span, scope, folder):
            return True
        if self._is_command(span):
            return self._command_exists(span, scope)
        call = _CALL.fullmatch(span)
        if call is not None and self._parsed_call(span) is not None:
            return self._call_fits(span, scope)
        coded = _CODED.fullmatch(span)
        if coded is not None:
            return all(self.resolves(part, scope, folder) for part in coded.groups())
        if self._is_printed(span):
            return True
        if all(map(self._is_flag, span.split())):
            return True
        atoms = _ATOM.findall(_PLACEHOLDER.sub(" ", span))
        return bool(atoms) and atoms != [span] and all(self._exists(atom, scope, folder) for atom in atoms)

    def _exists(self, text: str, scope: Collection[str], folder: Path | None) -> bool:
        return (
            _LETTER.search(text) is None
            or _VALUE.fullmatch(text) is not None
            or text in scope
            or self._is_built(text)
            or self._is_name(text)
            or self._is_flag(text)
            or self._is_path(text, folder)
            or self._is_route(text)
            or self._is_written(text)
            or self._is_pattern(text)
            or self._is_extra(text)
            or self._is_from_elsewhere(text)
        )

    def _is_name(self, text: str) -> bool:
        """Match an identifier, a dotted name, or a literal of the code, such as a key or an error code."""
        code = self.code
        spellings = {text, text.removeprefix("$"), f"E_{text}"}  # HTTP answers have error codes without E_
        if code.literals & spellings or self._tokens & spellings:
            return True
        if _IDENTIFIER.fullmatch(text) and (text in code.definitions or text in code.parameters):
            return True
        if _DOTTED.fullmatch(text) and (self._is_member(text) or _is_in_standard_library(text)):
            return True
        option = text.removeprefix("nsq.")  # an option of the client, given to Spark
        if text in code.enum_values or (option != text and option in code.definitions):
            return True
        matches = [family.fullmatch(text) for family in self._families]
        return any(match is not None and all(map(self._fills, match.groups())) for match in matches)

    def _fills(self, text: str) -> bool:
        """Return True if ``text`` is a plausible value of a replacement field: a name, a number, or ``x`` for any."""
        names = {text, text.lower(), text.upper(), text.removesuffix("_total")}
        known = (self.code.literals, self.code.definitions, self._written, self._tokens)
        return text.isdecimal() or text == "x" or any(names & each for each in known)

    def _is_member(self, text: str) -> bool:
        """Match a dotted name: ``Class.member``, ``module.name``, ``package.module`` or ``instance.member``."""
        *owners, name = text.split(".")
        code, owner = self.code, owners[-1]
        if owner in code.classes:
            return name in code.members(owner)
        if any(each not in code.definitions | code.parameters for each in owners):
            return False
        for module in code.modules:
            place = module.name.split(".")
            if place[-1] == owner and name in module.names or place[-2:] == [owner, name]:
                return True
        instances = [each for each in code.classes if owner in _words_of(each)]
        if owner == "error":
            instances += next(module.names for module in code.modules if module.name.endswith(".errors"))
        return any(name in code.members(each) for each in instances)

    @cached_property
    def _families(self) -> list[re.Pattern[str]]:
        """Patterns of the names that f-strings produce."""
        texts = {text for text in self.code.texts if HOLE in text and " " not in text}
        fixed = [text for text in texts if len(_LETTER.findall(text.replace(HOLE, ""))) >= _MIN_FIXED]
        return [re.compile(r"([\w:-]+)".join(map(re.escape, text.split(HOLE)))) for text in fixed]

    def _is_flag(self, text: str, command: str = "") -> bool:
        match = _FLAG.fullmatch(text)
        if match is None:
            return False
        name, rest = match.groups()
        flags = self.commands[command] if command else set().union(*self.commands.values()) | self._script_flags
        if rest == "*":
            return any(flag.startswith(name) for flag in flags)
        return name in flags or name == "help" or any(flag.endswith(text) for flag in flags)

    @cached_property
    def _script_flags(self) -> set[str]:
        """The flags of the scripts in tests/ and examples/."""
        scripts = [*(self.root / "tests").rglob("*.py"), *(self.root / "examples").rglob("*.py")]
        return {flag for path in scripts for flag in _SCRIPT_FLAG.findall(path.read_text(encoding="utf-8"))}

    def _is_path(self, text: str, folder: Path | None) -> bool:
        if text in self._file_names:
            return True
        relative = text.removeprefix("./").rstrip("/")
        if "/" not in text or relative.startswith("/") or ".." in relative or not relative:
            return False
        folders = [self.root / base for base in _BASES] + ([folder] if folder else [])
        return any(next(each.glob(f"{relative}{end}"), None) is not None for each in folders for end in ("", ".py"))

    @cached_property
    def _file_names(self) -> set[str]:
        """The names of all files and folders in the repository."""
        paths = [*self.root.iterdir(), *(path for folder in _FOLDERS for path in (self.root / folder).rglob("*"))]
        return {path.name for path in paths if not {"node_modules", "__pycache__"} & set(path.parts)}

    def _is_route(self, text: str) -> bool:
        match = _ROUTE.fullmatch(text)
        if match is None or match[1] == "/":
            return match is not None
        parts = match[1].rstrip("/").split("/")
        return any(_fits_route(parts, literal.split("/")) for literal in self.code.literals if literal[:1] == "/")

    def _is_written(self, text: str) -> bool:
        """Match a word of the deployment files or the examples, or a folder of a path in them."""
        words = self._written
        return text in words or ("/" in text and any(word.startswith(text.rstrip("/") + "/") for word in words))

    @cached_property
    def _written(self) -> set[str]:
        paths = [path for pattern in _WRITTEN for path in self.root.glob(pattern) if path.is_file()]
        texts = [_words_of_file(path) for path in paths if path.suffix not in (".pyc", ".png")]
        return {word for text in texts for word in _WORD.findall(text)}

    def _is_pattern(self, text: str) -> bool:
        """Match a name with a variable part: ``<name>.deferred.dat``, ``tls_*``. The fixed parts must exist."""
        parts = [part for part in _VARYING.split(text) if _LETTER.search(part)]
        if parts == [text] or not parts:
            return False
        example = _VARYING.sub("x", text)
        if self._is_name(example) or self._is_name(example.removeprefix("x.")):
            return True
        return all(part in self._all_words for part in parts)

    @cached_property
    def _all_words(self) -> str:
        """Every name and every word of a literal, one per line."""
        words = {word for text in self.code.texts for word in text.split()}
        return "\n".join(self.code.definitions | self._written | self._file_names | words)

    @cached_property
    def _tokens(self) -> set[str]:
        """The words of literals in capitals or with a dot, slash, hyphen or underscore, so no English words."""
        tokens = {word for text in self._printed for word in _TOKEN.findall(text)}
        return tokens | {part for token in tokens for part in token.split(".") if "_" in part}

    def _is_printed(self, text: str) -> bool:
        """Match a message that the package prints; an ellipsis stands for a variable part."""
        parts = [part.strip() for part in _ELLIPSIS.split(text) if _LETTER.search(part)]
        if " " not in text or not parts:
            return False
        return all(any(_prints(each, part) for each in self.code.texts) for part in parts)

    @cached_property
    def _printed(self) -> list[str]:
        return [text.replace(HOLE, " ") for text in self.code.texts]

    def _is_command(self, span: str) -> bool:
        words = _words(span)
        known = {"nsqx", "make", *self.commands, *self.elsewhere.get("programs", ())}
        return len(words) > 1 and words[0].rsplit("/", 1)[-1] in known

    def _command_exists(self, span: str, scope: Collection[str]) -> bool:
        """Check the command of nsqx, the target of make or the script of Python, with its words and flags.

        Of the programs of other projects only the paths in the repository and the extras of nsqx are checked.
        """
        program, *words = _words(span)
        program = program.rsplit("/", 1)[-1]
        if program in self.elsewhere.get("programs", ()):
            self.used.add(program)
            paths = [re.sub(r"\b[A-Z]+\b", "*", word) for word in words if word.split("/")[0] in _FOLDERS]
            flags = [word for word in words if word.startswith("--")] if program == "python" else []
            extras = [word.strip("'") for word in words if word.strip("'").startswith("nsqx[")]
            return (
                all(self._is_path(path, None) for path in paths)
                and all(self._is_flag(flag) for flag in flags)
                and all(self._is_extra(extra) for extra in extras)
            )
        if program == "make":
            targets = [word for word in words if word.isalpha()]
            variables = [word.partition("=")[0] for word in words if re.match(r"[A-Z]+=", word)]
            return set(targets) <= self._targets and all(f"$({name})" in self._makefile for name in variables)
        command = words[0] if program == "nsqx" else program
        flags = [word for word in words if re.match(r"--?[a-z]", word)]
        others = [word for word in words if re.fullmatch(r"[a-z_]+", word) and word != command]
        return (
            command in self.commands
            and all(self._is_flag(flag, command) for flag in flags)
            and all(self._exists(word, scope, None) for word in others)
        )

    def _is_extra(self, text: str) -> bool:
        """Match extras of the package, such as ``nsqx[spark,s3]``."""
        match = re.fullmatch(r"nsqx\[([a-z0-9,]+)\]", text)
        return match is not None and all(
            re.search(rf"^{extra} = \[", self._pyproject, re.MULTILINE) for extra in match[1].split(",")
        )

    @cached_property
    def _pyproject(self) -> str:
        return (self.root / "pyproject.toml").read_text(encoding="utf-8")

    @cached_property
    def _makefile(self) -> str:
        text = (self.root / "Makefile").read_text(encoding="utf-8")
        return re.sub(r"\$\(if \$\((\w+)\)", r"$(\1)", text) + text

    @cached_property
    def _targets(self) -> set[str]:
        return set(re.findall(r"^([a-z]+):", self._makefile, re.MULTILINE))

    @staticmethod
    def _parsed_call(span: str) -> ast.Call | None:
        """Parse ``span`` as the call of a name; return None if it is not one."""
        try:
            node = ast.parse(span.removeprefix("await ").replace("(...)", "()"), mode="eval").body
        except SyntaxError:
            return None
        is_name = isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
        return node if is_name and "(" not in ast.unparse(node.func) else None

    def _call_fits(self, span: str, scope: Collection[str]) -> bool:
        """Compare a documented signature or call with the functions of that name."""
        call = self._parsed_call(span)
        assert call is not None
        name = ast.unparse(call.func)
        if hasattr(builtins, name):
            return all(self._exists(ast.unparse(each), scope, None) for each in call.args)
        if name not in scope and not self._is_name(name):
            return self._is_from_elsewhere(span)
        signatures = self.code.functions.get(name.split(".")[-1], [])
        if not call.args and not call.keywords:
            return bool(signatures) or name in scope or _is_in_standard_library(name)
        return any(fits(call, signature) for signature in signatures)

    def _is_built(self, text: str) -> bool:
        """Match a file or folder that a command creates. It must be listed, because a clean clone does not have it."""
        return text in self.elsewhere.get("built", ()) and self._is_from_elsewhere(text)

    def _is_from_elsewhere(self, text: str) -> bool:
        if text not in self._all_elsewhere:
            return False
        self.used.add(text)
        return True

    @cached_property
    def _all_elsewhere(self) -> set[str]:
        return {name for names in self.elsewhere.values() for name in names}

    def unused(self) -> set[str]:
        """Return the names of ``elsewhere`` that were not needed so far."""
        return self._all_elsewhere - self.used


def read_elsewhere(path: Path) -> dict[str, list[str]]:
    """Read the list of names from elsewhere."""
    return {kind: table["names"] for kind, table in tomllib.loads(path.read_text(encoding="utf-8")).items()}


def fits(call: ast.Call, signature: Signature) -> bool:
    """Return True if a documented call has the parameters of the function, in order and with their defaults.

    ``publish(topic, body)`` is a signature: every required parameter must be there. ``requeue(backoff=False)`` and
    ``unwrap(b"", limit)`` pass values: the parameters must exist.
    """
    shown = {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg is not None}
    if not all(isinstance(each, ast.Name) for each in call.args):
        given = {each.id for each in call.args if isinstance(each, ast.Name)} | set(shown)
        return len(call.args) <= len(signature.parameters) and given <= set(signature.parameters)
    names = [*(each.id for each in call.args if isinstance(each, ast.Name)), *shown]
    in_order = [name for name in signature.parameters if name in names]
    if names != in_order:
        return False
    passes_values = not call.args and set(names) != set(signature.parameters)
    defaults = dict(signature.defaults)
    return passes_values or (
        set(signature.required) <= set(names) and all(defaults.get(name) == value for name, value in shown.items())
    )


def _words_of_file(path: Path) -> str:
    """Return the text of a file; of a Python file only the code, without comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return ast.unparse(tree)


def _words(command: str) -> list[str]:
    """Return the words of a command line, without leading assignments of variables."""
    words = command.split()
    while words and _ASSIGNMENT.match(words[0]):
        words.pop(0)
    return words


def _prints(text: str, part: str) -> bool:
    """Return True if ``part`` occurs in the text of an f-string; a replacement field matches one word of ``part``."""
    if part in text:
        return True
    if HOLE not in text:
        return False
    words, printed = ([word.strip(":;,") for word in each.split()] for each in (part, text))
    for start in range(len(printed) - len(words) + 1):
        pairs = list(zip(printed[start:], words, strict=False))
        fixed = sum(ours == theirs for ours, theirs in pairs)
        if fixed >= _MIN_FIXED and all(ours == theirs or HOLE in ours for ours, theirs in pairs):
            return True
    return False


def _fits_route(parts: list[str], route: list[str]) -> bool:
    """Return True if a path is a route or the beginning of one; a segment ``:name`` of the route matches any word."""
    if len(parts) > len(route) or parts[1] != route[1]:
        return False
    return all(ours == theirs or theirs[:1] == ":" for ours, theirs in zip(parts, route, strict=False))


def _words_of(class_name: str) -> set[str]:
    """Return the words of a CamelCase name in lower case, and the whole name in snake case."""
    lowered = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", class_name)]
    return {*lowered, "_".join(lowered)}


def _is_in_standard_library(text: str) -> bool:
    first, *rest = text.split(".")
    if first not in sys.stdlib_module_names:
        return False
    place: object = importlib.import_module(first)
    for depth, name in enumerate(rest, 1):
        try:
            place = getattr(place, name)
        except AttributeError:
            try:
                place = importlib.import_module(".".join([first, *rest[:depth]]))
            except ImportError:
                return False
    return True
