"""Models from config.json: parameters as published, GEMMs and collectives by arithmetic, one sentence for nonsense."""

import json
import math
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import c3lib
from c3lib.advisor.families import FAMILIES
from c3lib.advisor.layers import Parallelism, works
from c3lib.advisor.model_config import LARGEST_FILE, Model, read_model
from c3lib.advisor.plan import advise_model
from c3lib.errors import C3Error
from c3lib.explain import NOTHING
from c3lib.ficco.problem import Problem
from c3lib.ficco.sets import Row
from c3lib.files import DATA
from c3lib.finer import schedule_rows
from c3lib.hardware import load_node
from c3lib.model import kernels
from c3lib.workload import Collective, Gemm, Scenario

MODELS = DATA / "models"
LLAMA = json.loads((MODELS / "llama-3-8b.json").read_text())
DEEPSEEK = json.loads((MODELS / "deepseek-v3.json").read_text())


def model(tmp_path, base=LLAMA, **changes) -> Model:
    """A config with keys changed; those that are ... are left out."""
    keys = {key: value for key, value in (base | changes).items() if value is not ...}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys))
    return read_model(path)


# --- parameters: the published counts ---

# Llama, Mixtral and Qwen: the count that the model's page states for its safetensors files, to the last parameter.
# DeepSeek-V3: 671 billion, 37 billion of them active, of its README; without its multi-token-prediction module.
# Mixtral: 12.9 billion active, of its announcement; Qwen3-30B-A3B: 3.3 billion, of its README.
EXACT = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
}
ACTIVE = {"mixtral-8x7b": 12.9, "qwen3-30b-a3b": 3.3, "deepseek-v3": 37, "llama-3-8b": 8.03}


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_the_published_count(name):
    assert read_model(MODELS / f"{name}.json").parameters == EXACT[name]


def test_deepseek_v3_has_671_billion_parameters():
    assert round(read_model(MODELS / "deepseek-v3.json").parameters / 1e9) == 671


@pytest.mark.parametrize(("name", "billions"), ACTIVE.items())
def test_active_parameters_are_the_published_count(name, billions):
    assert read_model(MODELS / f"{name}.json").active_parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_other_members_of_the_families_by_their_published_counts(tmp_path):
    """Keys that the example files do not have: tied embeddings, no narrow query, shared experts."""
    qwen = model(tmp_path, model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                 num_attention_heads=14, num_key_value_heads=2, vocab_size=151936,
                 tie_word_embeddings=True)  # fmt: skip
    assert qwen.parameters == 494_032_768  # Qwen2.5-0.5B
    dense = model(tmp_path, model_type="qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                  num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936,
                  tie_word_embeddings=True)  # fmt: skip
    assert dense.parameters == 596_049_920  # Qwen3-0.6B
    lite = model(tmp_path, DEEPSEEK, model_type="deepseek_v2", hidden_size=2048, intermediate_size=10944,
                 moe_intermediate_size=1408, num_hidden_layers=27, num_attention_heads=16, q_lora_rank=None,
                 n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, first_k_dense_replace=1,
                 vocab_size=102400)  # fmt: skip
    assert lite.parameters == 15_706_484_224  # DeepSeek-V2-Lite
    assert lite.active_parameters / 1e9 == pytest.approx(2.4, rel=0.12)  # its README leaves the embeddings out
    shared = model(tmp_path, model_type="qwen2_moe", hidden_size=2048, intermediate_size=5632,
                   moe_intermediate_size=1408, shared_expert_intermediate_size=5632, num_hidden_layers=24,
                   num_attention_heads=16, num_key_value_heads=16, num_experts=60, num_experts_per_tok=4,
                   vocab_size=151936)  # fmt: skip
    assert shared.parameters == 14_315_784_192  # Qwen1.5-MoE-A2.7B


