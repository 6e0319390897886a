"""How the torch backend does it: grids of codes in bytes, boxes cut in pieces, exchanges of codes in words of any size.
That it gives the reference's bytes is said for drawn plans in test_backends.py."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import NAMES, inputs_of, plan_named

from layoutdsl import Plan, compile_plan
from layoutdsl.backends.torch import pieces
from layoutdsl.backends.torch import programs as torch_programs
from layoutdsl.backends.torch.boxes import Addresses, Box, tiles
from layoutdsl.backends.torch.codes import Codes
from layoutdsl.backends.torch.lower import halved, lower, straight
from layoutdsl.backends.torch.sources import data
from layoutdsl.backends.torch.words import Words, carry
from layoutdsl.codes import code_named
from layoutdsl.layout import Chain, View

QUICK = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def raw(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) for name, tensor in tensors.items()}


# --- which way --------------------------------------------------------------------------------------------------------

ON_WORDS = [
    ("gptq", "marlin_int4_a16", {"group": 64}),
    ("gptq", "marlin_int4_a16", {"group": 64, "act_order": True}),
    ("gptq", "marlin_int4_a8fp8", {"group": 64}),
    ("gptq", "marlin_int8_a16", {"group": 64, "bits": 8, "act_order": True}),
    ("gptq", "ct_int", {"group": 64, "bits": 4}),
    ("awq", "marlin_int4_a16", {"group": 64}),
    ("awq", "gptq", {"group": 64, "target.zero_offset": 0}),
    ("ct_int", "marlin_int4_a16", {"group": 64}),
    ("ct_int", "marlin_int4_a16", {"group": 64, "act_order": True}),
    ("marlin_int4_a16", "gptq", {"group": 64}),
    ("fp8", "marlin_fp8_a16", {"dtype": "bfloat16"}),
    ("marlin_fp8_a16", "fp8", {"dtype": "bfloat16"}),
    ("mxfp4", "marlin_mxfp4_a16", {}),
    ("nvfp4", "marlin_nvfp4_a16", {}),
]


@pytest.mark.parametrize("module", ["linear", "moe_gated"])
@pytest.mark.parametrize(("source", "target", "params"), ON_WORDS, ids=str)
def test_weights_go_on_words(source, target, params, module, monkeypatch):
    sizes = {"n": 128, "k": 256} if module == "linear" else {"e": 2, "i": 128, "h": 256}
    plan = compile_plan(source, target, module, sizes, params=params)
    moved: set[str] = set()
    real = torch_programs.Carrier._piece
    monkeypatch.setattr(
        torch_programs.Carrier,
        "_piece",
        lambda self, *rest: (moved.add(self.program.output), real(self, *rest)),
    )
    tensors = inputs_of(plan)
    made = plan.run(tensors)
    assert raw(made) == raw(plan.run(tensors, backend="reference"))
    assert not moved & {info.name for info in plan.outputs if info.role == "codes"}


@pytest.mark.parametrize("name", NAMES)
def test_tensors_may_begin_anywhere(name):
    """Words are narrower where a tensor begins inside of one."""
    plan = plan_named(name)
    tensors = inputs_of(plan)
    wanted = raw(plan.run(tensors, backend="reference"))
    shifted = {name: beginning_later(tensor) for name, tensor in tensors.items()}
    out = {info.name: torch.zeros(info.full_shape, dtype=getattr(torch, info.dtypes[0])) for info in plan.outputs}
    out = {name: beginning_later(tensor) for name, tensor in out.items()}
    plan.run(shifted, out=out)
    assert raw(out) == wanted


def beginning_later(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor one element into its storage."""
    storage = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    moved = storage[1:].view(tensor.shape)
    return moved.copy_(tensor)


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_words_of_all_sizes_do_the_same(name):
    plan = plan_named(name)
    tensors = inputs_of(plan)
    for program, box, source in moved(plan):
        bits = code_named(plan.output[program.output].code).bits
        launch = lower(box, bits)
        if launch is None or bits != code_named(plan.input[source].code).bits:
            continue
        flat = tensors[source].reshape(-1).view(torch.uint8)
        expected = naively(box, bits, flat, plan.output[program.output].codes)
        while True:
            target = torch.zeros(len(expected) * bits // 8, dtype=torch.uint8)
            carry(launch, [target], [flat], lambda *_: None)
            assert codes_of(target, bits) == expected
            if launch.word == max(8, bits):
                break
            launch = halved(launch)


def moved(plan: Plan):
    for program in plan.programs:
        for move, box, source in data(program.sources, program.moves):
            if move.gather_n is None and move.gather_k is None and all(loop[3] for loop in box.loops) and not box.join:
                yield program, box, source


def naively(box: Box, bits: int, flat: torch.Tensor, count: int) -> list[int]:
    made, codes = [0] * count, codes_of(flat, bits)
    for dst, src in zip(listed(box.target), listed(box.source)):
        made[dst] = codes[src]
    return made


def codes_of(flat: torch.Tensor, bits: int) -> list[int]:
    data = flat.numpy().tobytes()
    if bits == 4:
        return [code for byte in data for code in (byte & 15, byte >> 4)]
    return [int.from_bytes(data[at : at + bits // 8], "little") for at in range(0, len(data), bits // 8)]


def listed(where: Addresses) -> list[int]:
    turns = itertools.product(*(range(size) for size in where.sizes))
    return [where.at + sum(turn * step for turn, step in zip(each, where.steps)) for each in turns]


def test_a_buffer_keeps_its_size_from_piece_to_piece():
    """And its indices, where the pieces have the same shape."""
    plan = compile_plan("gptq", "marlin_int4_a16", "linear", {"n": 64, "k": 256}, params={"group": 64})
    launch = next(launch for _, box, _ in moved(plan) if (launch := lower(box, 4)) is not None)
    words = Words(launch, torch.device("cpu"))
    pieces = list(launch.around.pieces(64))
    words.fit(pieces[0])
    first = words.buffer.data_ptr(), words.reads.data_ptr()
    words.fit(pieces[1])
    assert len(pieces) > 1 and (words.buffer.data_ptr(), words.reads.data_ptr()) == first


# --- act-order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if "act_order" in name])
def test_a_straight_box_reads_what_stands_at_its_positions(name):
    plan, seen = plan_named(name), 0
    for program in plan.programs:
        for move, box, _ in data(program.sources, program.moves):
            found = straight(move, box)
            if move.gather_k is None or found is None:
                continue
            seen += 1
            assert dict(zip(listed(found.target), listed(found.source))) == positions(move, box)
    assert seen


def positions(move, box) -> dict[int, int]:
    """Target address -> address of the position in the source's layout."""
    views = []
    for axis, lookup in enumerate((move.gather_n, move.gather_k)):
        offset, step, base = lookup.views[box.part if axis == 0 else 0] if lookup else (0, 1, 0)
        views.append(View(Chain(lookup.digits), offset, step, base) if lookup else None)
    found = {}
    for turns in itertools.product(*(range(loop[1]) for loop in box.loops)):
        at = [0, 0]
        for axis in (0, 1):
            at[axis] = box.src[axis] + sum(turn * loop[4] for turn, loop in zip(turns, box.loops) if loop[0] == axis)
        dst = box.dst + sum(turn * loop[3] for turn, loop in zip(turns, box.loops))
        found[dst] = sum(view.at(x) if view else x for view, x in zip(views, at))
    return found


# --- boxes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("name", NAMES)
def test_cuts_hold_every_element_once(name, most):
    for program, box, _ in moved(plan_named(name)):
        elements = sorted(zip(listed(box.target), listed(box.source)))
        for cut in (box.pieces(most), tiles(box, most), tiles(box.by_axis(), most)):
            parts = list(cut)
            assert all(len(listed(part.target)) <= most for part in parts), program.output
            found = [pair for part in parts for pair in zip(listed(part.target), listed(part.source))]
            assert sorted(found) == elements
        ordered = [at for part in box.pieces(most) for at in listed(part.target)]
        assert ordered == listed(box.target), "the first place that is refused is found in this order"


# --- codes ------------------------------------------------------------------------------------------------------------


@st.composite
def grids(draw) -> tuple[Addresses, int]:
    """A grid whose addresses differ, and how many codes there are."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    steps, reach = [0] * len(sizes), 1
    for dim in draw(st.permutations(range(len(sizes)))):
        steps[dim] = reach * draw(st.integers(1, 2)) + draw(st.integers(0, 1))
        reach = steps[dim] * sizes[dim]
    at, beyond = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    turned = [draw(st.booleans()) for _ in sizes]
    at += sum((size - 1) * step for size, step, back in zip(sizes, steps, turned) if back)
    steps = [-step if back else step for step, back in zip(steps, turned)]
    where = Addresses(at, tuple(sizes), tuple(steps))
    return where, (max(listed(where)) + beyond) // 2 * 2 + 2


@QUICK
@given(grids(), st.sampled_from([4, 8, 16]), st.integers(0, 2**32))
def test_a_grid_of_codes_is_read_and_written_and_the_rest_stays(drawn, bits, seed):
    where, count = drawn
    if bits != 4 and min(where.steps) < 0:
        return  # torch has no strides below 0, and no plan has
    flat = torch.randint(256, (count * bits // 8,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    before = codes_of(flat, bits)
    codes = Codes(flat, bits)
    read = codes.read(where)
    assert tuple(read.shape) == where.sizes
    assert [code % (1 << bits) for code in read.reshape(-1).tolist()] == [before[at] for at in listed(where)]
    made = read.flip(0).contiguous()
    codes.write(where, made)
    expected = list(before)
    for at, code in zip(listed(where), made.reshape(-1).tolist()):
        expected[at] = code % (1 << bits)
    assert codes_of(flat, bits) == expected
    codes.fill(where, 5)
    for at in listed(where):
        expected[at] = 5
    assert codes_of(flat, bits) == expected


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_fills_are_as_wide_as_the_addresses_allow(bits):
    storage = torch.zeros(67, dtype=torch.uint8)
    for begin in range(0, 8, max(bits // 8, 1)):
        flat = storage[begin : begin + 56]
        count = 56 * 8 // bits
        Codes(flat.zero_(), bits).fill(Addresses(2, (count - 4,), (1,)), 3)
        assert codes_of(flat, bits) == [0, 0, *[3] * (count - 4), 0, 0]


def test_pieces_are_larger_on_other_devices():
    assert pieces.piece(torch.device("cuda")) > pieces.piece(torch.device("cpu")) == pieces.PIECE
