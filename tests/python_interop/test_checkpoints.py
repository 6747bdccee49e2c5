"""Checkpoints written by the safetensors package and read in C++, and the other way round."""

import json
import struct

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

import layers


def read_slice(dump_weight, directory, checkpoint, name, rank=0, world=1):
    """What C++ reads: sizes, codes, scales, bias and notes."""
    out = directory / f"slice-{rank}-of-{world}"
    out.mkdir(exist_ok=True)
    lines = dump_weight.run("slice", checkpoint, name, out, "--rank", rank, "--world", world)
    pairs = [line.split(" ", 1) for line in lines.splitlines()]
    sizes = {key: value for key, value in pairs if key != "note"}
    notes = [value for key, value in pairs if key == "note"]
    cols, depth = int(sizes["cols"]), int(sizes["depth"])
    codes = np.fromfile(out / "codes", np.uint8).reshape(cols, depth)
    scales = np.fromfile(out / "scales", np.float32).reshape(layers.blocks(cols), depth // 128)
    bias = np.fromfile(out / "bias", np.uint16)
    return sizes, codes, scales, bias, notes


@pytest.mark.parametrize("scale_dtype", ["F32", "BF16", "F8_E8M0"])
@pytest.mark.parametrize("cols", [256, 576])  # 576: the last row of blocks is short
def test_every_rank_reads_its_slice(tmp_path, dump_weight, scale_dtype, cols):
    rng = np.random.default_rng(1)
    name = "model.layers.3.mlp.down_proj"
    tensors = layers.random_layer(rng, name, cols, 1024, scale_dtype, bias=True)
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    codes = tensors[f"{name}.weight"].view(np.uint8)
    scales = layers.scales_of(tensors, name)
    for world in (1, 2, 4, 8):
        depth = 1024 // world
        for rank in range(world):
            sizes, got_codes, got_scales, bias, _ = read_slice(dump_weight, tmp_path, path, name,
                                                               rank, world)
            assert sizes["depth_begin"] == str(rank * depth)
            assert sizes["total_depth"] == "1024"
            assert sizes["scale_format"] == ("ue8m0" if scale_dtype == "F8_E8M0" else "fp32")
            begin = rank * depth
            np.testing.assert_array_equal(got_codes, codes[:, begin:begin + depth])
            wanted = scales[:, begin // 128:(begin + depth) // 128]
            np.testing.assert_array_equal(got_scales, wanted)
            np.testing.assert_array_equal(bias, tensors[f"{name}.bias"].view(np.uint16))


def test_sharded_checkpoint_with_stray_file(tmp_path, dump_weight):
    rng = np.random.default_rng(2)
    first = layers.random_layer(rng, "a", 128, 256)
    second = layers.random_layer(rng, "b", 256, 128, "F8_E8M0")
    # Weight and scales of one layer in different shards.
    moved = {"a.weight_scale_inv": first.pop("a.weight_scale_inv"), **second}
    layers.save_sharded(tmp_path, [first, moved])
    save_file(layers.random_layer(rng, "a", 128, 256), tmp_path / "model.safetensors")
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (tmp_path / "config.json").write_text(json.dumps(config))

    for checkpoint in (tmp_path, tmp_path / "model.safetensors.index.json"):
        _, codes, scales, bias, notes = read_slice(dump_weight, tmp_path, checkpoint, "a.weight")
        np.testing.assert_array_equal(codes, first["a.weight"].view(np.uint8))
        np.testing.assert_array_equal(scales, moved["a.weight_scale_inv"])
        assert bias.size == 0
        assert notes == ["ignored model.safetensors: model.safetensors.index.json does not list it"]
        _, codes, scales, _, _ = read_slice(dump_weight, tmp_path, checkpoint, "b")
        np.testing.assert_array_equal(codes, second["b.weight"].view(np.uint8))
        np.testing.assert_array_equal(scales, layers.scales_of(second, "b"))


@pytest.mark.parametrize("ue8m0", [False, True])
def test_quantised_checkpoint_is_what_numpy_computes(tmp_path, dump_weight, ue8m0):
    rng = np.random.default_rng(3)
    weight = (rng.standard_normal((300, 384)) * 0.02).astype(np.float32)
    weight[:128, :128] = 0  # an all-zero block
    bf16 = weight.astype(layers.BF16)
    source, out = tmp_path / "source.safetensors", tmp_path / "out.safetensors"
    save_file({"x.weight": weight, "y.weight": bf16, "norm.weight": weight[0],
               "steps": np.arange(5)}, source)
    dump_weight.run("quantize", source, out, "--scales", "ue8m0" if ue8m0 else "fp32")

    read = dict(safetensors.deserialize(out.read_bytes()))
    for name, matrix in (("x", weight), ("y", bf16.astype(np.float32))):
        codes, scales = layers.quantize(matrix, ue8m0)
        assert read[f"{name}.weight"]["dtype"] == "F8_E4M3"
        got = np.frombuffer(read[f"{name}.weight"]["data"], np.uint8).reshape(codes.shape)
        np.testing.assert_array_equal(got, codes)
        stored = read[f"{name}.scale" if ue8m0 else f"{name}.weight_scale_inv"]
        assert stored["shape"] == list(scales.shape)
        dtype = layers.E8M0 if ue8m0 else np.float32
        got = np.frombuffer(stored["data"], dtype).astype(np.float32).reshape(scales.shape)
        np.testing.assert_array_equal(got, scales)
    assert bytes(read["norm.weight"]["data"]) == weight[0].tobytes()
    assert read["steps"]["dtype"] == "I64"
    assert bytes(read["steps"]["data"]) == np.arange(5).tobytes()


def test_made_checkpoint_is_read_by_the_package(tmp_path, dump_weight):
    out = tmp_path / "made.safetensors"
    dump_weight.run("make", out, 200, 384, "--bias", "--scales", "fp32")
    read = dict(safetensors.deserialize(out.read_bytes()))
    assert {name: (t["dtype"], t["shape"]) for name, t in read.items()} == {
        "linear.weight": ("F8_E4M3", [200, 384]),
        "linear.weight_scale_inv": ("F32", [2, 3]),
        "linear.bias": ("BF16", [200]),
    }
    codes = np.frombuffer(read["linear.weight"]["data"], layers.E4M3).astype(np.float32)
    scales = np.frombuffer(read["linear.weight_scale_inv"]["data"], np.float32).reshape(2, 3)
    rows, cols = np.arange(200) // 128, np.arange(384) // 128
    real = codes.reshape(200, 384) * scales[rows][:, cols]
    assert abs(real.std() * np.sqrt(384) - 1) < 0.02


def file_of(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ONE = json.dumps({"x": entry("U8", [4], 0, 4)}).encode()

# Where the reference implementation and this one must give the same answer.
ACCEPTED = {
    "plain": file_of(ONE, b"1234"),
    "blanks_after": file_of(ONE + b" \t\r\n", b"1234"),
    "no_tensors": file_of({}),
    "empty_tensor": file_of({"x": entry("F32", [0, 2], 0, 0)}),
    "fp4": file_of({"x": entry("F4", [2, 2], 0, 2)}, b"12"),
    "metadata": file_of({"__metadata__": {"a": "b"}, "x": entry("U8", [1], 0, 1)}, b"1"),
}
REFUSED = {
    "F11_trailing_byte": file_of(ONE, b"12345"),
    "F09_short_data": file_of({"x": entry("F32", [1000, 1000], 0, 4)}, b"1234"),
    "F05_shape_disagrees": file_of({"weight": entry("F64", [4], 0, 16)}, bytes(16)),
    "F07_not_empty": file_of({"x": entry("F32", [1], 0, 0)}),
    "F17_nul_padding": file_of(ONE + b"\0\0", b"1234"),
    "F04_duplicate_name": file_of(b"{" + ONE[1:-1] + b"," +
                                  ONE[1:-1].replace(b"[0, 4]", b"[4, 8]") + b"}", b"12345678"),
    "gap": file_of({"x": entry("U8", [4], 1, 5)}, b"12345"),
    "overlap": file_of({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, b"123456"),
    "overflow": file_of({"x": entry("F32", [2**32, 2**32], 0, 0)}),
    "negative_shape": file_of({"x": entry("U8", [-4], 0, 4)}, b"1234"),
    "half_bytes": file_of({"x": entry("F4", [3], 0, 2)}, b"12"),
    "metadata_not_strings": file_of({"__metadata__": {"a": 1}}),
    "cut_header": struct.pack("<Q", 100) + b"{}",
    "F01_huge_header": struct.pack("<Q", 132095296) + b"{}",
    "F02_zip": b"PK\x03\x04" + bytes(20),
}


def cpp_accepts(dump_weight, tmp_path, content):
    """Whether the C++ reader takes the file; only its layout is of interest here."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    done = dump_weight.attempt("quantize", path, tmp_path / "out.safetensors")
    assert done.returncode in (0, 1), done.stderr  # an Error, never a crash
    if done.returncode == 1:
        assert done.stderr.startswith("error: ") and "x.safetensors" in done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("case", ACCEPTED)
def test_both_readers_accept(tmp_path, dump_weight, case):
    safetensors.deserialize(ACCEPTED[case])
    assert cpp_accepts(dump_weight, tmp_path, ACCEPTED[case])


@pytest.mark.parametrize("case", REFUSED)
def test_both_readers_refuse(tmp_path, dump_weight, case):
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(REFUSED[case])
    assert not cpp_accepts(dump_weight, tmp_path, REFUSED[case])
