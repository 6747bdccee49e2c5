"""`rowband run`: results, files, verification."""

import json
import re
import xml.etree.ElementTree

import numpy
import pytest
from program import (SMALL, make_checkpoint, ok, refused, rowband, spoil_slice, tensors_of,
                     write_safetensors)

CHECKS = 5  # lines of --verify


def verified(*arguments, **options):
    text = ok("run", *arguments, "--verify", **options)
    lines = [line for line in text.splitlines() if line.startswith("verify")]
    assert len(lines) == CHECKS
    assert all(line.split()[1] == "ok" for line in lines), text
    return text


def output_of(tmp_path, *arguments):
    """The result as float32, whatever the arguments say about how it is made."""
    path = tmp_path / "out.npy"
    ok("run", *arguments, "--output", path)
    return numpy.load(path)


@pytest.mark.parametrize("wire", ["bf16", "fp8"])
@pytest.mark.parametrize("transport", ["direct", "copy_engine"])
@pytest.mark.parametrize("gather_scale", ["row", "block"])
def test_every_wire_and_transport_is_right(wire, transport, gather_scale):
    text = verified("--rows", 200, *SMALL, "--ranks", 3, "--wire", wire, "--transport", transport,
                    "--gather-scale", gather_scale, "--repeat", 3)
    assert f"wire {wire}" in text and f"transport {transport}" in text
    assert "the same bits in 3 calls" in text


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("path", ["fused", "base"])
def test_W01_every_world_size_runs(ranks, path):
    verified("--rows", 336, *SMALL, "--ranks", ranks, "--path", path)


@pytest.mark.parametrize("rows", [1, 33, 65, 129])
def test_M05_the_result_has_exactly_the_rows_of_the_call(rows, tmp_path):
    verified("--rows", rows, *SMALL)
    assert output_of(tmp_path, "--rows", rows, *SMALL).shape == (rows, 256)


def test_M05_no_rows_at_all(tmp_path):
    assert output_of(tmp_path, "--rows", 0, *SMALL).shape == (0, 256)


def test_N09_the_fp8_wire_serves_bands_that_no_block_divides():
    verified("--rows", 1000, *SMALL, "--ranks", 8, "--wire", "fp8")


@pytest.mark.parametrize("wire", ["bf16", "fp8"])
def test_all_paths_and_transports_agree(wire, tmp_path):
    base = output_of(tmp_path, "--rows", 130, *SMALL, "--path", "base")
    direct = output_of(tmp_path, "--rows", 130, *SMALL, "--wire", wire)
    copied = output_of(tmp_path, "--rows", 130, *SMALL, "--wire", wire, "--transport", "copy_engine",
                       "--chunks", 1, "--threads", 2)
    assert numpy.array_equal(direct, copied)
    error = numpy.linalg.norm(direct - base) / numpy.linalg.norm(base)
    assert error == 0 if wire == "bf16" else 0 < error < 3e-2


def test_seeds_make_other_operands_and_the_same_seed_the_same(tmp_path):
    first = output_of(tmp_path, "--rows", 64, *SMALL, "--seed", 1)
    assert numpy.array_equal(first, output_of(tmp_path, "--rows", 64, *SMALL, "--seed", 1))
    assert not numpy.array_equal(first, output_of(tmp_path, "--rows", 64, *SMALL, "--seed", 2))


def fp8_values():
    """The value of every e4m3fn code."""
    values = numpy.zeros(256)
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0**(exponent - 10)
        values[code] = -value if code & 128 else value
    values[[0x7F, 0xFF]] = numpy.nan
    return values


def weight_of(path, name, scales_name, ue8m0):
    """The dequantised weight, read without the library."""
    header, begin = tensors_of(path)
    data = path.read_bytes()[begin:]

    def raw(tensor):
        first, last = header[tensor]["data_offsets"]
        return numpy.frombuffer(data[first:last], numpy.uint8)

    codes = fp8_values()[raw(name)].reshape(header[name]["shape"])
    scales = (2.0 ** (raw(scales_name).astype(float) - 127) if ue8m0
              else raw(scales_name).view(numpy.float32).astype(float))
    scales = scales.reshape(header[scales_name]["shape"])
    return codes * scales.repeat(128, 0).repeat(128, 1)[:codes.shape[0], :codes.shape[1]]


@pytest.mark.parametrize("scale_format, scales_name", [("fp32", "m.weight_scale_inv"),
                                                       ("ue8m0", "m.scale")])
