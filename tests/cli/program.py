"""The program under test, and what its tests share."""

import json
import os
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

BINARY = os.environ["ROWBAND_BINARY"]

# Without GPUs the engine is host, wherever the tests run; cuda_test.py shows them.
HIDE_GPUS = True

# Small shapes, which every machine computes at once.
SMALL = ["--cols", "256", "--depth", "128"]


@dataclass
class Result:
    code: int
    out: str
    err: str


def rowband(*arguments, env=None, cwd=None, launcher=(), timeout=120):
    """Runs the program without any ROWBAND_* variable but those of `env`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ROWBAND_")}
    if HIDE_GPUS:
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    environment.update(env or {})
    done = subprocess.run(
        [*launcher, BINARY, *map(str, arguments)],
        env=environment, cwd=cwd, timeout=timeout, capture_output=True, text=True, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def ok(*arguments, **options):
    """Runs the program, which has to succeed, and returns what it printed."""
    result = rowband(*arguments, **options)
    assert result.code == 0, result
    return result.out


def refused(*arguments, **options):
    """Runs the program, which has to refuse its input, and returns its one line of complaint."""
    result = rowband(*arguments, **options)
    assert result.code == 2, result
    assert result.out == "", result
    assert result.err.startswith("rowband: error ("), result
    assert result.err.count("\n") == 1, result
    return result.err


def ok_json(*arguments, **options):
    return json.loads(ok(*arguments, "--json", **options))


def tensors_of(path):
    """The header of a safetensors file, and where its data begins."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    header, offset, data = {}, 0, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_checkpoint(path, cols=256, depth=512, **options):
    flags = [f for k, v in options.items() for f in (f"--{k.replace('_', '-')}", v) if f != ""]
    ok("make-checkpoint", "--output", path, "--cols", cols, "--depth", depth, *flags)
    return path


def spoil_slice(path, tensor, row, column):
    """Puts a NaN at [row, column] of an fp8 matrix."""
    header, begin = tensors_of(path)
    offset = header[tensor]["data_offsets"][0]
    with open(path, "r+b") as file:
        file.seek(begin + offset + row * header[tensor]["shape"][1] + column)
        file.write(b"\x7f")


def children_of(pid):
    """By /proc, in the order of their ids: the order of ranks."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid:
            children.append(int(stat.parent.name))
    return sorted(children)
