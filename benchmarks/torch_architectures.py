"""Which architectures of Hugging Face's transformers work with `bilevel.torch`.

    python benchmarks/torch_architectures.py [--only gpt2 bert ...] [--kind text image ...] [--export] [--seconds 120]

Needs torch and transformers. Every architecture is built from a tiny configuration with random weights; nothing is
downloaded. Its loss has a weight for each example. The gradient in the parameters and one Hessian product in JAX are
compared with torch's double backward, in float64 and evaluation mode. With `--export` the losses are only exported, in
both modes, and all operations that the table lacks are printed. What works prints its largest error, relative to the
largest entry.
"""

import argparse
import contextlib
import inspect
import operator
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.auto import modeling_auto

import bilevel as bl
import bilevel.torch
from bilevel.torch import export
from bilevel.torch._table import TABLE
from bilevel.torch.types import to_jax

# Numbers for every configuration that has an attribute of this name.
TINY: dict[str, Any] = {
    # sizes of models of text
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 32, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "n_positions": 32, "n_ctx": 32, "n_inner": 24, "d_model": 16, "d_ff": 24, "d_kv": 8, "num_layers": 2,
    "num_heads": 2, "num_decoder_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "ffn_dim": 24,
    "word_embed_proj_dim": 16, "embedding_size": 16, "rotary_dim": 4, "d_inner": 24, "d_head": 8, "dim": 16,
    "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_seq_len": 32, "emb_dim": 16, "d_embed": 16, "num_experts": 4,
    "num_local_experts": 4, "moe_intermediate_size": 24, "num_experts_per_tok": 2, "n_routed_experts": 4, "n_group": 1,
    "topk_group": 1, "state_size": 4, "time_step_rank": 4, "ffn_hidden_size": 24, "attention_hidden_size": 16,
    "sliding_window": 8, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "shared_expert_intermediate_size": 24, "expert_intermediate_size": 24, "dff": 24, "max_length": 20,
    # images
    "image_size": 32, "patch_size": 8, "num_channels": 3, "num_labels": 5,
    # audio
    "conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, "num_mel_bins": 8,
    "max_source_positions": 16, "max_target_positions": 16, "apply_spec_augment": False,
    # numbers of special tokens
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "unk_token_id": 3,
    "sep_token_id": 4, "cls_token_id": 5, "mask_token_id": 6, "lang_id": 0, "forced_eos_token_id": None,
}  # fmt: skip

# The same for lists with a number for each stage.
STAGES = {
    "hidden_sizes": 8, "embed_dims": 8, "embed_dim": 8, "neck_hidden_sizes": 8, "depths": 1, "depth": 1, "num_heads": 2,
    "num_attention_heads": 2, "sr_ratios": 1, "stem_channels": 8, "stage_in_channels": 8, "stage_mid_channels": 8,
    "stage_out_channels": 8, "stage_num_blocks": 1, "stage_numb_of_layers": 1, "key_dim": 4, "in_channels": 8,
    "out_channels": 8, "num_block_repeats": 1, "base_attn_unit_dims": 8, "n_attn_blocks": 1, "image_size": 32,
}  # fmt: skip

