"""Switch Transformers: encoder and decoder."""

from moe_ref.models._architecture import Architecture, Stack
from moe_ref.models._config import Config
from moe_ref.models._layout import Layout, Separate
from moe_ref.models._rule import with_sizes
from moe_ref.spec import LayerSpec


def _sparse(layers: int, sparse: int) -> list[bool]:
    # As transformers has it: without sparse layers the step is the number of layers, which makes
    # layer 1 sparse all the same.
    step = layers // sparse if sparse > 0 else layers
    return [step > 0 and (step == 1 or layer % step == 1) for layer in range(layers)]


def _encoder(config: Config) -> list[bool]:
    sparse = config.integer("num_sparse_encoder_layers", default=3, minimum=0)
    return _sparse(config.integer("num_layers", "num_hidden_layers"), sparse)


def _decoder(config: Config) -> list[bool]:
    layers = config.integer("num_decoder_layers", "num_layers", "num_hidden_layers")
    return _sparse(layers, config.integer("num_sparse_decoder_layers", default=3, minimum=0))


def _spec(config: Config, layer: int) -> LayerSpec:
    config.expect("is_gated_act", False)
    config.expect("router_type", "tokens_masked")
    config.expect("router_dtype", "float32", "float16", "bfloat16")
    dtype = config.get("router_dtype", "float32")
    return with_sizes(
        "switch-base",
        config,
        d_model=config.integer("d_model", "hidden_size"),
        num_experts=config.integer("num_experts"),
        d_hidden=config.integer("d_ff"),
        activation=config.activation("dense_act_fn", "relu"),
        expert_capacity=config.integer("expert_capacity", default=64, minimum=0),
        router_bias=config.flag("router_bias", False),
        projection_dtype=dtype,
        score_dtype=dtype,
    )


ARCHITECTURES = (
    Architecture(
        model_types=("switch_transformers",),
        spec=_spec,
        stacks=(
            Stack(
                moe=_encoder,
                prefixes=("encoder.block.{layer}.layer.1.mlp.",),
                name="encoder",
            ),
            Stack(
                moe=_decoder,
                prefixes=("decoder.block.{layer}.layer.2.mlp.",),
                name="decoder",
            ),
        ),
        layout=Layout(
            router=("router.classifier.weight",),
            router_bias=("router.classifier.bias",),
            experts=(
                Separate(None, "experts.expert_{e}.wi.weight", "experts.expert_{e}.wo.weight"),
            ),
        ),
    ),
)
