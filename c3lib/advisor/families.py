"""The kinds of models that the advisor knows, each as the sizes of its weight matrices.

From the public model code of each family (``modeling_<family>.py`` of Hugging Face Transformers); that the parameters
add up to the published counts is a test. Matrices that read the same input and are run as one GEMM by usual training
and serving code are one here: query, key and value, and gate and up of a gated MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from c3lib.advisor.model_config import Config, Experts, Layer, Layers, Matrix, Shape
from c3lib.errors import C3Error


def _gated(name: str, hidden: int, width: int, biases: bool = False) -> tuple[Matrix, ...]:
    return (
        Matrix(f"{name}gate+up", 2 * width, hidden, "n", 2 * width * biases),
        Matrix(f"{name}down", hidden, width, "k", hidden * biases),
    )


def _grouped_query(
    config: Config, hidden: int, qkv_bias: bool, norms: bool
) -> tuple[tuple[Matrix, ...], int, dict[str, int]]:
    """Attention whose key and value heads are shared by groups of query heads: matrices, norm vectors, heads."""
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    config.quotient("num_attention_heads", "num_key_value_heads", heads, kv_heads)
    head = (
        config.count("head_dim")
        if config.has("head_dim")
        else config.quotient("hidden_size", "num_attention_heads", hidden, heads)
    )
    every = config.flag("attention_bias")
    outputs = (heads + 2 * kv_heads) * head
    matrices = (
        Matrix("qkv", outputs, hidden, "n", outputs * (qkv_bias or every)),
        Matrix("attention out", hidden, heads * head, "k", hidden * every),
    )
    divide = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return matrices, 2 * hidden + 2 * head * norms, divide


def _experts(config: Config, hidden: int, key: str, width: int) -> tuple[Experts, int]:
    """Routed experts, and the parameters of their router."""
    key = key if config.has(key) or not config.has("num_local_experts") else "num_local_experts"
    count, chosen = config.count(key), config.count("num_experts_per_tok")
    if chosen > count:
        raise C3Error(f"{config.path}: key 'num_experts_per_tok' ({chosen}) must be at most {key!r} ({count})")
    return Experts(count, chosen, _gated("expert ", hidden, width)), count * hidden


def _dense(config: Config, hidden: int, *, qkv_bias: bool = False, norms: bool = False) -> Layers:
    attention, vectors, heads = _grouped_query(config, hidden, qkv_bias, norms)
    mlp = _gated("", hidden, config.count("intermediate_size"), config.flag("mlp_bias"))
    layer = Layer("dense", attention, mlp, None, vectors)
    return lambda index: layer, heads


def _mixtral(config: Config, hidden: int) -> Layers:
    attention, vectors, heads = _grouped_query(config, hidden, qkv_bias=False, norms=False)
    experts, router = _experts(config, hidden, "num_local_experts", config.count("intermediate_size"))
    layer = Layer("MoE", attention, (), experts, vectors + router)
    return lambda index: layer, heads


def _qwen_moe(config: Config, hidden: int, *, qkv_bias: bool, norms: bool, shared: bool) -> Layers:
    attention, vectors, heads = _grouped_query(config, hidden, qkv_bias, norms)
    experts, router = _experts(config, hidden, "num_experts", config.count("moe_intermediate_size"))
    mlp: tuple[Matrix, ...] = ()
    if shared:
        mlp = _gated("shared ", hidden, config.count("shared_expert_intermediate_size"))
        router += hidden  # the gate of the shared expert
    sparse = Layer("MoE", attention, mlp, experts, vectors + router)
    step, without = config.count("decoder_sparse_step", 1), frozenset(config.counts("mlp_only_layers"))
    if step == 1 and not without:  # the size of its dense layers may then be anything
        return lambda index: sparse, heads
    dense = Layer("dense", attention, _gated("", hidden, config.count("intermediate_size")), None, vectors)
    return lambda index: dense if index in without or (index + 1) % step else sparse, heads


def _deepseek(config: Config, hidden: int, *, router_bias: bool) -> Layers:
    """Multi-head latent attention: keys and values (and mostly queries) pass through a narrow matrix."""
    heads, nope, rope = (config.count(key) for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim"))
    value, latent = config.count("v_head_dim"), config.count("kv_lora_rank")
    narrow, query = config.count("q_lora_rank", 0, least=0), heads * (nope + rope)
    vectors = 2 * hidden + latent + narrow
    from_input = (Matrix("q+kv down", narrow + latent + rope, hidden, ""), Matrix("q up", query, narrow, "n"))
    if not narrow:
        from_input = (Matrix("q", query, hidden, "n"), Matrix("kv down", latent + rope, hidden, ""))
    attention = (
        *from_input,
        Matrix("kv up", heads * (nope + value), latent, "n"),
        Matrix("attention out", hidden, heads * value, "k"),
    )
    dense = Layer("dense", attention, _gated("", hidden, config.count("intermediate_size")), None, vectors)
    if not config.has("n_routed_experts"):
        return lambda index: dense, {"num_attention_heads": heads}
    width = config.count("moe_intermediate_size")
    experts, router = _experts(config, hidden, "n_routed_experts", width)
    together = config.count("n_shared_experts", 0, least=0)
    shared = _gated("shared ", hidden, together * width) if together else ()
    sparse = Layer("MoE", attention, shared, experts, vectors + router + experts.count * router_bias)
    first, every = config.count("first_k_dense_replace", 0, least=0), config.count("moe_layer_freq", 1)
    return lambda index: dense if index < first or index % every else sparse, {"num_attention_heads": heads}


FAMILIES: Mapping[str, Shape] = {
    "llama": _dense,
    "mistral": _dense,
    "mixtral": _mixtral,
    "qwen2": partial(_dense, qkv_bias=True),
    "qwen3": partial(_dense, norms=True),
    "qwen2_moe": partial(_qwen_moe, qkv_bias=True, norms=False, shared=True),
    "qwen3_moe": partial(_qwen_moe, qkv_bias=False, norms=True, shared=False),
    "deepseek_v2": partial(_deepseek, router_bias=False),
    "deepseek_v3": partial(_deepseek, router_bias=True),
}
"""By the key ``model_type``. Qwen2.5 is ``qwen2``; DeepSeek-R1 and V3.1 are ``deepseek_v3``."""