def test_a_checkpoint_and_an_input_give_what_numpy_gives(scale_format, scales_name, tmp_path):
    path = make_checkpoint(tmp_path / "m.safetensors", tensor="m", scale_format=scale_format,
                           seed=5, bias="")
    x = numpy.random.default_rng(0).standard_normal((70, 512)).astype(numpy.float32)
    numpy.save(tmp_path / "x.npy", x)
    got = output_of(tmp_path, "--checkpoint", path, "--input", tmp_path / "x.npy", "--ranks", 4)
    header, begin = tensors_of(path)
    first, last = header["m.bias"]["data_offsets"]
    bias = (numpy.frombuffer(path.read_bytes()[begin + first:begin + last], numpy.uint16)
            .astype(numpy.uint32) << 16).view(numpy.float32)
    want = x @ weight_of(path, "m.weight", scales_name, scale_format == "ue8m0").T + bias
    # The activations are quantised to e4m3 on the way, with 3 mantissa bits.
    assert numpy.linalg.norm(got - want) / numpy.linalg.norm(want) < 4e-2


def test_outputs_are_the_same_in_both_formats(tmp_path):
    as_npy = output_of(tmp_path, "--rows", 9, *SMALL)
    path = tmp_path / "out.safetensors"
    ok("run", "--rows", 9, *SMALL, "--output", path)
    header, begin = tensors_of(path)
    assert header["output"]["dtype"] == "BF16" and header["output"]["shape"] == [9, 256]
    bits = numpy.frombuffer(path.read_bytes()[begin:], numpy.uint16)
    assert numpy.array_equal((bits.astype(numpy.uint32) << 16).view(numpy.float32),
                             as_npy.ravel())


def test_a_sharded_checkpoint_and_an_input_in_safetensors(tmp_path):
    make_checkpoint(tmp_path / "a.safetensors", tensor="a")
    make_checkpoint(tmp_path / "b.safetensors", tensor="b", seed=1)
    names = [(n, f) for f in "ab" for n in (f + ".weight", f + ".weight_scale_inv")]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f + ".safetensors" for n, f in names}}))
    x = numpy.ones((3, 512), numpy.float32)
    write_safetensors(tmp_path / "x.safetensors", {"x": ("F32", [3, 512], x.tobytes())})
    text = verified("--checkpoint", index, "--tensor", "b", "--input", tmp_path / "x.safetensors")
    assert "b.weight" in text and "M=3 N=256" in text
    text = refused("run", "--checkpoint", index)
    assert "a.weight" in text and "b.weight" in text and "--tensor" in text


def test_an_input_of_another_width_is_refused_with_both_shapes(tmp_path):
    path = make_checkpoint(tmp_path / "m.safetensors")
    numpy.save(tmp_path / "x.npy", numpy.zeros((3, 256), numpy.float32))
    text = refused("run", "--checkpoint", path, "--input", tmp_path / "x.npy")
    assert "[3, 256]" in text and "[256, 512]" in text


def test_files_that_are_not_there_or_not_what_they_should_be(tmp_path):
    assert "none.safetensors" in refused("run", "--checkpoint", tmp_path / "none.safetensors")
    assert "x.npy" in refused("run", "--input", tmp_path / "x.npy")
    (tmp_path / "zip.safetensors").write_bytes(b"PK\3\4" + bytes(100))
    assert "zip" in refused("run", "--checkpoint", tmp_path / "zip.safetensors")
    path = make_checkpoint(tmp_path / "m.safetensors", tensor="mlp.down_proj")
    assert "mlp.down_proj" in refused("run", "--checkpoint", path, "--tensor", "mlp.down_prj")
    assert "--cols" in refused("run", "--checkpoint", path, "--cols", 8)


def test_D08_a_rank_that_cannot_read_its_slice_ends_all_of_them(tmp_path):
    path = make_checkpoint(tmp_path / "m.safetensors", tensor="m")
    spoil_slice(path, "m.weight", row=3, column=130)  # in the slice of rank 1 of 4
    text = refused("run", "--checkpoint", path, "--ranks", 4, timeout=30)
    assert "rank 1" in text and "NaN" in text and "[3, 130]" in text
    assert "rank 0" not in text


def test_the_trace_is_a_picture_and_a_perfetto_file(tmp_path):
    text = ok("run", "--rows", 300, *SMALL, "--transport", "copy_engine", "--trace",
              tmp_path / "t.svg")
    assert "t.svg" in text and "t.perfetto.json" in text
    assert xml.etree.ElementTree.parse(tmp_path / "t.svg").getroot().tag.endswith("svg")
    events = json.loads((tmp_path / "t.perfetto.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    assert len({e["pid"] for e in events if e["ph"] == "X"}) == 2  # a process per rank
    reduced = [e["args"]["label"] for e in events if e["name"] == "reduce"]
    assert len(reduced) == len(set(reduced)) == 2  # a tile of each band, of one call


def test_what_cannot_be_written_is_said(tmp_path):
    text = rowband("run", "--rows", 8, *SMALL, "--output", tmp_path / "none" / "out.npy")
    assert text.code == 2 and "none/out.npy" in text.err


def test_one_line_says_how_many_rows_the_reference_saw():
    text = verified("--rows", 3000, "--cols", 2048, "--depth", 1024)
    seen = re.search(r"on (\d+) of 3000 rows", text)
    assert seen and 100 < int(seen[1]) < 3000
