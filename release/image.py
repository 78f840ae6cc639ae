"""Builds the container image, or the one with Spark, with buildah.

    python release/image.py [--spark] [--tag NAME] [--packages DIR] [--debian] [--build-flag FLAG ...]

The packages come from DIR, by default dist/, where `make wheel` puts them. With --debian the base images are made by
mmdebstrap from Debian's packages, so that none has to be pulled. --build-flag passes a flag to `buildah build`, such as
--build-flag=--volume=FILE:FILE:ro with the file of certificates of a proxy, /etc/ssl/certs/ca-certificates.crt.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEBIAN = "bookworm"
BASES = {
    "BUILD_BASE": ("nsqx-build-base", "python3-venv,python3-dev,gcc,libc6-dev,ca-certificates"),
    "BASE": ("nsqx-base", "python3,ca-certificates"),
}
# Documentation, translations and caches that no program of the image reads.
UNUSED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/var/cache/*/*")


class Failed(Exception):
    """A command that is missing or failed."""


def make_base(name: str, packages: str) -> None:
    """Make an image of a minimal Debian with some packages, unless it is there."""
    if _succeeds("buildah", "inspect", "--type=image", f"localhost/{name}"):
        return
    print(f"making the base image {name} with mmdebstrap", flush=True)
    with tempfile.TemporaryDirectory(prefix="nsqx-base-") as scratch:
        tree = Path(scratch) / "root.tar"
        left_out = [f"--dpkgopt=path-exclude={path}" for path in UNUSED]
        _run("mmdebstrap", "--quiet", "--variant=minbase", *left_out, f"--include={packages}", DEBIAN, str(tree))
        container = _run("buildah", "from", "scratch").strip()
        _run("buildah", "add", "--quiet", container, str(tree), "/")
        _run("buildah", "commit", "--quiet", "--rm", container, name)


def make_context(packages: Path, target: Path) -> str:
    """Collect what the Containerfile copies; return the version of the packages."""
    found = [path for path in packages.glob("nsqx-*") if path.name.endswith((".whl", ".tar.gz"))]
    versions = {re.split(r"-|\.tar", path.name)[1] for path in found}
    if len(versions) != 1:
        raise Failed(f"{packages} must have the packages of one version: run make wheel")
    (target / "packages").mkdir(parents=True)
    for path in (*found, ROOT / "constraints.txt"):
        shutil.copy(path, target / "packages")
    for path in (ROOT / "deploy" / "image").glob("*.py"):
        shutil.copy(path, target)
    return versions.pop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spark", action="store_true", help="build the image with Spark")
    parser.add_argument("--tag", help="the name of the image, by default nsqx or nsqx-spark")
    parser.add_argument("--packages", type=Path, default=ROOT / "dist", help="the directory of the packages")
    parser.add_argument("--debian", action="store_true", help="make the base images with mmdebstrap")
    parser.add_argument("--build-flag", action="append", default=[], help="a flag of buildah build")
    arguments = parser.parse_args()
    bases = []
    file, tag = ("Containerfile.spark", "nsqx-spark") if arguments.spark else ("Containerfile", "nsqx")
    tag = arguments.tag or tag
    try:
        if arguments.debian:
            for variable, (name, packages) in BASES.items():
                make_base(name, packages)
                bases.append(f"--build-arg={variable}=localhost/{name}")
        with tempfile.TemporaryDirectory(prefix="nsqx-image-") as scratch:
            version = make_context(arguments.packages, Path(scratch) / "context")
            print(f"building the image {tag} of version {version}", flush=True)
            # crun refuses machines with both versions of cgroups, so runc is preferred.
            runtime = ["--runtime=runc"] if shutil.which("runc") else []
            # Only Docker's format has health checks.
            _run(
                *("buildah", "build", "--format=docker", "--layers", f"--tag={tag}", *runtime, *bases),
                *(f"--build-arg=VERSION={version}", *arguments.build_flag),
                *(f"--file={ROOT / 'deploy' / 'image' / file}", str(Path(scratch) / "context")),
            )
    except Failed as error:
        print(f"image.py: {error}", file=sys.stderr)
        return 1
    return 0


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Failed(f"{command[0]} is not installed: apt-get install buildah podman mmdebstrap") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(command[:3])} … failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
