"""Holds rowband/numerics to ml_dtypes and numpy, bit for bit.

CTest runs it with ROWBAND_DUMP_NUMERICS naming the dump_numerics program.
"""

import os
import subprocess

import ml_dtypes
import numpy as np
import pytest

FLOAT_MIN = np.finfo(np.float32).tiny
FLOAT_MAX = np.finfo(np.float32).max
E4M3_MAX = np.float32(448)
BLOCK = 128


def dump(operation, values, *arguments):
    """The bytes that dump_numerics makes of `values`."""
    command = [os.environ["ROWBAND_DUMP_NUMERICS"], operation, *map(str, arguments)]
    done = subprocess.run(command, input=values.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def convert(operation, values, dtype):
    result = np.frombuffer(dump(operation, values), dtype)
    assert result.size == values.size
    return result


def all_bf16():
    return np.arange(65536, dtype=np.uint16)


def widen_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def floats_around_bf16_ties():
    """Every bf16 with the low halves that decide rounding: exact, near, on and past the tie."""
    low_halves = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return ((all_bf16().astype(np.uint32) << 16)[:, None] | low_halves).ravel().view(np.float32)


def floats_around_e4m3_ties():
    """Every finite code, every midpoint of two neighbours, and the floats on both sides of each."""
    codes = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    points = np.concatenate([codes, (codes[:-1] + codes[1:]) / 2, np.float32([464, 480])])
    points = np.concatenate([points, np.nextafter(points, np.float32(0)),
                             np.nextafter(points, np.float32(np.inf))])
    return np.concatenate([points, -points])


def e4m3_codes(values):
    """Codes by ml_dtypes. Its overflow gives NaN where ours saturates, so clip first; the code of a
    NaN is taken by its sign."""
    nan = np.isnan(values)
    clipped = np.clip(np.where(nan, np.float32(0), values), -E4M3_MAX, E4M3_MAX)
    codes = clipped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(nan, np.where(np.signbit(values), np.uint8(0xFF), np.uint8(0x7F)), codes)


def round_up_to_power_of_two(values):
    mantissa, exponent = np.frexp(values)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)
    return np.ldexp(np.float32(1), np.clip(exponent, -126, 127)).astype(np.float32)


def block_scales(amax, ue8m0):
    scales = np.clip(amax / E4M3_MAX, FLOAT_MIN, FLOAT_MAX)
    if ue8m0:
        scales = round_up_to_power_of_two(scales)
    return np.where(amax == 0, np.float32(1), scales).astype(np.float32)


def quantize(values, block_rows, ue8m0):
    """Codes and scales of a float32 matrix in blocks of [block_rows, 128]."""
    rows, depth = values.shape
    codes = np.empty((rows, depth), np.uint8)
    scales = np.empty((-(-rows // block_rows), -(-depth // BLOCK)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            where = np.s_[i * block_rows:(i + 1) * block_rows, j * BLOCK:(j + 1) * BLOCK]
            magnitudes = np.abs(values[where])
            amax = np.max(magnitudes[~np.isnan(magnitudes)], initial=np.float32(0))
            scales[i, j] = block_scales(amax, ue8m0)
            codes[where] = e4m3_codes(values[where] / scales[i, j])
            assert scales[i, j].dtype == np.float32
    # NaN codes by the sign of the element; arithmetic may have changed it.
    return np.where(np.isnan(values), e4m3_codes(values), codes), scales


def dump_quantized(operation, values, shape, scales_shape, ue8m0):
    flags = ["--ue8m0"] if ue8m0 else []
    raw = dump(operation, values, "--rows", shape[0], "--depth", shape[1], *flags)
    count = shape[0] * shape[1]
    codes = np.frombuffer(raw[:count], np.uint8).reshape(shape)
    return codes, np.frombuffer(raw[count:], np.float32).reshape(scales_shape)


def assert_same_bits(got, want):
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    bits = np.dtype(f"u{got.itemsize}")
    different = np.argwhere(got.view(bits) != want.view(bits))
    assert different.size == 0, (
        f"{len(different)} differ, first at {different[0]}: "
        f"{got[tuple(different[0])]!r}, must be {want[tuple(different[0])]!r}")


def test_every_e4m3_code():
    codes = np.arange(256, dtype=np.uint8)
    assert_same_bits(convert("e4m3-to-float", codes, np.float32),
                     codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def test_every_e8m0_code():
    codes = np.arange(256, dtype=np.uint8)
    got = convert("e8m0-to-float", codes, np.float32)
    want = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    assert_same_bits(got[:255], want[:255])
    assert np.isnan(got[255]) and np.isnan(want[255])


def test_every_bf16_to_float():
    assert_same_bits(convert("bf16-to-float", all_bf16(), np.float32), widen_bf16(all_bf16()))


@pytest.mark.parametrize("values", [widen_bf16(all_bf16()), floats_around_bf16_ties(),
                                    floats_around_e4m3_ties()],
                         ids=["every bf16", "bf16 ties", "e4m3 ties"])
def test_float_to_e4m3(values):
    assert_same_bits(convert("float-to-e4m3", values, np.uint8), e4m3_codes(values))


def test_float_to_bf16():
    values = floats_around_bf16_ties()
    got = convert("float-to-bf16", values, np.uint16)
    nan = np.isnan(values)
    assert_same_bits(got[~nan], values[~nan].astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.isnan(widen_bf16(got[nan])).all()
    assert_same_bits(np.signbit(widen_bf16(got[nan])), np.signbit(values[nan]))


def test_float_to_e8m0():
    exponents = np.arange(0, 255, dtype=np.uint32)[:, None] << 23
    fractions = np.array([0, 1, 2, 0x400000, 0x7FFFFE, 0x7FFFFF], np.uint32)
    values = (exponents | fractions).ravel()[1:].view(np.float32)  # without zero
    want = round_up_to_power_of_two(values).astype(ml_dtypes.float8_e8m0fnu).view(np.uint8)
    assert_same_bits(convert("float-to-e8m0", values, np.uint8), want)


@pytest.mark.parametrize("ue8m0", [False, True], ids=["fp32", "ue8m0"])
@pytest.mark.parametrize("order", ["neighbours", "spread", "shuffled"])
def test_quantize_every_bf16(order, ue8m0):
    bits = {
        "neighbours": all_bf16(),
        "spread": all_bf16().reshape(BLOCK, -1).T.ravel(),
        "shuffled": np.random.default_rng(0).permutation(all_bf16()),
    }[order].reshape(-1, BLOCK)
    assert np.array_equal(np.unique(bits), all_bf16())
    with np.errstate(all="ignore"):
        codes, scales = quantize(widen_bf16(bits), 1, ue8m0)
    got_codes, got_scales = dump_quantized("quantize-activations", bits, bits.shape, scales.shape,
                                           ue8m0)
    assert_same_bits(got_scales, scales)
    assert_same_bits(got_codes, codes)


@pytest.mark.parametrize("ue8m0", [False, True], ids=["fp32", "ue8m0"])
@pytest.mark.parametrize("shape", [(256, 384), (136, 200), (1, 1)])
def test_quantize_weights(shape, ue8m0):
    random = np.random.default_rng(1)
    # A scale per row spreads the codes of a block over the whole range, subnormal codes included.
    values = random.standard_normal(shape) * np.exp2(random.integers(-20, 3, (shape[0], 1)))
    values = values.astype(np.float32)
    codes, scales = quantize(values, BLOCK, ue8m0)
    got_codes, got_scales = dump_quantized("quantize-weights", values, shape, scales.shape, ue8m0)
    assert_same_bits(got_scales, scales)
    assert_same_bits(got_codes, codes)
