"""Runs one target under atheris, guided by coverage: ``with_atheris.py TARGET SECONDS [CORPUS_DIRECTORY]``.

The uncompiled package must be first on the path, because atheris sees no branches in compiled modules. Prints
libFuzzer's figures. If an input fails, the exit code is not 0, and the input is stored in the directory.
"""

import os
import sys
import tempfile
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

with atheris.instrument_imports(include=["nsqx"]):
    from targets import target_named


def main() -> None:
    name, seconds = sys.argv[1], sys.argv[2]
    target = target_named(name)
    directory = sys.argv[3] if len(sys.argv) > 3 else tempfile.mkdtemp(prefix=f"atheris-{name}-")
    for number, seed in enumerate(target.seeds()):
        Path(directory, f"seed-{number}").write_bytes(seed)
    dictionary = Path(directory, "dictionary")
    words = ["".join(map("\\x{:02x}".format, token)) for token in target.tokens]
    dictionary.write_text("".join(f'"{word}"\n' for word in words))
    corpus = Path(directory, "corpus")
    corpus.mkdir(exist_ok=True)
    flags = [
        f"-max_total_time={seconds}", "-max_len=8192", "-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1",
        f"-dict={dictionary}", f"-artifact_prefix={directory}{os.sep}", "-verbosity=1",
    ]  # fmt: skip
    for seed_file in Path(directory).glob("seed-*"):
        seed_file.rename(corpus / seed_file.name)
    atheris.Setup([sys.argv[0], *flags, str(corpus)], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
