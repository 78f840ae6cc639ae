"""The wheels contain exactly the right files, and run a cluster in an environment with only their dependencies."""

import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bare_environment import BareEnvironment
from built_packages import ROOT, build_sdist, build_wheel, copy_tree, hot_modules

from daemons import start_nsqd
from nsqx.cli.commands import COMMANDS
from terminal import run_on_terminal

pytestmark = pytest.mark.timeout(900)

KINDS = ("compiled", "pure")
# Loopback addresses that no other test uses, so that the standard ports are free.
_hosts = (f"127.{os.getpid() % 250 + 1}.{os.getpid() // 250 % 250 + 1}.{number}" for number in itertools.count(10))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("setuptools", "Cython", "pip"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed in this environment")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        pytest.skip("no C compiler: install gcc")
    return copy_tree(tmp_path_factory.mktemp("packages") / "tree")


@pytest.fixture(scope="module")
def pure_wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tree, tmp_path_factory.mktemp("pure"), pure=True)


@pytest.fixture(scope="module")
def wheels(tree: Path, pure_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {"compiled": build_wheel(tree, tmp_path_factory.mktemp("compiled"), pure=False), "pure": pure_wheel}


def names_in(wheel: Path) -> set[str]:
    """Return the files of a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def sources() -> set[str]:
    """Return the files of src/ that every wheel must contain: all except those made by building or running."""
    made = ("__pycache__", ".egg-info/", ".so", ".c")
    names = (path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file())
    return {name for name in names if not name.endswith(made) and not any(each in name for each in made[:2])}


def test_the_tags_of_the_wheels_name_their_kind(wheels: dict[str, Path]) -> None:
    assert wheels["pure"].name.endswith("-py3-none-any.whl")
    this_python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{this_python}-{this_python}-" in wheels["compiled"].name
    for kind in KINDS:
        with zipfile.ZipFile(wheels[kind]) as archive:
            (description,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
            is_pure = b"Root-Is-Purelib: true" in archive.read(description)
        assert is_pure == (kind == "pure")


def test_the_pure_wheel_contains_the_sources(wheels: dict[str, Path]) -> None:
    assert names_in(wheels["pure"]) == sources()


def test_the_compiled_wheel_also_contains_the_hot_modules(wheels: dict[str, Path]) -> None:
    extra = names_in(wheels["compiled"]) - sources()
    assert sources() <= names_in(wheels["compiled"])
    assert sorted(name.partition(".")[0] for name in extra) == sorted(each.replace(".", "/") for each in hot_modules())
    assert all(name.endswith(".so") for name in extra)


@pytest.mark.parametrize("kind", KINDS)
def test_no_file_contains_the_path_of_the_build(wheels: dict[str, Path], tree: Path, kind: str) -> None:
    with zipfile.ZipFile(wheels[kind]) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            assert str(tree).encode() not in content, name
            assert str(ROOT).encode() not in content, name


def test_the_source_package_builds_the_same_wheel(tree: Path, wheels: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(build_sdist(tree, tmp_path)) as archive:
        members = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    top = members[0].partition("/")[0]
    assert {f"{top}/{name}" for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE")} <= set(members)
    assert not [name for name in members if name.endswith((".so", ".c", ".pyc"))]
    (tmp_path / "wheel").mkdir()
    again = build_wheel(tmp_path / top, tmp_path / "wheel", pure=True)
    assert names_in(again) == names_in(wheels["pure"])


@pytest.fixture(scope="module", params=KINDS)
def environment(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, BareEnvironment]:
    kind: str = request.param
    return kind, BareEnvironment(tmp_path_factory.mktemp(kind) / "environment", wheels[kind], ("admin", "server"))


@pytest.fixture
def cluster(environment: tuple[str, BareEnvironment], tmp_path: Path) -> Iterator[str]:
    """The address of a running `nsqx up`, which must end with exit code 0."""
    bare = environment[1]
    host = next(_hosts)
    with subprocess.Popen(
        [bare.program("nsqx"), "up", f"--host={host}", "--data-path=data"],
        cwd=tmp_path,
        env=bare.variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            printed = []
            for line in process.stdout:
                printed.append(line)
                if "Ctrl-C stops everything" in line:
                    break
            assert "Ctrl-C stops everything" in "".join(printed), printed
            yield host
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def run(bare: BareEnvironment, directory: Path, *command: str) -> str:
    done = subprocess.run(
        command, cwd=directory, env=bare.variables, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_wheel_publishes_and_consumes(
    environment: tuple[str, BareEnvironment], cluster: str, tmp_path: Path
) -> None:
    kind, bare = environment
    nsqd = f"--nsqd-tcp-address={cluster}:4150"
    run(bare, tmp_path, bare.program("nsqx"), "pub", nsqd, "greetings", "hello", "world")
    shown = run(bare, tmp_path, bare.program("nsqx"), "sub", nsqd, "--n=2", "greetings", "print")
    assert shown == "hello\nworld\n"
    where = run(bare, tmp_path, bare.python, "-c", "import nsqx.nsqd.channel as module; print(module.__file__)").strip()
    assert Path(where).is_relative_to(bare.site_packages)
    assert where.endswith(".so") == (kind == "compiled")
    with urllib.request.urlopen(f"http://{cluster}:4171/", timeout=20) as answer:
        page = answer.read()
    if (ROOT / "src" / "nsqx" / "nsqadmin" / "static" / "index.html").exists():
        assert b"<script" in page


SPARK_COMMANDS = (
    "pipeline run clicks.toml",
    "pipeline check clicks.toml",
    "pipeline explain clicks.toml",
    "pipeline status clicks.toml",
    "archive clicks --to archive",
    "replay . --to clicks",
)


@pytest.mark.parametrize("words", SPARK_COMMANDS)
def test_a_command_that_needs_spark_names_the_missing_package(
    environment: tuple[str, BareEnvironment], tmp_path: Path, words: str
) -> None:
    _, bare = environment
    shutil.copy(ROOT / "examples" / "demo" / "clicks.toml", tmp_path)
    done = subprocess.run(
        [bare.program("nsqx"), *words.split()],
        cwd=tmp_path,
        env=bare.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert re.fullmatch(r"nsqx[^\n]*: pyspark is not installed: pip install 'nsqx\[spark\]'\n", done.stderr)


def test_every_command_starts(environment: tuple[str, BareEnvironment], tmp_path: Path) -> None:
    _, bare = environment
    assert {"nsqd", "nsqlookupd", "nsqadmin", "nsqx", "to_nsq", "nsq_to_file"} <= set(bare.programs)
    for program in bare.programs:
        run(bare, tmp_path, bare.program(program), "--help")


@pytest.fixture(scope="module")
def light(pure_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> BareEnvironment:
    """An environment with the wheel and no extras."""
    return BareEnvironment(tmp_path_factory.mktemp("light") / "environment", pure_wheel)


def test_the_wheel_without_extras_needs_two_packages(light: BareEnvironment) -> None:
    installed = {path.name.partition("-")[0].lower() for path in light.site_packages.glob("*.dist-info")}
    assert installed == {"httptools", "nsqx", "orjson"}


CLIENT_PROGRAM = """\
import asyncio, sys
from nsqx import ConfigError, Consumer, Producer, blocking

async def main(nsqd):
    async with Producer(nsqd) as producer:
        await producer.publish("greetings", b"hello")
    async with Consumer("greetings", "print", nsqd_tcp_addresses=nsqd) as consumer:
        async for message in consumer:
            print(message.body.decode())
            message.finish()
            break
    try:
        Producer(nsqd, snappy=True)
    except ConfigError as error:
        print(error)

asyncio.run(main(sys.argv[1]))
with blocking.Producer(sys.argv[1]) as producer:
    producer.publish("greetings", b"again")
"""


def test_the_client_works_without_extras(light: BareEnvironment, tmp_path: Path) -> None:
    with start_nsqd("nsqx") as nsqd:
        printed = run(light, tmp_path, light.python, "-c", CLIENT_PROGRAM, nsqd.tcp_address)
        assert printed.splitlines() == ["hello", "snappy needs the package cramjam: pip install 'nsqx[snappy]'"]
        address = f"--nsqd-tcp-address={nsqd.tcp_address}"
        command = [light.program("nsqx"), "sub", address, "--n=1", "greetings", "print"]
        assert run(light, tmp_path, *command) == "again\n"
        code, text = run_on_terminal([light.program("nsqx"), "pub", address, "greetings", "more"], 80)
        assert code == 0
        assert "published 1 message to greetings" in text


LACKING = {
    "nsqd": "nsqd needs the extra server: pip install 'nsqx[server]'",
    "nsqlookupd": "nsqlookupd needs the extra server: pip install 'nsqx[server]'",
    "nsq_to_file": "nsq_to_file needs the extra server: pip install 'nsqx[server]'",
    "doctor": "nsqx doctor needs the extra server: pip install 'nsqx[server]'",
    "log": "nsqx log needs the extra server: pip install 'nsqx[server]'",
    "nsqadmin": "nsqadmin needs the extra admin: pip install 'nsqx[admin]'",
    "up": "nsqx up needs the extras admin and server: pip install 'nsqx[admin,server]'",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_its_extra_prints_the_line_to_run(light: BareEnvironment, tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [light.program("nsqx"), name, "--help"],
        cwd=tmp_path,
        env=light.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    if name in LACKING:
        assert (done.returncode, done.stdout, done.stderr) == (1, "", LACKING[name] + "\n")
    else:
        assert done.returncode == 0, done.stderr


def test_completion_works_without_extras(light: BareEnvironment, tmp_path: Path) -> None:
    script = run(light, tmp_path, light.program("nsqx"), "completion", "bash")
    assert "complete -F _nsqx nsqx" in script
    for name, flag in {"pub": "--nsqd-tcp-address=", "nsqd": ""}.items():
        found = run(light, tmp_path, light.program("nsqx"), "__complete", "bash", "nsqx", name, "--nsqd-tcp")
        assert found.startswith(flag)
