"""The decoders agree with recorded conversions, and with values worked out by hand."""

import hashlib

import numpy as np
import pytest
from decoders import awq, ct_int, fp8, fp8_block, golden, gptq, marlin, mxfp4, mxfp8, numbers, nvfp4

ONE = {"float16": 0x3C00, "bfloat16": 0x3F80}
STEP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # largest relative error of one rounding


# --- recorded cases -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", golden.CASES, ids=lambda case: case["id"])
def test_recorded_case(case):
    data = (golden.FOLDER / case["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == case["sha256"]

    padding_is_zero = True
    for matrix in golden.matrices(case):
        stored = marlin.decode(matrix.after, n=matrix.padded_n, k=matrix.padded_k, **matrix.kernel)
        assert stored.shape == (matrix.padded_n, matrix.padded_k)
        expected = matrix.source.decode(rounded(matrix, case), n=matrix.n, k=matrix.k, **matrix.options)
        error = np.abs(stored[matrix.rows, : matrix.k] - expected)
        assert np.isfinite(expected).all() and expected.any()
        assert (error <= (int16_bound(matrix, case, expected) if case["lossy"] else 0)).all()

        padding = stored.copy()
        padding[matrix.rows, : matrix.k] = 0
        assert not padding[:, : matrix.k].any(), "a padded row holds a value"
        padding_is_zero &= not padding.any()
        check_bias(matrix)
    assert padding_is_zero == case["padding_decodes_to_zero"]


def rounded(matrix, case):
    """Checkpoint tensors with float32 scales as the 16-bit type of the case can hold them:
    multiplied by the exponent fold first, rounded once."""
    name = {fp8: "weight_scale", fp8_block: "weight_scale_inv"}.get(matrix.source)
    if name is None:
        return matrix.before
    fold = np.float32(2.0**8 if case["param_dtype"] == "float16" else 2.0**120)
    folded = matrix.before[name] * fold
    if case["param_dtype"] == "float16":
        folded = folded.astype(np.float16).astype(np.float32)
    else:
        bits = folded.view(np.uint32).astype(np.int64)
        nearest_even = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        folded = nearest_even.astype(np.uint32).view(np.float32)
    return matrix.before | {name: folded / fold}


def int16_bound(matrix, case, expected):
    """Scales become int16 multiples of input_global_scale, after one division in the 16-bit type."""
    ones = {
        name: np.full_like(matrix.before[name], ONE[case["param_dtype"]])
        for name in ("scales", "weight_scale")
        if name in matrix.before
    }
    levels = np.abs(matrix.source.decode(matrix.before | ones, n=matrix.n, k=matrix.k, **matrix.options))
    unit = float(matrix.after["input_global_scale"])
    return levels * unit / 2 + np.abs(expected) * STEP[case["param_dtype"]]


def check_bias(matrix):
    assert ("bias" in matrix.before) == ("bias" in matrix.after)
    if "bias" not in matrix.before:
        return
    expected = np.zeros(matrix.padded_n, np.uint16)
    expected[matrix.rows] = matrix.before["bias"]
    np.testing.assert_array_equal(marlin.bias_bits(matrix.after["bias"], n=matrix.padded_n), expected)


# --- numbers ------------------------------------------------------------------------------------


def test_e2m1_is_the_sixteen_values_of_the_standard():
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    np.testing.assert_array_equal(numbers.e2m1(np.arange(16)), values + [-v for v in values])
    assert np.signbit(numbers.e2m1(8))


def test_e4m3fn_is_a_shifted_half_but_for_nan():
    byte = np.arange(256, dtype=np.uint16)
    half = ((byte & 0x80) << 8 | (byte & 0x7F) << 7).view(np.float16).astype(np.float64) * 2.0**8
    half[[0x7F, 0xFF]] = np.nan
    np.testing.assert_array_equal(numbers.e4m3fn(byte), half)
    assert list(numbers.e4m3fn([0x01, 0x38, 0x7E, 0xFE])) == [2.0**-9, 1, 448, -448]


def test_e8m0_is_a_power_of_two():
    assert list(numbers.e8m0([0, 127, 130, 254])) == [2.0**-127, 1, 8, 2.0**127]
    assert np.isnan(numbers.e8m0(255))


def test_s0e5m3():
    # 0x80: exponent field 16, so 2^1. 0x3C << 1 = 0x78: 1.0. 0xF6: 2^15 * 1.75 = 448 * 2^7. 1: 2^-14 / 8.
    assert list(numbers.s0e5m3([0x80, 0x78, 0xF6, 0x01, 0])) == [2, 1, 448 * 2**7, 2.0**-17, 0]


def test_16_and_32_bit_floats_match_the_machine():
    bits = np.arange(1 << 16, dtype=np.uint16)
    as_f32 = bits.astype(np.uint32) << 16
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(numbers.f16(bits), bits.view(np.float16).astype(np.float64))
        np.testing.assert_array_equal(numbers.bf16(bits), as_f32.view(np.float32).astype(np.float64))
        np.testing.assert_array_equal(numbers.f32(as_f32 | 0x1235), (as_f32 | 0x1235).view(np.float32).astype(float))
    assert numbers.f32(np.float32(-1.5)) == -1.5


# --- checkpoint formats, by hand ----------------------------------------------------------------


def words(*hexadecimal):
    return np.array(hexadecimal, np.uint32).view(np.int32)


def half(*values):
    return np.array(values, np.float16).view(np.uint16)


def test_gptq_symmetric_with_a_partial_word():
    # k = 10: codes 0 .. 7 in the first word, 8 and 9 in the two low nibbles of the second, the rest unused.
    tensors = {"qweight": words(0x76543210, 0xFFFFFF98).reshape(2, 1), "scales": half(0.5).reshape(1, 1)}
    value = gptq.decode(tensors, n=1, k=10, group=-1, bits=4, dtype="float16")
    assert value.tolist() == [[-4, -3.5, -3, -2.5, -2, -1.5, -1, -0.5, 0, 0.5]]


def test_gptq_8_bit_has_its_zero_at_128():
    tensors = {"qweight": words(0xFF818000).reshape(1, 1), "scales": half(2).reshape(1, 1)}
    value = gptq.decode(tensors, n=1, k=4, group=-1, bits=8, dtype="float16")
    assert value.tolist() == [[-256, 0, 2, 254]]


def test_gptq_8_bit_zero_points():
    # Zero points of three columns in bytes 0, 1, 2; code 100 everywhere.
    tensors = {"qweight": words(100, 100, 100).reshape(1, 3), "scales": half(1, 1, 1).reshape(1, 3)}
    tensors["qzeros"] = words(0x00C8630A).reshape(1, 1)
    v1 = gptq.decode(tensors, n=3, k=1, group=-1, bits=8, dtype="float16")
    v2 = gptq.decode(tensors, n=3, k=1, group=-1, bits=8, dtype="float16", checkpoint_format="gptq_v2")
    assert v1.tolist() == [[100 - 11], [100 - 100], [100 - 201]]
    assert v2.tolist() == [[100 - 10], [100 - 99], [100 - 200]]


def test_gptq_zero_points_of_both_versions():
    # One input, nine columns (a partial second word), code 10 each. Nibbles 0 .. 7, then F.
    tensors = {"qweight": words(*[10] * 9).reshape(1, 9), "scales": half(*[1] * 9).reshape(1, 9)}
    tensors["qzeros"] = words(0x76543210, 0x0000000F).reshape(1, 2)
    v1 = gptq.decode(tensors, n=9, k=1, group=-1, bits=4, dtype="float16")
    v2 = gptq.decode(tensors, n=9, k=1, group=-1, bits=4, dtype="float16", checkpoint_format="gptq_v2")
    assert v1[:, 0].tolist() == [9, 8, 7, 6, 5, 4, 3, 2, -6]  # 10 - (nibble + 1); the last is 10 - 16
    assert v2[:, 0].tolist() == [10, 9, 8, 7, 6, 5, 4, 3, -5]


def test_gptq_symmetric_files_carry_zero_points_of_7():
    tensors = {"qweight": words(0x76543210).reshape(1, 1), "scales": half(1).reshape(1, 1)}
    plain = gptq.decode(tensors, n=1, k=8, group=-1, bits=4, dtype="float16")
    carried = gptq.decode(
        tensors | {"qzeros": words(0x77777777).reshape(1, 1)}, n=1, k=8, group=-1, bits=4, dtype="float16"
    )
    assert plain.tolist() == carried.tolist()


def test_gptq_act_order_takes_scale_and_zero_point_from_g_idx():
    # Inputs 0 and 3 in group 1 (scale 4, zero 2), inputs 1 and 2 in group 0 (scale 1, zero 1); v1 stores 1 and 0.
    tensors = {
        "qweight": words(0x00008765).reshape(1, 1),
        "scales": half(1, 4).reshape(2, 1),
        "qzeros": words(0, 1).reshape(2, 1),
        "g_idx": np.array([1, 0, 0, 1], np.int32),
    }
    value = gptq.decode(tensors, n=1, k=4, group=2, bits=4, dtype="float16")
    assert value.tolist() == [[(5 - 2) * 4, 6 - 1, 7 - 1, (8 - 2) * 4]]


def test_gptq_short_last_group():
    tensors = {"qweight": words(0x00000999).reshape(1, 1), "scales": half(1, 8).reshape(2, 1)}
    assert gptq.decode(tensors, n=1, k=3, group=2, bits=4, dtype="float16").tolist() == [[1, 1, 8]]


def test_awq_nibble_order():
    # Word 0x76543210: low nibble first it reads 0 .. 7, and its columns are 0 2 4 6 1 3 5 7.
    # The second word holds columns 8 (nibble 0) and 9 (nibble 4). Zero points: 1 in every nibble.
    tensors = {
        "qweight": words(0x76543210, 0xFFF9FFF8).reshape(1, 2),
        "qzeros": words(0x11111111, 0x11111111).reshape(1, 2),
        "scales": np.full((1, 10), 0x4000, np.uint16),  # bfloat16 2.0
    }
    value = awq.decode(tensors, n=10, k=1, group=-1, dtype="bfloat16")
    assert value[:, 0].tolist() == [2 * (q - 1) for q in (0, 4, 1, 5, 2, 6, 3, 7, 8, 9)]


def test_awq_zero_points_use_the_same_order():
    tensors = {"qweight": words(0x88888888).reshape(1, 1), "scales": half(*[1] * 8).reshape(1, 8)}
    tensors["qzeros"] = words(0x76543210).reshape(1, 1)
    assert awq.decode(tensors, n=8, k=1, group=-1, dtype="float16")[:, 0].tolist() == [8, 4, 7, 3, 6, 2, 5, 1]


def test_ct_int_symmetric_and_with_zero_points_along_n():
    # Rows 0 and 1 with three inputs each; zero points 3 and 9 in nibbles 0 and 1 of one word.
    tensors = {"weight_packed": words(0x00000F80, 0x00000123).reshape(2, 1), "weight_scale": half(1, 2).reshape(2, 1)}
    symmetric = ct_int.decode(tensors, n=2, k=3, group=-1, bits=4, dtype="float16")
    assert symmetric.tolist() == [[-8, 0, 7], [-10, -12, -14]]
    tensors["weight_zero_point"] = words(0x00000093).reshape(1, 1)
    asymmetric = ct_int.decode(tensors, n=2, k=3, group=-1, bits=4, dtype="float16")
    assert asymmetric.tolist() == [[-3, 5, 12], [-12, -14, -16]]


def test_ct_int_8_bit_zero_points():
    # Five rows of one input: the fifth zero point stands alone in the second word.
    tensors = {
        "weight_packed": words(0, 1, 128, 200, 255).reshape(5, 1),
        "weight_scale": half(1, 1, 1, 1, 0.5).reshape(5, 1),
        "weight_zero_point": words(0xFF800100, 0x00000001).reshape(2, 1),
    }
    value = ct_int.decode(tensors, n=5, k=1, group=-1, bits=8, dtype="float16")
    assert value[:, 0].tolist() == [0 - 0, 1 - 1, 128 - 128, 200 - 255, (255 - 1) / 2]


def test_ct_int_g_idx_and_its_unset_value():
    tensors = {"weight_packed": words(0x00009999).reshape(1, 1), "weight_scale": half(1, 2).reshape(1, 2)}
    options = {"n": 1, "k": 4, "group": 2, "bits": 4, "dtype": "float16"}
    ordered = {"weight_g_idx": np.array([1, 0, 1, 0], np.int32), "weight_shape": np.array([1, 4])}
    assert ct_int.decode(tensors | ordered, **options).tolist() == [[2, 1, 2, 1]]
    unset = {"weight_g_idx": np.full(4, -1, np.int32)}
    assert ct_int.decode(tensors | unset, **options).tolist() == [[1, 1, 2, 2]]


def test_fp8_scales_per_tensor_part_and_channel():
    weight = np.full((3, 2), 0x38, np.uint8)  # 1.0
    one = {"weight": weight, "weight_scale": np.float32(0.5).reshape(())}
    parts = {"weight": weight, "weight_scale": np.array([2, 4], np.float32)}
    channel = {"weight": weight, "weight_scale": np.array([[1], [2], [3]], np.float32)}
    assert fp8.decode(one, n=3, k=2).tolist() == [[0.5, 0.5]] * 3
    assert fp8.decode(parts, n=3, k=2, widths=[1, 2]).tolist() == [[2, 2], [4, 4], [4, 4]]
    assert fp8.decode(channel, n=3, k=2).tolist() == [[1, 1], [2, 2], [3, 3]]


def test_fp8_block_with_short_last_blocks():
    # 1 2 3 1 / -1 -2 2^-9 2 / 448 0 1 1, in blocks of 2 x 3: the third row and the fourth column are short.
    weight = np.array([[0x38, 0x40, 0x44, 0x38], [0xB8, 0xC0, 0x01, 0x40], [0x7E, 0, 0x38, 0x38]], np.uint8)
    scale = np.array([[1, 2], [4, 8]], np.float32)
    expected = [[1, 2, 3, 2], [-1, -2, 2.0**-9, 4], [4 * 448, 0, 4, 8]]
    assert fp8_block.decode({"weight": weight, "weight_scale_inv": scale}, n=3, k=4, block=(2, 3)).tolist() == expected
    ct = {"weight": weight, "weight_scale": (scale.view(np.uint32) >> 16).astype(np.uint16)}
    assert fp8_block.decode(ct, n=3, k=4, block=(2, 3), dtype="bfloat16").tolist() == expected


def test_fp8_block_is_128_by_128_unless_told():
    tensors = {
        "weight": np.full((130, 131), 0x38, np.uint8),
        "weight_scale_inv": np.array([[1, 2], [3, 4]], np.float32),
    }
    value = fp8_block.decode(tensors, n=130, k=131)
    assert value[127:129, 127:129].tolist() == [[1, 2], [3, 4]]


def test_mxfp8_with_a_short_last_group():
    tensors = {"weight": np.full((1, 33), 0x3C, np.uint8), "weight_scale": np.array([[127, 120]], np.uint8)}
    assert mxfp8.decode(tensors, n=1, k=33).tolist() == [[1.5] * 32 + [1.5 / 128]]


def test_mxfp4_low_nibble_first_and_a_partial_byte():
    # 0x21: 0.5 then 1; 0x7F: -6 then 6; 0x.3: 1.5, its upper nibble unused. Scale 2^1.
    tensors = {"weight_packed": np.array([[0x21, 0x7F, 0xF3]], np.uint8), "weight_scale": np.array([[128]], np.uint8)}
    assert mxfp4.decode(tensors, n=1, k=5).tolist() == [[1, 2, -12, 12, 3]]


def test_gpt_oss_rows_alternate_between_gate_and_up():
    blocks = np.zeros((4, 2, 16), np.uint8)
    blocks[:, 0, 0] = 0x21  # inputs 0 and 1: 0.5 and 1
    blocks[:, 1, 0] = 0x02  # inputs 32 and 33: 1 and 0
    blocks[:, 1, 15] = 0x60  # inputs 62 and 63: 0 and 4
    scales = np.array([[127, 127], [128, 128], [129, 127], [130, 126]], np.uint8)
    tensors = {"gate_up_proj_blocks": blocks, "gate_up_proj_scales": scales}
    rows = mxfp4.decode_gpt_oss(tensors, name="gate_up_proj", n=4, k=64)
    gate, up = mxfp4.gate_and_up(rows)
    assert rows[:, [0, 1, 32, 63]].tolist() == [[0.5, 1, 1, 4], [1, 2, 2, 8], [2, 4, 1, 4], [4, 8, 0.5, 2]]
    assert gate[:, 0].tolist() == [0.5, 2] and up[:, 0].tolist() == [1, 4]
    assert np.count_nonzero(rows) == 16


def test_nvfp4_global_scale_multiplies_or_divides():
    # Codes 0.5, 6 | group 1: -1, alone in its byte. Block scales 2 and 0.5; global 4.
    packed = np.zeros((1, 9), np.uint8)
    packed[0, 0], packed[0, 8] = 0x71, 0x0A
    scale, two = np.array([[0x40, 0x30]], np.uint8), np.array([4], np.float32)
    modelopt = {"weight": packed, "weight_scale": scale, "weight_scale_2": two}
    ct = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": two}
    assert nvfp4.decode(modelopt, n=1, k=17)[0, [0, 1, 2, 16]].tolist() == [4, 48, 0, -2]
    assert nvfp4.decode(ct, n=1, k=17)[0, [0, 1, 2, 16]].tolist() == [0.25, 3, 0, -0.125]


# --- kernel side, by hand -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "activation_bits", "word", "shift"),
    [
        # n 75 = tile 1, j 0, b 1, column 3; k 29 = tile 1, k3 1, lane 2, k0 1 (K 32, N 128, two tiles of n).
        (4, 16, 3 * 128 + 3 * 16 + 2 * 4 + 0, 4 * (4 + 2 + 1)),
        (8, 16, 3 * 256 + 3 * 32 + 2 * 8 + 1, 8 * (2 + 1)),
        # n 75 = tile 2, j 0, b 1, column 3; k 29 = tile 0, k4 1, lane 3, k0 1 (four tiles of n).
        (4, 8, 2 * 128 + 3 * 16 + 3 * 4 + 1, 4 * (2 + 1)),
        (8, 8, 2 * 256 + 3 * 32 + 3 * 8 + 2 + 1, 8 * 1),
    ],
)
def test_marlin_place_of_one_weight(bits, activation_bits, word, shift):
    flat = np.zeros(32 * 128 * bits // 32, np.uint32)
    flat[word] = 5 << shift
    stored = flat.view(np.int32).reshape(2, -1)
    codes = marlin.weight_codes(stored, n=128, k=32, bits=bits, activation_bits=activation_bits)
    assert np.argwhere(codes).tolist() == [[75, 29]] and codes[75, 29] == 5


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("activation_bits", [8, 16])
def test_marlin_weights_have_one_place_each(bits, activation_bits):
    # Store bit 0, 1, ... of every code's own address in turn: what comes back are the addresses.
    n, k = 128, 64
    address = np.arange(n * k)
    read = 0
    for bit in range(13):
        codes = (address >> bit & 1).astype(np.uint8)
        packed = codes if bits == 8 else codes[0::2] | codes[1::2] << 4
        weight = packed.view(np.int32).reshape(k // 16, -1)
        read += marlin.weight_codes(weight, n=n, k=k, bits=bits, activation_bits=activation_bits) << bit
    assert sorted(read.reshape(-1)) == address.tolist()


def test_marlin_scale_orders_undo_the_published_tables():
    # Tables of the first Marlin release: stored column c holds feature table[c].
    grouped = [i + 8 * j for i in range(8) for j in range(8)]
    channel = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
    # vLLM's MX and NVFP4 scales: the grouped order, then each four columns as 0 2 1 3.
    swapped = [grouped[c // 4 * 4 + (0, 2, 1, 3)[c % 4]] for c in range(64)]
    assert marlin.grouped_columns(64)[grouped].tolist() == list(range(64))
    assert marlin.channel_columns(32)[channel].tolist() == list(range(32))
    assert marlin.byte_columns(64)[swapped].tolist() == list(range(64))
    for columns in (marlin.grouped_columns, marlin.channel_columns, marlin.byte_columns):
        assert (columns(128)[64:] == columns(64) + 64).all()


@pytest.mark.parametrize(
    ("bits", "activation_bits", "word", "shift"),
    # n 83 = tile 1, j0 0, j1 1, j2 0, i 3.
    [(4, 16, 8 + 3, 4 * 1), (4, 8, 8 + 3, 4 * 2), (8, 16, 16 + 3 * 2, 8 * 1)],
)
def test_marlin_place_of_one_zero_point(bits, activation_bits, word, shift):
    stored = np.zeros((2, 128 * bits // 32), np.int32)
    stored[1, word] = 7 << shift
    zeros = marlin.zero_points(stored, n=128, bits=bits, activation_bits=activation_bits)
    assert np.argwhere(zeros).tolist() == [[1, 83]] and zeros[1, 83] == 7


@pytest.mark.parametrize(("bits", "activation_bits"), [(4, 16), (4, 8), (8, 16)])
def test_marlin_zero_points_have_one_place_each(bits, activation_bits):
    n = 128
    read = 0
    for bit in range(8):
        codes = (np.arange(2 * n) >> bit & 1).astype(np.uint8)
        packed = codes if bits == 8 else codes[0::2] | codes[1::2] << 4
        stored = packed.view(np.int32).reshape(2, -1)
        read += marlin.zero_points(stored, n=n, bits=bits, activation_bits=activation_bits) << bit
    assert sorted(read.reshape(-1)) == list(range(2 * n))


def test_marlin_8_bit_codes_with_zero_points():
    tensors = {"weight": np.full((8, 256), 0x64646464, np.int32), "weight_scale": half(*[0.5] * 64).reshape(1, 64)}
    tensors["zero_point"] = np.zeros((1, 16), np.int32)
    tensors["zero_point"][0, 3 * 2 + 1] = 90 << 16  # n 43 = j2 1, j1 0, j0 1, i 3: word i * 2 + j2, byte j0 * 2 + j1
    value = marlin.decode(tensors, n=64, k=128, code="u8", activation="float16", dtype="float16")
    assert (value[43] == (100 - 90) / 2).all() and (np.delete(value, 43, axis=0) == 100 / 2).all()


def test_fp8_activation_codes_undo_with_their_zero_point():
    q, zero = np.indices((16, 16))
    stored = np.where(q >= zero, q - zero, 15 - q)
    np.testing.assert_array_equal(marlin.levels(stored, zero, "float8_e4m3fn"), q - zero)


def test_nvfp4_scale_bytes_that_a_bfloat16_kernel_misreads():
    # 0x78 is 1.0 to a float16 kernel; a bfloat16 one reads exponent field 15, which is 2^-112.
    tensors = {"global_scale": np.array([1], np.float32)}
    byte = np.array([0x78, 0x80], np.uint8)
    f16 = marlin.float_scale(byte, tensors, "e2m1", "float16", "float16")
    bf16 = marlin.float_scale(byte, tensors, "e2m1", "bfloat16", "bfloat16")
    assert f16.tolist() == [2.0**-14, 2.0**-13]
    assert bf16.tolist() == [2.0**-238, 2.0**-125]