# What other configurations need.
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1],
              "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 4},
    "bit": {"embedding_size": 8, "num_groups": 2},
    "codegen": {"n_head": 4, "num_attention_heads": 4, "rotary_dim": 2},
    "cvt": {"depth": [1, 2, 3]},
    "diffllama": {"num_key_value_heads": 2},
    "dots1": {"n_shared_experts": 1},
    "focalnet": {"embed_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hiera": {"embed_dim": 8, "num_heads": [1, 1, 1, 1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "levit": {"patch_size": 16},
    "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    "regnet": {"groups_width": 4},
}  # fmt: skip
for _name in ("swin", "swinv2", "donut-swin"):
    SPECIAL[_name] = {
        "embed_dim": 8,
        "depths": [2, 1],
        "num_heads": [1, 2],
        "window_size": 2,
        "patch_size": 4,
    }
for _name in ("convnext", "convnextv2"):
    SPECIAL[_name] = {"patch_size": 4}
for _name in ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "minicpm3"):
    SPECIAL[_name] = {"num_key_value_heads": 2}

KINDS = {
    "text": ("CAUSAL_LM", "MASKED_LM", "TEXT_ENCODING"),
    "translation": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "image": ("IMAGE_CLASSIFICATION", "SEMANTIC_SEGMENTATION"),
    "audio": ("CTC", "AUDIO_CLASSIFICATION"),
    "speech": ("SPEECH_SEQ_2_SEQ",),
}


MOST_PARAMETERS = 4_000_000
# Largest errors. Models of float64 that compute parts in float32 have errors near 1e-7, others near 1e-15.
MOST = {torch.float64: 1e-5, torch.float32: 1e-3}


class Result(NamedTuple):
    works: str  # "yes", "no", or "-" if the tiny model cannot be built or does not run in torch
    text: str


def architectures(kinds: list[str]) -> dict[str, tuple[str, str]]:
    """Return (kind, name of the class) of every architecture."""
    found: dict[str, tuple[str, str]] = {}
    for kind in kinds:
        for task in KINDS[kind]:
            for name, classes in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").items():
                found.setdefault(name, (kind, classes if isinstance(classes, str) else classes[0]))
    return found


def configuration(name: str) -> Any:
    """Return a tiny configuration."""
    return shrunk(transformers.CONFIG_MAPPING[name](), SPECIAL.get(name, {}))


def shrunk(default: Any, special: dict[str, Any]) -> Any:
    """Return the same configuration with tiny sizes and without dropout, and likewise those inside it."""
    attributes = set(default.to_dict()) | set(default.attribute_map)
    values = {key: getattr(default, key) for key in attributes if hasattr(default, key)}
    alike = lambda a, b: a is None or type(a) is type(b)
    chosen = {key: TINY[key] for key in TINY if key in values and alike(values[key], TINY[key])}
    chosen |= {key: 0.0 for key, value in values.items() if "drop" in key and isinstance(value, float)}
    chosen |= {
        key: [number] * len(values[key])
        for key, number in STAGES.items()
        if isinstance(values.get(key), list | tuple)
    }
    parts = {name: getattr(default, name, None) for name in type(default).sub_configs}
    chosen |= {name: shrunk(part, {}) for name, part in parts.items() if hasattr(part, "attribute_map")}
    return type(default)(**(chosen | special))


def build(name: str, class_name: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return the model with random weights, in evaluation mode, with `scaled_dot_product_attention` if it has that."""
    cls = getattr(transformers, class_name)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls._from_config(configuration(name)).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size:,} parameters: SPECIAL needs an entry for this architecture")
    named = {
        "dtype": dtype,
        "experts_implementation": "batched_mm",
    }  # the other implementations depend on the data
    torch.manual_seed(0)
    try:
        model = cls._from_config(configuration(name), attn_implementation="sdpa", **named)
    except (ValueError, ImportError):
        model = cls._from_config(configuration(name), **named)
    model = model.to(dtype).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # so that no parameter is zero or one
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(
                dtype
            )
    return model


def inputs(kind: str, model: Any, count: int = 2) -> dict[str, torch.Tensor]:
    """Return a batch of the model's arguments."""
    generator = torch.Generator().manual_seed(2)
    tokens = lambda: torch.randint(7, 50, (count, 8), generator=generator)
    dtype = next(model.parameters()).dtype
    draw = lambda *shape: torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype)
    if kind in ("text", "translation"):
        mask = torch.ones(count, 8, dtype=torch.int64)
        mask[-1, 6:] = 0
        possible = {"input_ids": tokens(), "attention_mask": mask}
        possible |= {"decoder_input_ids": tokens()} if kind == "translation" else {}
        return {
            name: a for name, a in possible.items() if name in inspect.signature(model.forward).parameters
        }
    if kind == "image":
        return {"pixel_values": draw(3, 32, 32)}
    features = model.main_input_name == "input_features"
    sound = {"input_features": draw(8, 32)} if features else {"input_values": draw(80)}
    return sound | ({"decoder_input_ids": tokens()} if kind == "speech" else {})


def loss(x: torch.Tensor, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return a weighted mean of cross entropies; the last dimension of the output has the classes."""
    out = model(**batch)
    out = out.logits if hasattr(out, "logits") else out[0]
    flat = out.reshape(-1, out.shape[-1])
    losses = F.cross_entropy(flat, torch.arange(len(flat)) % flat.shape[-1], reduction="none")
    return (torch.sigmoid(x) * losses.reshape(len(x), -1).mean(1)).mean()


def largest_errors(model: Any, batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the largest errors of the gradient and, if torch has it, of one Hessian product in the parameters."""
    x = torch.linspace(-1, 1, 2, dtype=next(model.parameters()).dtype)
    generator = torch.Generator().manual_seed(3)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    draw = lambda p: torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype)
    v = {name: draw(p) for name, p in parameters.items()}
    theirs = of_torch(x, model, batch, parameters, v)

    front = bl.torch.front(model, inner=loss, outer=loss, inner_mode="eval")
    y, state = front.start["y0"], front.start["model_state"]

    def of_jax(x: Any, y: Any, batch: Any, v: Any) -> Any:
        along = front.problem.oracles.along(x, y, v, batch)
        return along.gradient, along.hessian

    data = bl.Batch(inner=jax.tree.map(to_jax, batch), key=jax.random.key(0), state=state)
    ours = jax.jit(of_jax)(to_jax(x), y, data, {name: to_jax(a) for name, a in v.items()})
    return {
        name: _error(*pair)
        for name, *pair in zip(("gradient", "Hessian product"), ours, theirs, strict=False)
    }


def of_torch(
    x: Any, model: Any, batch: Any, y: dict[str, Any], v: dict[str, Any]
) -> list[dict[str, torch.Tensor]]:
    """Return the gradient and, if torch has it, the Hessian product by double backward: only the math kernel does."""
    options, variables = {"allow_unused": True, "materialize_grads": True}, tuple(y.values())
    with sdpa_kernel(SDPBackend.MATH), mock.patch.object(torch, "_weight_norm", weight_norm):
        first = torch.autograd.grad(loss(x, model, batch), variables, create_graph=True, **options)
        along = sum((g * a).sum() for g, a in zip(first, v.values(), strict=True))
        found = [first]
        with contextlib.suppress(RuntimeError):  # torch has no second derivative of some operations
            found.append(torch.autograd.grad(along, variables, **options))
    return [dict(zip(y, each, strict=True)) for each in found]


def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int) -> torch.Tensor:
    """Normalize a weight. The second derivative of torch's own operation is wrong for the first and the last dim."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


def _error(ours: dict[str, Any], theirs: dict[str, torch.Tensor]) -> float:
    assert set(ours) == set(theirs)
    theirs = {name: a.detach() for name, a in theirs.items() if a.numel()}
    scale = max(float(a.abs().max()) for a in theirs.values())
    return max(float(jnp.max(jnp.abs(ours[name] - to_jax(a)))) for name, a in theirs.items()) / scale


def missing(model: Any, batch: dict[str, torch.Tensor]) -> list[str]:
    """Return the operations of the loss, in both modes, that the table lacks."""
    found: dict[str, None] = {}
    real = export._check_operations

    def note(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            name = str(node.target)
            known = name in TABLE or name in export.CHECKS or node.target is operator.getitem
            if node.op == "call_function" and not known:
                found[name] = None
        if not found:
            real(graph)

    leaves, x = jax.tree.map(lambda a: a.numpy(), batch), torch.zeros(2, dtype=torch.float64).numpy()
    with mock.patch.object(export, "_check_operations", note):
        for mode in (False, True):
            try:
                export.export({"model": model.train(mode)}, loss, "inner", x, leaves, torch.device("cpu"))
            except KeyError:  # of an operation that the table lacks
                assert found
    return list(found)


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} seconds")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def survey(name: str, kind: str, class_name: str, only_export: bool, seconds: int) -> Result:
    try:
        with limit(seconds):
            model, batch = runnable(name, kind, class_name)
    except Exception as error:
        return Result("-", _short(error))
    try:
        with limit(seconds):
            if only_export:
                lacking = missing(model, batch)
                return Result("no" if lacking else "yes", ", ".join(lacking) or "exported")
            errors, dtype = largest_errors(model, batch), next(model.parameters()).dtype
            error, name = max(errors.values()), str(dtype).removeprefix("torch.")
            only = "" if len(errors) == 2 else ", only the gradient: torch has no second derivative"
            return Result("yes" if error < MOST[dtype] else "no", f"{error:.0e}, {name}{only}")
    except Exception as error:
        return Result("no", _short(error))


def runnable(name: str, kind: str, class_name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Return the model and a batch, in float64 or, where it does not run so, in float32."""
    for dtype in MOST:
        try:
            model = build(name, class_name, dtype)
            batch = inputs(kind, model)
            with torch.no_grad():
                loss(torch.zeros(2, dtype=dtype), model, batch)
            return model, batch
        except Exception:
            if dtype == torch.float32:
                raise
    raise AssertionError


def _short(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:300]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="these architectures")
    parser.add_argument("--kind", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--export", action="store_true", help="only export, and list all missing operations")
    parser.add_argument("--seconds", type=int, default=120, help="limit for each architecture")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    results = {}
    print("| architecture | works | error or first missing operation |\n|---|---|---|", flush=True)
    for name, (kind, class_name) in architectures(options.kind).items():
        if options.only is None or name in options.only:
            result = results[name] = survey(name, kind, class_name, options.export, options.seconds)
            print(f"| {name} | {result.works} | {result.text} |", flush=True)
    found = [result.works for result in results.values()]
    print(
        f"\n{found.count('yes')} of {len(found) - found.count('-')} work, {found.count('-')} do not run in torch"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