def test_layers_that_stay_dense(tmp_path):
    deepseek = read_model(MODELS / "deepseek-v3.json")
    assert [layer.kind for layer in deepseek.layers] == ["dense"] * 3 + ["MoE"] * 58
    base = json.loads((MODELS / "qwen3-30b-a3b.json").read_text()) | {"num_hidden_layers": 6}
    every_second = model(tmp_path, base, decoder_sparse_step=2, mlp_only_layers=[3])
    assert [layer.kind for layer in every_second.layers] == ["dense", "MoE", "dense", "dense", "dense", "MoE"]


def test_a_folder_stands_for_its_config(tmp_path):
    assert model(tmp_path) == read_model(tmp_path)
    assert model(tmp_path, model_type="mistral").parameters == EXACT["llama-3-8b"]


# --- what runs beside what ---


def test_fsdp_gathers_the_next_layer_beside_the_gemms_of_this_one():
    llama = read_model(MODELS / "llama-3-8b.json")
    (work,) = works(llama, Parallelism(8192, fsdp=8), "bf16")
    assert dict(work.gemms) == {
        "qkv": Gemm(8192, 6144, 4096),
        "attention out": Gemm(8192, 4096, 4096),
        "gate+up": Gemm(8192, 28672, 4096),
        "down": Gemm(8192, 4096, 14336),
    }
    parameters = 4096 * (6144 + 4096) + 3 * 4096 * 14336 + 2 * 4096
    assert work.collective == Collective("all-gather", 2 * parameters, 8)
    assert work.times == 31, "the last layer has no next one"
    (small,) = works(llama, Parallelism(8192, fsdp=8), "fp8")
    assert small.collective.nbytes == parameters


def test_expert_parallelism_sends_tokens_beside_the_experts_of_other_tokens():
    """Mixtral, 8 experts on 8 ranks: each has one, which gets a quarter of all ranks' tokens."""
    mixtral = read_model(MODELS / "mixtral-8x7b.json")
    dispatch, combine = works(mixtral, Parallelism(4096, ep=8), "bf16")
    assert dict(dispatch.gemms) == {"expert gate+up": Gemm(4096 * 2, 28672, 4096)}
    assert dict(combine.gemms) == {"expert down": Gemm(4096 * 2, 4096, 14336)}
    for work in (dispatch, combine):
        assert work.collective == Collective("all-to-all", 4096 * 2 * 4096 * 2, 8)
        assert work.times == 32


def test_several_experts_of_a_rank_are_one_gemm_of_the_same_work():
    deepseek = read_model(MODELS / "deepseek-v3.json")
    found = [work for work in works(deepseek, Parallelism(4096, fsdp=8, ep=8), "bf16") if "EP" in work.name]
    ((_, gemm),) = found[0].gemms
    assert gemm.flops == 2 * (4096 * 8) * 4096 * 7168, "8 copies of each token, for each gate and up"
    assert gemm.n * gemm.k == 32 * 4096 * 7168, "the weights of 32 experts"
    gathered = {work.name: work for work in works(deepseek, Parallelism(4096, fsdp=8, ep=8), "bf16")}["MoE: FSDP"]
    assert gathered.collective.nbytes == 2 * deepseek.layers[-1].dense_parameters, "experts stay where they are"
    assert not any("expert" in name.split()[0] for name, _ in gathered.gemms)
    everything = {work.name: work for work in works(deepseek, Parallelism(4096, fsdp=8), "bf16")}
    assert {name: work.times for name, work in everything.items()} == {
        "dense: FSDP": 2,
        "dense, then MoE: FSDP": 1,
        "MoE: FSDP": 57,
    }
    assert everything["MoE: FSDP"].collective.nbytes == 2 * deepseek.layers[-1].parameters
    assert [name for name, _ in everything["MoE: FSDP"].gemms][-2:] == ["expert gate+up", "expert down"]


