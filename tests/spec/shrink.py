"""Small versions of layers, for tests."""

from moe_ref.spec import LayerSpec

VOCAB = 64


def shrink(spec: LayerSpec) -> LayerSpec:
    """The same rules at sizes a test can afford.

    d_model 32, d_hidden 24, 16 experts (12 and 4 identity ones, if the layer has identity
    experts), shared hidden width 20, latent width 18, 64 token ids, 5 slots: parts that the layer
    does not have stay absent, and no two sizes are equal, so that a swapped axis is an error.
    """
    sizes = {"d_model": 32, "d_hidden": 24, "num_experts": 12 if spec.router.zero_experts else 16}
    if spec.router.zero_experts:
        sizes["zero_experts"] = 4
    if spec.router.hash_vocab:
        sizes["hash_vocab"] = VOCAB
    if spec.shared_d_hidden:
        sizes["shared_d_hidden"] = 20
    if spec.d_latent:
        sizes["d_latent"] = 18
    if spec.capacity is not None and spec.capacity.expert_capacity is not None:
        sizes["expert_capacity"] = 5
    return spec.replace(**sizes)
