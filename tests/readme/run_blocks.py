"""Runs the ```bash blocks of a Markdown file and compiles its ```cpp programs, each as written.

A program is a ```cpp block with a main(); other ones are fragments. A block is left out only when
the line above it is `<!-- not run: reason -->`. Blocks of one file run one after another in one
folder that looks like the root of the source tree, so that a later block finds the files of an
earlier one; what they write stays out of the tree. `build/` there is the build under test.

  run_blocks.py --source DIR --build DIR --cxx COMPILER FILE.md
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS_PER_BLOCK = 240
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+-]*)")
SHELLS = {"bash", "sh", "shell", "console"}
MAIN = re.compile(r"^int main\(", re.MULTILINE)
NOT_RUN = re.compile(r"^\s*<!--\s*not run:\s*(?P<reason>.*?)\s*-->\s*$")

STRAY = "'not run' stands above no block that would be run"


@dataclass
class Block:
    language: str
    line: int  # of its first line, from 1
    text: str
    not_run: str  # the reason, "" for a block that is run


class BadDocument(Exception):
    """The file breaks the convention that decides which blocks are run."""


def runnable_blocks(text: str) -> list[Block]:
    blocks = []
    lines = text.splitlines()
    above = ""  # the last line that is not blank
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if not opening:
            if NOT_RUN.match(above) and lines[number].strip():
                raise BadDocument(f"line {number}: {STRAY}")
            above = lines[number] if lines[number].strip() else above
            number += 1
            continue
        end = _closing_fence(lines, number, opening)
        if opening["language"] in SHELLS - {"bash"}:
            raise BadDocument(f"line {number + 1}: '{opening['language']}' should be 'bash'")
        body = "\n".join(line.removeprefix(opening["indent"]) for line in lines[number + 1 : end])
        reason = NOT_RUN.match(above)
        if opening["language"] == "bash" or (opening["language"] == "cpp" and MAIN.search(body)):
            if reason and not reason["reason"]:
                raise BadDocument(f"line {number}: 'not run' gives no reason")
            blocks.append(
                Block(opening["language"], number + 2, body, reason["reason"] if reason else ""))
        elif reason:
            raise BadDocument(f"line {number}: {STRAY}")
        above = ""
        number = end + 1
    return blocks


def _closing_fence(lines: list[str], start: int, opening: re.Match) -> int:
    for number in range(start + 1, len(lines)):
        if lines[number].strip().startswith(opening["fence"]):
            return number
    raise BadDocument(f"line {start + 1}: the block is never closed")


def make_root(folder: Path, source: Path, build: Path) -> None:
    """Links to everything in the source tree, and `build`, the build under test."""
    for entry in source.iterdir():
        if not entry.name.startswith("build") and entry.name not in (".git", "demo-out"):
            (folder / entry.name).symlink_to(entry)
    (folder / "build").symlink_to(build)


def environment(build: Path) -> dict[str, str]:
    variables = dict(os.environ)
    variables["PATH"] = f"{build / 'bin'}:{variables['PATH']}"
    variables["ROWBAND_BUILD_DIR"] = str(build)  # scripts/demo finds everything built
    if os.geteuid() == 0:  # Open MPI asks root to say so; a reader is seldom root
        variables["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return variables


def command_of(block: Block, folder: Path, cxx: str) -> list[str]:
    if block.language == "bash":
        return ["bash", "-euo", "pipefail", "-x", "-c", block.text]
    program = folder / "block.cc"
    program.write_text(block.text + "\n", encoding="utf-8")
    return [cxx, "-std=c++20", "-fsyntax-only", f"-I{folder}", str(program)]


def run(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    """Returns "" or what went wrong."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=SECONDS_PER_BLOCK)
    except subprocess.TimeoutExpired as expired:
        said = expired.stdout.decode(errors="replace") if expired.stdout else ""
        return f"not done after {SECONDS_PER_BLOCK} s\n{said}"
    return f"exit status {done.returncode}\n{done.stdout}" if done.returncode else ""


def check(document: Path, source: Path, build: Path, cxx: str) -> int:
    blocks = runnable_blocks(document.read_text(encoding="utf-8"))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="rowband-readme-") as name:
        make_root(Path(name), source, build)
        for block in blocks:
            where = f"{document.name}:{block.line}"
            if block.not_run:
                print(f"{where}: not run: {block.not_run}", flush=True)
                continue
            started = time.monotonic()
            wrong = run(command_of(block, Path(name), cxx), Path(name), environment(build))
            failed += bool(wrong)
            took = time.monotonic() - started
            print(f"{where}: {'FAILED: ' + wrong if wrong else 'ok'} ({took:.1f} s)", flush=True)
    ran = sum(not block.not_run for block in blocks)
    print(f"{document.name}: {ran} of {len(blocks)} blocks run, {failed} failed")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("document", type=Path)
    arguments = parser.parse_args()
    try:
        return check(arguments.document, arguments.source.resolve(), arguments.build.resolve(),
                     arguments.cxx)
    except BadDocument as error:
        print(f"{arguments.document}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
