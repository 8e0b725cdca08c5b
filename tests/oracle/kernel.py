"""A plain kernel to be judged: the layer in float32 or bfloat16.

It computes every expert on every token and keeps what was routed, with the roundings of
`Numerics.of(dtype)` and no others. `xp` is NumPy, or `jax.numpy` where a gradient is wanted.
`fault` plants one of the faults the bounds must see.
"""

import math

import jax
import ml_dtypes
import numpy as np

BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
_erf = np.vectorize(math.erf, otypes=[np.float32])


def wider(a, b):
    """The wider of two dtypes, by name."""
    return max(str(a), str(b or a), key=BITS.get)


def narrow(a, dtype):
    """Round once to `dtype`, and go on in float32 or wider."""
    name = str(dtype)
    inner = ml_dtypes.bfloat16 if name == "bfloat16" else name
    return a.astype(inner).astype(wider(name, "float32"))


def sigmoid(a, xp):
    with np.errstate(over="ignore"):
        return 1 / (1 + xp.exp(-a))


def softmax(a, xp):
    e = xp.exp(a - a.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def dense(params, x, *, spec, experts, kept, weights, dtype, fault="", xp=np):
    """The output; `weights` is [tokens, k], or None for those of the live router."""
    wide = wider(dtype, "float32")
    params = jax.tree.map(lambda a: a.astype(wide), params)
    x = x.astype(wide)
    if weights is None:
        weights = router_weights(params["router"], x, spec, experts, dtype, xp)
    weights = xp.where(kept, weights.astype(wide), 0)
    if fault == "weights x 0.999":
        weights = weights * 0.999
    if fault == "weights in bfloat16":
        weights = narrow(narrow(weights, "bfloat16"), wide)
    if fault == "a slot dropped":
        kept = kept & (np.arange(kept.size).reshape(kept.shape) != np.flatnonzero(kept)[3])
    read = narrow(x @ params["latent_in"], dtype) if spec.d_latent else x
    routed = xp.zeros_like(read)
    for e in range(spec.router.num_choices):
        for slot in range(experts.shape[1]):
            mine = ((experts[:, slot] == e) & kept[:, slot])[:, None]
            if not mine.any():
                continue
            w = weights[:, slot][:, None]
            if e >= spec.router.num_experts:
                term = w * read
            else:
                term = expert(params["experts"], e, read, w, spec, dtype, fault, xp)
            routed = routed + xp.where(mine, term, 0)
            if fault == "combine in bfloat16":
                routed = narrow(routed, "bfloat16")
    if spec.router.scale_site == "output":
        routed = routed * spec.router.scale
    if spec.d_latent:
        routed = narrow(routed, dtype) @ params["latent_out"]
    y = routed
    if spec.shared_d_hidden:
        shared = {name: a[None] for name, a in params["shared"].items()}
        out = expert(shared, 0, x, None, spec, dtype, "", xp)
        if spec.shared_gate:
            out = out * sigmoid(x @ params["shared_gate"], xp)[:, None]
        y = y + out
    if spec.output_bias:
        y = y + params["output_bias"][None, :]
    return narrow(y, dtype)


def expert(p, e, x, w, spec, dtype, fault, xp):
    s, site = spec.experts, None if w is None else spec.weight_site
    if site == "input":
        x = narrow(w * x, dtype)
    before = x @ p["w_in"][e]
    if s.expert_bias:
        before = before + p["b_in"][e][None, :]
    if s.gated:
        gate, up = xp.split(before, 2, axis=1)
        if fault == "gate and up swapped":
            gate, up = up, gate
        if s.swiglu_limit is not None:
            gate = xp.minimum(gate, s.swiglu_limit)
            up = xp.clip(up, -s.swiglu_limit, s.swiglu_limit)
        hidden = activate(gate, s, xp) * (up + s.up_offset)
    else:
        hidden = activate(before, s, xp)
    if site == "hidden":
        hidden = w * hidden
    if fault == "hidden in bfloat16":
        hidden = narrow(hidden, "bfloat16")
    hidden = narrow(hidden, dtype)
    out = hidden @ p["w_out"][e]
    if s.expert_bias:
        out = out + (w if site == "hidden" else 1) * p["b_out"][e][None, :]
    if fault.startswith("expert 1 x") and e == 1:
        out = out * float(fault.split()[-1])
    return w * out if site == "output" else out


def activate(g, s, xp):
    if s.activation == "silu":
        return g * sigmoid(s.swiglu_alpha * g, xp)
    if s.activation == "gelu":
        erf = _erf if xp is np else jax.lax.erf
        return g / 2 * (1 + erf(g * 0.5**0.5).astype(g.dtype))
    if s.activation == "gelu_tanh":
        return g / 2 * (1 + xp.tanh((2 / math.pi) ** 0.5 * (g + 0.044715 * g**3)))
    return xp.maximum(g, 0) ** (2 if s.activation == "relu_squared" else 1)


def router_weights(p, x, spec, experts, dtype, xp=np):
    r = spec.router
    projection = wider(dtype, r.projection_dtype)
    logits = x @ p["weight"].T
    if r.router_bias:
        logits = logits + p["bias"][None, :]
    logits = narrow(logits, projection)
    if r.logit_softcap is not None:
        logits = narrow(r.logit_softcap * xp.tanh(logits / r.logit_softcap), projection)
    filled, ids = experts >= 0, np.where(experts >= 0, experts, 0)
    scores = logits
    if r.score == "softmax":
        scores = softmax(logits, xp)
    elif r.score == "sigmoid":
        scores = sigmoid(logits, xp)
    elif r.score == "sqrt_softplus":
        scores = xp.sqrt(xp.logaddexp(logits, xp.zeros_like(logits)))
    w = xp.take_along_axis(scores, ids, axis=1)
    if r.score == "softmax_selected":
        w = softmax(xp.where(filled, w, -math.inf), xp)
    w = xp.where(filled, w, 0)
    if r.renormalize != "none" and not (r.renormalize_only_above_one and r.k == 1):
        total, eps = w.sum(axis=1, keepdims=True), r.renormalize_eps
        if r.renormalize == "p_norm":
            power = r.renormalize_p
            total = (w**power).sum(axis=1, keepdims=True) ** (1 / power)
        elif r.renormalize == "sum":
            total = total + eps
        else:
            total = xp.maximum(total, eps)
        w = w / total
    if r.scale_site == "weight":
        w = w * r.scale
    if r.per_expert_scale:
        w = w * p["per_expert_scale"][ids]
    return narrow(w, wider(dtype, r.weight_dtype))
