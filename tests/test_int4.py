"""4-bit weights: blocks, the kernel's order, and the linears that multiply by them."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from sinkchat.models.int4.blocks import Blocks, blocks_of, quantized, stacked
from sinkchat.models.int4.linear import FEW_ROWS, Int4Linear, Int8Linear
from sinkchat.models.int4.packing import fits, is_here, pack, row_order, unpack

pytestmark = pytest.mark.skipif(not is_here(), reason="this torch has no 4-bit kernel for CPUs")

OUTPUTS = [16, 32, 48, 64, 80, 192, 208]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(blocks: Blocks) -> Blocks:
    return Blocks(blocks.codes, blocks.scales.bfloat16(), blocks.zeros.bfloat16())


def one_by_one(blocks: Blocks) -> Tensor:
    """The weights in plain numbers: (code - 8) * scale + zero, in the middle of each group its own."""
    rows, columns = blocks.codes.shape
    weights = [
        [
            (int(blocks.codes[i, j]) - 8) * float(blocks.scales[i, j // 32]) + float(blocks.zeros[i, j // 32])
            for j in range(columns)
        ]
        for i in range(rows)
    ]
    return torch.tensor(weights)


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_codes_come_back_from_the_order_of_the_kernel(outputs: int) -> None:
    codes = torch.randint(0, 16, (outputs, 96), generator=torch.Generator().manual_seed(outputs), dtype=torch.uint8)
    packed = pack(codes)
    assert packed.shape == (outputs, 48)
    assert torch.equal(unpack(packed), codes)
    assert not torch.equal(unpack(packed.roll(1)), codes)


def test_each_row_of_a_block_has_a_place_of_its_own() -> None:
    for rows in (16, 32, 48, 64):
        assert sorted(row_order(rows)) == list(range(rows))


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_the_kernel_multiplies_by_the_weights_that_are_unpacked(outputs: int) -> None:
    """One-hot inputs show the kernel's weights one at a time."""
    layer = Int4Linear.of(quantized(numbers(outputs, 64)), bias=None)
    one_hot = torch.eye(64, dtype=torch.bfloat16)
    shown = torch.cat([layer(one_hot[i : i + 1]) for i in range(64)])
    assert torch.equal(shown, layer.transposed())
    assert not torch.equal(shown, layer.transposed().roll(1, dims=1))


def test_unpacked_weights_are_those_of_the_blocks() -> None:
    blocks = rounded(quantized(numbers(48, 64)))
    expected = one_by_one(blocks)
    assert torch.equal(Int4Linear.of(blocks, bias=None).transposed(), expected.T.bfloat16())
    assert torch.equal(blocks.dequantized(), expected.bfloat16())
    other = one_by_one(Blocks(blocks.codes, blocks.scales, blocks.zeros.roll(1, dims=1)))
    assert not torch.equal(blocks.dequantized(), other.bfloat16())


def test_quantising_takes_the_nearest_of_sixteen_values() -> None:
    weight = numbers(16, 64) + 0.5
    blocks = quantized(weight)
    groups, codes = weight.view(16, 2, 32), blocks.codes.view(16, 2, 32)
    levels = (torch.arange(16) - 8) * blocks.scales.unsqueeze(-1) + blocks.zeros.unsqueeze(-1)
    nearest = (groups.unsqueeze(-1) - levels.unsqueeze(2)).abs().argmin(-1)
    assert torch.equal(nearest, codes.long())
    assert (codes.amin(-1) == 0).all()
    assert (codes.amax(-1) == 15).all()


def test_a_group_of_equal_weights_is_kept() -> None:
    for value in (0.0, 0.75, -2.0):
        blocks = quantized(torch.full((16, 32), value))
        assert torch.equal(blocks.dequantized(), torch.full((16, 32), value))


def test_few_rows_and_many_give_the_same() -> None:
    layer = Int4Linear.of(quantized(numbers(80, 64)), bias=numbers(80).bfloat16())
    x = numbers(2, FEW_ROWS, 64, seed=1).bfloat16()
    many = layer(x)
    few = torch.stack([layer(x[0]), layer(x[1])])
    assert many.shape == (2, FEW_ROWS, 80)
    plain = x.float() @ layer.transposed().float() + layer.bias.float()
    for given in (many, few):
        torch.testing.assert_close(given.float(), plain, rtol=0.02, atol=0.08)
    assert (many.float() - plain.roll(1, dims=-1)).abs().max() > 1


def test_inputs_need_not_lie_in_one_piece() -> None:
    layer = Int4Linear.of(quantized(numbers(32, 64)), bias=None)
    wide = numbers(2, 128, seed=1).bfloat16()
    assert torch.equal(layer(wide[:, 64:]), layer(wide[:, 64:].contiguous()))


def test_stacked_matrices_are_one_above_the_other() -> None:
    parts = [quantized(numbers(16, 32, seed=seed)) for seed in (1, 2)]
    assert torch.equal(stacked(parts).dequantized(), torch.cat([part.dequantized() for part in parts]))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_the_blocks_of_a_gguf_file_are_taken_as_they_are(tmp_path: Path, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    stored = gguf.quants.quantize((numbers(48, 96) + 0.3).numpy(), quantization)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("a", stored, raw_dtype=quantization)
    writer.add_tensor("b", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    one, other = gguf.GGUFReader(tmp_path / "one.gguf").tensors
    blocks = blocks_of(one)
    assert blocks is not None
    expected = torch.from_numpy(gguf.dequantize(stored, quantization))
    torch.testing.assert_close(blocks.dequantized(), expected, rtol=1e-6, atol=1e-6)
    assert (blocks.rows(torch.arange(48).roll(1)).dequantized() - expected).abs().max() > 0.1
    assert blocks_of(other) is None


def test_eight_bits_keep_each_row_within_half_a_step() -> None:
    weight = numbers(64, 96)
    layer = Int8Linear.of(weight, bias=None)
    error = (layer.codes.float() * layer.scales.float().unsqueeze(1) - weight).abs()
    step = weight.abs().amax(1, keepdim=True) / 127
    assert (error <= 0.5 * step * 1.5).all()  # the scale is rounded to 8 bits: the largest may be a little short
    assert not (error <= 0.2 * step).all()


def test_the_head_gives_the_same_for_few_rows_and_for_many() -> None:
    layer = Int8Linear.of(numbers(80, 64), bias=numbers(80))
    x = numbers(1, 12, 64, seed=1).bfloat16()
    plain = x.float() @ (layer.codes.float() * layer.scales.float().unsqueeze(1)).T + layer.bias.float()
    for given in (layer(x), torch.cat([layer(x[:, i : i + 1]) for i in range(12)], 1)):
        torch.testing.assert_close(given.float(), plain, rtol=0.02, atol=0.08)


def test_sizes_that_the_kernel_does_not_take_are_known() -> None:
    assert fits(16, 32)
    assert not fits(20, 32)
    assert not fits(16, 48)