def test_tensor_parallelism_splits_matrices_and_gathers_their_input():
    llama = read_model(MODELS / "llama-3-8b.json")
    gathered, qkv, gate = works(llama, Parallelism(8192, fsdp=2, tp=4), "bf16")
    assert dict(gathered.gemms) == {
        "qkv": Gemm(8192, 6144 // 4, 4096),
        "attention out": Gemm(8192, 4096, 4096 // 4),
        "gate+up": Gemm(8192, 28672 // 4, 4096),
        "down": Gemm(8192, 4096, 14336 // 4),
    }
    matrices = 4096 * (6144 + 4096) + 3 * 4096 * 14336
    assert gathered.collective == Collective("all-gather", 2 * (matrices // 4 + 2 * 4096), 2)
    assert not gathered.dependent
    for work, gemm in ((qkv, Gemm(8192, 1536, 4096)), (gate, Gemm(8192, 7168, 4096))):
        assert [only for _, only in work.gemms] == [gemm]
        assert work.collective == Collective("all-gather", 2 * 8192 * 4096, 4)
        assert work.dependent


# --- advice ---


def test_pieces_make_up_the_collective_and_take_their_share_of_time():
    found = advise_model(MODELS / "llama-3-70b.json", Parallelism(8192, fsdp=8), "mi300x_8")
    (layer,) = found.layers
    assert sum(piece.collective.nbytes for piece in layer.pieces) == layer.collective.nbytes
    total = sum(piece.gemm_alone_s for piece in layer.pieces)
    for piece in layer.pieces:
        share = piece.collective.nbytes / layer.collective.nbytes
        assert share == pytest.approx(piece.gemm_alone_s / total, abs=1e-6)
    assert {piece.strategy for piece in layer.pieces} == {layer.strategy}
    node = load_node("mi300x_8")
    whole = kernels.batch([Scenario("whole", Gemm(1, 1, 1), layer.collective)], node)[1]
    assert layer.serial_s == pytest.approx(total + float(kernels.library_time_s(whole, node)[0]))
    assert layer.time_s == pytest.approx(sum(piece.time_s for piece in layer.pieces))
    assert layer.speedup == pytest.approx(layer.serial_s / layer.time_s)
    assert layer.speedup_low < layer.speedup < layer.speedup_high


@pytest.mark.parametrize(("name", "degrees"), [
    ("llama-3-8b", {"fsdp": 8}), ("qwen2.5-7b", {"fsdp": 2, "tp": 4}), ("mixtral-8x7b", {"fsdp": 8, "ep": 8}),
    ("qwen3-30b-a3b", {"fsdp": 8}), ("deepseek-v3", {"fsdp": 4, "tp": 2, "ep": 8}),
])  # fmt: skip
def test_totals_are_the_sum_of_their_layers(name, degrees):
    found = c3lib.advise_model(MODELS / f"{name}.json", c3lib.Parallelism(4096, **degrees), "h200_8")
    free = [layer for layer in found.layers if not layer.dependent]
    assert found.serial_s == pytest.approx(sum(layer.times * layer.serial_s for layer in free))
    assert found.time_s == pytest.approx(sum(layer.times * layer.time_s for layer in free))
    gain, low, high = found.speedups
    assert low < gain == pytest.approx(found.serial_s / found.time_s)
    assert gain < high
    for layer in found.layers:
        assert layer.dependent == (": TP" in layer.name)
        if layer.strategy == "serial":
            assert layer.speedup == layer.speedup_low == layer.speedup_high == 1
        else:
            assert layer.speedup > 1
            assert math.isnan(layer.speedup_low) == math.isnan(layer.speedup_high) == layer.dependent
    text = str(found)
    for layer in found.layers:
        assert f"{layer.name}, in {layer.times} layer" in text.replace("\n", " ")
        assert all(str(piece.gemm) in text for piece in layer.pieces)
    content = found.to_dict()
    assert [layer["name"] for layer in content["layers"]] == [layer.name for layer in found.layers]
    assert (content["evidence"], content["parallelism"]["tokens"]) == ("modelled", 4096)


def test_a_gemm_that_needs_what_is_gathered_is_cut_finer_or_waits():
    """The best of all schedules that the model of finer-grain overlap knows; nothing of it was measured."""
    found = advise_model(MODELS / "llama-3-70b.json", Parallelism(8192, tp=8))
    assert all(layer.dependent for layer in found.layers)
    assert (found.serial_s, found.time_s, found.speedups) == (0, 0, (1.0, 1.0, 1.0))
    assert "In all" not in str(found)
    node = load_node("mi300x_8")
    for layer in found.layers:
        (piece,) = layer.pieces
        problem = Problem.all_gather(piece.gemm.m, piece.gemm.n, piece.gemm.k, 8)
        rows = schedule_rows(node, [Row("same", problem, "")]).set_index("schedule").drop(index="serial")
        fastest = rows["time_s"].min()
        assert layer.serial_s == pytest.approx(piece.gemm_alone_s + piece.collective_alone_s)
        if layer.strategy == "serial":
            assert fastest > layer.serial_s / (1 + NOTHING)
        else:
            assert layer.strategy == rows["time_s"].idxmin()
            assert layer.time_s == pytest.approx(fastest)
            assert "interval not known" in str(found)
    assert {layer.strategy == "serial" for layer in found.layers} == {True, False}
    by_library = advise_model(MODELS / "llama-3-70b.json", Parallelism(8192, tp=8), strategies=["c3_base"])
    for layer, other in zip(by_library.layers, found.layers, strict=True):
        assert layer.time_s >= other.time_s * (1 - 1e-9)
        assert "DMA" not in layer.reason


# --- what can be wrong ---


@pytest.mark.parametrize(("degrees", "says"), [
    ({"fsdp": 16}, "fsdp x tp x ep: 16 ranks, but node mi300x_8 has 8"),
    ({"fsdp": 4, "tp": 4}, "fsdp x tp x ep: 16 ranks"),
    ({}, "one rank alone sends nothing"),
    ({"ep": 8}, "without experts, so ep must be 1, not 8"),
    ({"tp": 3}, "key 'num_attention_heads' (32) must be a multiple of tp (3)"),
    ({"fsdp": 0}, "fsdp must be a whole number of at least 1"),
    ({"tp": -1}, "tp must be a whole number of at least 1"),
    ({"tokens": 0, "fsdp": 8}, "tokens must be a whole number of at least 1"),
    ({"tokens": 2**53, "fsdp": 8}, None),
])  # fmt: skip
def test_impossible_degrees_are_one_sentence(degrees, says):
    call = lambda: advise_model(MODELS / "llama-3-8b.json", Parallelism(**({"tokens": 4096} | degrees)))  # noqa: E731
    if says is None:  # absurd, but possible: the answer is finite
        assert call().time_s < float("inf")
        return
    with pytest.raises(C3Error) as error:
        call()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("changes", "degrees", "says"), [
    ({"model_type": "mixtral", "num_local_experts": 2**31, "num_experts_per_tok": 2, "intermediate_size": 2**31},
     {"ep": 8}, ", MoE layer, 4096 tokens: gemm n must be at most"),
    ({"hidden_size": 2**31, "head_dim": 128, "intermediate_size": 2**31}, {"fsdp": 8},
     ", dense layer, 4096 tokens: collective nbytes must be at most"),
    ({"tokens": 2**53}, {"tp": 8}, f", dense layer, {2**53} tokens: collective nbytes must be at most"),
    ({"hidden_size": 2**31}, {"tp": 8}, ", dense: TP qkv: gemm 4096x402653184x2147483648: a matrix may have at most"),
    ({"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 8, "tokens": 2**50}, {"ep": 8},
     f", MoE layer, {2**50} tokens: collective nbytes"),
])  # fmt: skip
def test_sizes_that_are_too_large_are_said_of_a_file_and_a_layer(tmp_path, changes, degrees, says):
    sizes = dict(changes)
    how = Parallelism(sizes.pop("tokens", 4096), **degrees)
    with pytest.raises(C3Error, match=re.escape(f"{tmp_path / 'config.json'}{says}")) as error:
        advise_model(model(tmp_path, **sizes), how)
    assert "\n" not in str(error.value)


def test_impossible_degrees_of_models_with_experts(tmp_path):
    for degrees, says in (
        ({"fsdp": 8, "ep": 4}, "ep must be 1 or all ranks, fsdp x tp = 8, not 4"),
        ({"ep": 7}, "8 experts cannot be dealt evenly to ep = 7 ranks"),
    ):
        with pytest.raises(C3Error, match=says):
            advise_model(MODELS / "mixtral-8x7b.json", Parallelism(4096, **degrees))
    odd = model(tmp_path, intermediate_size=14337)
    with pytest.raises(C3Error, match=r"the matrix gate\+up cannot be split over tp = 8"):
        advise_model(odd, Parallelism(4096, tp=8))
    with pytest.raises(C3Error, match="one layer alone"):
        advise_model(model(tmp_path, num_hidden_layers=1), Parallelism(4096, fsdp=8))


@pytest.mark.parametrize(("changes", "says"), [
    ({"hidden_size": ...}, "key 'hidden_size' is missing"),
    ({"hidden_size": None}, "key 'hidden_size' is missing"),
    ({"hidden_size": "4096"}, "key 'hidden_size' must be a whole number"),
    ({"hidden_size": 4096.0}, "key 'hidden_size' must be a whole number"),
    ({"hidden_size": True}, "key 'hidden_size' must be a whole number"),
    ({"hidden_size": [1] * 5000}, "key 'hidden_size' must be a whole number of at least 1, not 'a list of 5000'"),
    ({"hidden_size": 10**400}, "key 'hidden_size' must be"),
    ({"hidden_size": 2**40}, "key 'hidden_size' must be at most"),
    ({"num_hidden_layers": 10**9}, "key 'num_hidden_layers' must be at most"),
    ({"num_hidden_layers": 0}, "key 'num_hidden_layers' must be a whole number of at least 1"),
    ({"num_attention_heads": 33}, "must be a multiple of"),
    ({"num_key_value_heads": 5}, "key 'num_attention_heads' (32) must be a multiple of 'num_key_value_heads' (5)"),
    ({"tie_word_embeddings": "no"}, "key 'tie_word_embeddings' must be true or false"),
    ({"model_type": "gpt2"}, "key 'model_type': 'gpt2' is not known; known: llama"),
    ({"model_type": 7}, "key 'model_type' must be one of llama"),
    ({"model_type": ...}, "is not a model's config.json: it has no key 'model_type'"),
    ({"model_type": "gemma3", "text_config": {}}, "give the file's part text_config"),
    ({"model_type": "mixtral"}, "key 'num_local_experts' is missing"),
    ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3},
     "key 'num_experts_per_tok' (3) must be at most 'num_local_experts' (2)"),
    ({"model_type": "deepseek_v3"}, "key 'qk_nope_head_dim' is missing"),
    ({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
      "mlp_only_layers": 3}, "key 'mlp_only_layers' must be a list"),
    ({"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
      "mlp_only_layers": [-1]}, "every item of key 'mlp_only_layers'"),
])  # fmt: skip
def test_a_key_that_is_wrong_is_named_with_its_file(tmp_path, changes, says):
    with pytest.raises(C3Error) as error:
        model(tmp_path, **changes)
    assert says in str(error.value)
    assert str(tmp_path / "config.json") in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(("text", "says"), [
    ("", "not valid JSON"),
    ("{", "not valid JSON"),
    ("[1, 2]", "must hold one JSON object, not 'a list of 2'"),
    ('"llama"', "must hold one JSON object"),
    ('{"hidden_size": NaN}', "NaN is not a number of JSON"),
    ("[" * 100_000, "nested too deeply"),
    ('{"a":' * 100_000, "nested too deeply"),
    ('{"a": ' + "9" * 10_000 + "}", "not valid JSON"),
    ("import os", "not valid JSON"),
    (" " * (LARGEST_FILE + 1), f"larger than {LARGEST_FILE} bytes"),
    (b"\xff\xfe\x00", "not UTF-8"),
    ('{"hidden_size": 4096, "vocab_size": 8, "hidden_size": 8}', "key 'hidden_size' stands twice"),
    ('{"rope_scaling": {"factor": 1, "factor": 2}}', "key 'factor' stands twice"),
    (f'{{"{"x" * 5000}": 1, "{"x" * 5000}": 2}}', "xxx...' stands twice"),
])  # fmt: skip
def test_a_file_that_is_no_config_is_one_sentence(tmp_path, text, says):
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(C3Error) as error:
        read_model(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_ordinary_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(C3Error, match="must be an ordinary file"):
        read_model(tmp_path / "pipe.json")
    with pytest.raises(C3Error, match="no such file"):
        read_model(tmp_path / "none.json")
    with pytest.raises(C3Error, match="no such file"):
        read_model(tmp_path)  # a folder without a config
    with pytest.raises(C3Error, match=r"xxx\.\.\.: cannot be read: File name too long"):
        read_model("x" * 5000)


def test_a_byte_order_mark_is_no_part_of_a_config(tmp_path):
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert read_model(marked).layers == model(tmp_path).layers


numbers = st.one_of(st.integers(), st.integers(0, 300), st.sampled_from([1, 2, 8, 64, 128, 4096, 2**31, 2**53]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted(set(LLAMA) | set(DEEPSEEK) | {
    "num_local_experts", "num_experts", "head_dim", "mlp_only_layers", "decoder_sparse_step", "attention_bias",
    "shared_expert_intermediate_size",
})  # fmt: skip


def answer(path) -> str:
    """What a config comes to: advice, or the one sentence."""
    try:
        found = read_model(path)
        if len(found.layers) < 100:
            advise_model(found, Parallelism(512, fsdp=8))
    except C3Error as error:
        return str(error)
    assert found.parameters >= found.active_parameters > 0
    return ""


ANY = DEEPSEEK | {"num_experts": 8, "num_local_experts": 8, "shared_expert_intermediate_size": 64}
"""Has the keys of every family."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_advised_on(tmp_path, family):
    (tmp_path / "config.json").write_text(json.dumps(ANY | {"model_type": family}))
    assert answer(tmp_path) == ""


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(KEYS), st.one_of(numbers, values)))
def test_any_config_gives_a_model_or_one_sentence(tmp_path_factory, family, changes):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(ANY | changes | {"model_type": family}))
    said = answer(path)
    assert "\n" not in said
    assert len(said) < 600


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=200), values.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_give_one_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(content)
    with pytest.raises(C3Error) as error:
        read_model(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_layer_that_is_not_to_be_overlapped_says_what_that_would_give():
    """The time of its GEMMs with the collective, each by what its own pair would take; and how sure."""
    asked = MODELS / "llama-3-8b.json", c3lib.Parallelism(2**20, fsdp=8), "h200_8"
    found = c3lib.advise_model(*asked, strategies=["c3_sp"])
    text = " ".join(str(found).split())
    serial = [layer for layer in found.layers if layer.strategy == "serial"]
    assert serial
    for layer in serial:
        pieces = layer.pieces
        assert {piece.unadvised_strategy for piece in pieces} == {"c3_sp"}
        gain, low, high = (
            layer.serial_s / sum(piece.serial_s / getattr(piece, f"unadvised_speedup{end}") for piece in pieces)
            for end in ("", "_low", "_high")
        )
        assert low < gain < high
        said = f"by c3_sp: {gain:.2f}x over serial ({low:.2f}x to {high:.2f}x)"
        assert said in layer.unadvised
        assert said in text
    assert f"Interval: {serial[0].pieces[0].uncertainty}." in text
    assert not any(layer.unadvised for layer in c3lib.advise_model(*asked[:1], c3lib.Parallelism(8192, fsdp=8)).layers)
