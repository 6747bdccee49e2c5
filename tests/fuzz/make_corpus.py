"""Writes the seed inputs of the fuzz targets: small valid files and near misses.

Usage: make_corpus.py DIRECTORY
"""

import json
import pathlib
import struct
import sys


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end, **more):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end], **more}


def safetensors_seeds():
    f32 = struct.pack("<f", 1.5)
    weight = {
        "x.weight_scale_inv": entry("F32", [1, 2], 0, 8),
        "x.weight": entry("F8_E4M3", [2, 256], 8, 520),
        "x.bias": entry("BF16", [2], 520, 524),
    }
    one = {"x": entry("F32", [1], 0, 4)}
    one_text = json.dumps(one).encode()
    return {
        "no_tensors": safetensors({}),
        "metadata": safetensors({"__metadata__": {"format": "pt"}, **one}, f32),
        "weight": safetensors(weight, f32 * 2 + b"\x38" * 512 + b"\x80\x3f" * 2),
        "weight_ue8m0": safetensors(
            {"x.scale": entry("F8_E8M0", [1, 1], 0, 1),
             "x.weight": entry("F8_E4M3", [1, 128], 1, 129)}, b"\x7f" + b"\x38" * 128),
        "empty_tensor": safetensors({"e": entry("F32", [0, 3], 0, 0), **one}, f32),
        "odd_dtypes": safetensors(
            {"q": entry("F4", [4], 0, 2), "n": entry("F2_NEW", [9], 2, 5)}, b"12345"),
        "unknown_field": safetensors({"x": entry("U8", [1], 0, 1, more=[{"a": [None, 1e9]}])}, b"1"),
        "blanks": safetensors(b" \t\r\n" + one_text + b" \n\t ", f32),
        "nul_padding": safetensors(one_text + b"\0\0", f32),
        "overlap": safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, b"123456"),
        "overflow": safetensors({"x": entry("F32", [1 << 32, 1 << 32], 0, 0)}),
        "negative": safetensors({"x": entry("F32", [-1], 0, 4)}, f32),
        "huge_header": struct.pack("<Q", 1 << 60) + b"{}",
        "zip": b"PK\x03\x04" + b"\0" * 20,
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }


def npy(dictionary, data=b"", version=1):
    text = dictionary.encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def npy_dictionary(descr, shape, fortran=False):
    return repr({"descr": descr, "fortran_order": fortran, "shape": shape}) + "\n"


def npy_seeds():
    numbers = struct.pack("<6f", *range(6))
    return {
        "f32": npy(npy_dictionary("<f4", (2, 3)), numbers),
        "f32_v2": npy(npy_dictionary("<f4", (2, 3)), numbers, version=2),
        "f32_v3": npy(npy_dictionary("<f4", (6,)), numbers, version=3),
        "fortran": npy(npy_dictionary("<f4", (1, 2, 3), True), numbers),
        "bfloat16": npy(npy_dictionary("<V2", (3, 4)), numbers),
        "no_rows": npy(npy_dictionary("<f4", (0, 8))),
        "scalar": npy(npy_dictionary("<f4", ()), numbers[:4]),
        "f64": npy(npy_dictionary("<f8", (3,)), numbers),
        "overflow": npy(npy_dictionary("<f4", (1 << 62, 1 << 62))),
        "structured": npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}"),
    }


def main():
    root = pathlib.Path(sys.argv[1])
    for folder, seeds in (("safetensors", safetensors_seeds()), ("npy", npy_seeds())):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, content in seeds.items():
            (root / folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
