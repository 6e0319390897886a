"""Act-order in a mixture of experts: each expert has its own orders, and ranks cut the sorted axis.

w2's k is the inner axis i: sorting it by w2's g_idx must carry w13's outputs along. w13's k is the hidden axis: its
input is gathered by the caller, while w2's outputs, on that same axis, stay in their order.
"""

import numpy as np
import pytest
import torch
from decoders import gptq, marlin

from layoutdsl import LayoutError, compile_plan

EXPERTS, INNER, HIDDEN, GROUP = 3, 256, 128, 64


def order(size: int, seed: int) -> torch.Tensor:
    groups = torch.arange(size) // GROUP
    return groups[torch.randperm(size, generator=torch.Generator().manual_seed(seed))].int()


def tensors(n: int, k: int, g_idx: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (k // 8, n), generator=random).int()
    scales = (torch.rand(k // GROUP, n, generator=random) + 0.1).half()
    return {"qweight": words, "scales": scales, "g_idx": g_idx,
            "qzeros": torch.full((k // GROUP, n // 8), 0x77777777, dtype=torch.int32)}


def raw(tensor: torch.Tensor) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.float16 else tensor.numpy()


def layer() -> tuple[dict[str, list[torch.Tensor]], list[dict[str, np.ndarray]]]:
    """The checkpoint's tensors, one per expert, and what they are worth."""
    given: dict[str, list[torch.Tensor]] = {}
    worth: list[dict[str, np.ndarray]] = []
    for expert in range(EXPERTS):
        outer, inner = order(HIDDEN, 10 + expert), order(INNER, 20 + expert)
        matrices = {"w13.gate": (INNER, HIDDEN, outer), "w13.up": (INNER, HIDDEN, outer), "w2": (HIDDEN, INNER, inner)}
        worth.append({"h": outer.numpy(), "i": inner.numpy()})
        for at, (name, (n, k, g_idx)) in enumerate(matrices.items()):
            made = tensors(n, k, g_idx, 100 * expert + at)
            for key, tensor in made.items():
                given.setdefault(f"{name}.{key}", []).append(tensor)
            stored = {key: raw(tensor) for key, tensor in made.items()}
            worth[-1][name] = gptq.decode(stored, n=n, k=k, bits=4, group=GROUP, dtype="float16")
    return given, worth


def decoded(made: dict[str, torch.Tensor], name: str, expert: int, n: int, k: int) -> np.ndarray:
    stored = {key: raw(made[f"{name}.{key}"][expert]) for key in ("weight", "weight_scale")}
    return marlin.decode(stored, n=n, k=k, code="u4b8", activation="float16", dtype="float16")


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_rank_holds_the_sorted_slice(tp: int) -> None:
    given, worth = layer()
    length = INNER // tp
    for rank in range(tp):
        plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": EXPERTS, "i": INNER, "h": HIDDEN},
                            params={"group": GROUP, "act_order": True}, tp=tp, rank=rank)
        assert (plan.duties[0].kind, plan.duties[0].matrix) == ("gather_input", "w13")
        made = plan.run(given)
        for expert, want in enumerate(worth):
            outer = np.argsort(want["h"], kind="stable")
            inner = np.argsort(want["i"], kind="stable")[rank * length : (rank + 1) * length]
            assert np.array_equal(made["w13.k_perm"][expert].numpy(), outer)
            up = decoded(made, "w13", expert, 2 * length, HIDDEN)
            assert np.array_equal(up[:length], want["w13.gate"][inner][:, outer])
            assert np.array_equal(up[length:], want["w13.up"][inner][:, outer])
            assert np.array_equal(decoded(made, "w2", expert, HIDDEN, length), want["w2"][:, inner])


def test_parts_with_different_orders_are_refused_with_the_place() -> None:
    given, _ = layer()
    given["w13.up.g_idx"][1] = given["w13.up.g_idx"][1].flip(0)
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": EXPERTS, "i": INNER, "h": HIDDEN},
                        params={"group": GROUP, "act_order": True})
    with pytest.raises(LayoutError, match=r"`w13\.up\.g_idx` at expert 1, part up, n 0, k \d+"):
        plan.run(given)


def test_groups_of_unequal_counts_are_refused_with_the_place() -> None:
    given, _ = layer()
    g_idx = given["w2.g_idx"][2]
    g_idx[(g_idx == 0).nonzero()[0]] = 1
    plan = compile_plan("gptq", "marlin_int4_a16", "moe_gated", {"e": EXPERTS, "i": INNER, "h": HIDDEN},
                        params={"group": GROUP, "act_order": True})
    with pytest.raises(LayoutError, match=r"`w2\.g_idx` at expert 2.*k \d+"):
        plan.run(given)


@pytest.mark.parametrize("target", ["gptq", "ct_int"])
def test_an_order_cannot_be_kept_where_ranks_cut_it(target: str) -> None:
    """The groups in a rank's slice of g_idx would be those of the whole scales."""
    with pytest.raises(LayoutError, match=r"`linear\.g_idx` orders all 512 inputs along `k`, and the 256 of a rank"):
        compile_plan("gptq", target, "linear", {"n": 64, "k": 512}, params={"act_order": True, "split": "k"}, tp=2)


@pytest.mark.parametrize("rank", [0, 1])
def test_sorted_weights_count_their_groups_anew(rank: int) -> None:
    """A checkpoint that asks for file order gets it, and a g_idx that says so."""
    n, k, length = 64, 256, 128
    made = tensors(n, k, order(k, 3), 5)
    plan = compile_plan("gptq", "gptq", "linear", {"n": n, "k": k}, tp=2, rank=rank, params={
        "group": GROUP, "split": "k", "source.act_order": True, "target.act_order": False})  # fmt: skip
    found = plan.run({f"linear.{key}": tensor for key, tensor in made.items()})
    assert found["linear.g_idx"].tolist() == [at // GROUP for at in range(length)]
    whole = gptq.decode({key: raw(t) for key, t in made.items()}, n=n, k=k, bits=4, group=GROUP, dtype="float16")
    inputs = np.argsort(made["g_idx"].numpy(), kind="stable")[rank * length : (rank + 1) * length]
    stored = {key: raw(found[f"linear.{key}"]) for key in made}
    own = gptq.decode(stored, n=n, k=length, bits=4, group=GROUP, dtype="float16")
    assert np.array_equal(own, whole[:, inputs])
