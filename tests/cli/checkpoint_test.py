"""`rowband make-checkpoint` and `rowband quantize`."""

import numpy
import pytest
from program import make_checkpoint, ok, refused, tensors_of, write_safetensors


@pytest.mark.parametrize("scale_format, scales, dtype", [
    ("fp32", "w.weight_scale_inv", "F32"), ("ue8m0", "w.scale", "F8_E8M0")])
def test_make_checkpoint_writes_deepseek_s_names(tmp_path, scale_format, scales, dtype):
    path = make_checkpoint(tmp_path / "m.safetensors", cols=200, depth=384, tensor="w",
                           scale_format=scale_format, bias="")
    header, _ = tensors_of(path)
    assert {n: (t["dtype"], t["shape"]) for n, t in header.items()} == {
        "w.weight": ("F8_E4M3", [200, 384]), scales: (dtype, [2, 3]), "w.bias": ("BF16", [200])}


def test_make_checkpoint_is_made_by_its_seed(tmp_path):
    first = make_checkpoint(tmp_path / "a.safetensors", seed=3).read_bytes()
    assert first == make_checkpoint(tmp_path / "b.safetensors", seed=3).read_bytes()
    assert first != make_checkpoint(tmp_path / "c.safetensors", seed=4).read_bytes()


def test_make_checkpoint_refuses_what_is_no_shape(tmp_path):
    path = tmp_path / "m.safetensors"
    assert "[0, 128]" in refused("make-checkpoint", "--output", path, "--cols", 0, "--depth", 128)
    assert not path.exists()


def bf16_checkpoint(path):
    """Two matrices and a vector; returns the first as float32."""
    rng = numpy.random.default_rng(1)
    w = rng.standard_normal((256, 512)).astype(numpy.float32)
    as_bf16 = (w.view(numpy.uint32) >> 16).astype(numpy.uint16)
    write_safetensors(path, {
        "a.weight": ("BF16", [256, 512], as_bf16.tobytes()),
        "b.weight": ("F32", [128, 256], w[:128, :256].tobytes()),
        "norm.weight": ("F32", [4], numpy.ones(4, numpy.float32).tobytes())})
    return (as_bf16.astype(numpy.uint32) << 16).view(numpy.float32)


def test_quantize_every_matrix_or_those_that_are_named(tmp_path):
    bf16_checkpoint(tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    text = ok("quantize", "--checkpoint", tmp_path / "in.safetensors", "--output", out)
    header, _ = tensors_of(out)
    assert header["a.weight"]["dtype"] == header["b.weight"]["dtype"] == "F8_E4M3"
    assert header["norm.weight"]["dtype"] == "F32"
    assert "a.weight" in text and "b.weight" in text
    ok("quantize", "--checkpoint", tmp_path / "in.safetensors", "--output", out, "--tensor",
       "b.weight", "--scale-format", "ue8m0")
    header, _ = tensors_of(out)
    assert header["a.weight"]["dtype"] == "BF16"
    assert header["b.scale"]["dtype"] == "F8_E8M0"


def test_what_quantize_writes_can_be_run_and_is_close_to_what_it_read(tmp_path):
    w = bf16_checkpoint(tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    ok("quantize", "--checkpoint", tmp_path / "in.safetensors", "--output", out)
    x = numpy.random.default_rng(2).standard_normal((40, 512)).astype(numpy.float32)
    numpy.save(tmp_path / "x.npy", x)
    ok("run", "--checkpoint", out, "--tensor", "a", "--input", tmp_path / "x.npy", "--verify",
       "--output", tmp_path / "y.npy")
    want = x @ w.T
    error = numpy.linalg.norm(numpy.load(tmp_path / "y.npy") - want) / numpy.linalg.norm(want)
    assert error < 5e-2  # both operands went through 3 mantissa bits


def test_quantize_names_a_tensor_that_is_not_there(tmp_path):
    bf16_checkpoint(tmp_path / "in.safetensors")
    out = tmp_path / "out.safetensors"
    text = refused("quantize", "--checkpoint", tmp_path / "in.safetensors", "--output", out,
                   "--tensor", "a.wieght")
    assert "a.wieght" in text and not out.exists()
