"""Weights by construction, and a task that they solve: look up a passage in a long context and copy it.

Random weights attend to everything equally, and then any choice of blocks is as good as any other. Here the residual stream has named subspaces

    token  64   identity of the token          (embedding)
    before 64   identity of the token before   (written by layer 0, KV head 0: attention to the position before, by rotation)
    answer 64   identity of the next token     (written by every later layer, KV head `layer % Hkv`: attends to keys whose `before` is this token)
    one    1    constant
    rest        noise of the embedding, of the other heads and of the MLP

so that a token seen earlier predicts what followed it there: an induction head. The other KV heads are *diffuse*: their queries are random maps of the token,
so that attention spreads over whatever happens to match, sharper in some (SHARPNESS) than in others.

The index key of a layer is what its KV heads' keys are made of: every KV head turns it by a rotation of its own, every query head adds noise to its
group's index query. That stands for the training that aligns an indexer with its attention; it is what an example cannot have.
"""

import numpy as np

from .cache import HEAD_DIM
from .model import ROTARY_BASE, ROTARY_DIM

IDENTITY = 64
TOKEN, BEFORE, ANSWER = slice(0, 64), slice(64, 128), slice(128, 192)
ONE, REST = 192, 193
LOOK_UP = 34.0  # logit of an exact match of identities; a stranger's is about 0 +- LOOK_UP / 8
SHARPNESS = (3.0, 2.5, 2.0)  # standard deviation of a diffuse head's logits
POSITION = 150.0  # logit of the token before; the next best is about 12 lower
FAST_PAIRS = 16  # rotary pairs that tell neighbours apart
HEAD_NOISE = 0.25  # of a query head, against its group's index query
WRITE = 0.25  # what a diffuse KV head or the MLP adds to the stream, of a token's identity
PASSAGE = 8  # tokens of a passage: its name, then what is asked for


def make_weights(config, seed=0):
    """The parameters of model.SPECS, NumPy float32."""
    rng = np.random.default_rng(seed)
    c, ratio = config, config.heads_q // config.heads_kv
    if c.d_model < REST + 64:
        raise ValueError(
            f"make_weights: d_model: got {c.d_model}, expected at least {REST + 64}. The named subspaces take {REST}."
        )
    zeros = lambda *shape: np.zeros((c.layers, *shape), np.float32)
    p = {
        "wq": zeros(c.d_model, c.heads_q, HEAD_DIM),
        "wk": zeros(c.d_model, c.heads_kv, HEAD_DIM),
        "wv": zeros(c.d_model, c.heads_kv, HEAD_DIM),
        "wo": zeros(c.heads_q, HEAD_DIM, c.d_model),
        "w_index_q": zeros(c.d_model, c.heads_kv, HEAD_DIM),
        "w_index_k": zeros(c.d_model, 1, HEAD_DIM),
    }
    identity = _unit(rng.standard_normal((c.vocab, IDENTITY)))
    p["embed"] = np.zeros((c.vocab, c.d_model), np.float32)
    p["embed"][:, TOKEN], p["embed"][:, ONE] = identity, 1
    p["embed"][:, REST:] = 0.5 * _unit(rng.standard_normal((c.vocab, c.d_model - REST)))
    p["unembed"] = np.zeros((c.d_model, c.vocab), np.float32)
    p["unembed"][ANSWER] = identity.T
    for layer in range(c.layers):
        _plant_layer(c, p, layer, ratio, rng)
    draw = lambda *shape: rng.standard_normal((c.layers, *shape), dtype=np.float32)
    p["w_gate"], p["w_up"] = (draw(c.d_model, c.d_ff) / np.sqrt(c.d_model) for _ in range(2))
    p["w_down"] = np.zeros((c.layers, c.d_ff, c.d_model), np.float32)
    p["w_down"][:, :, REST:] = draw(c.d_ff, c.d_model - REST) * WRITE / np.sqrt(c.d_ff * (c.d_model - REST))
    return p


def planted_heads(config):
    """bool [layers, Hkv]: the KV heads that carry the look-up."""
    return np.array(
        [[g == (layer % config.heads_kv) for g in range(config.heads_kv)] for layer in range(config.layers)]
    )


def _plant_layer(c, p, layer, ratio, rng):
    source = TOKEN if layer == 0 else BEFORE  # what the keys without position hold
    # rms_norm gives every stream the length sqrt(d_model); these are the lengths before it (embedding: 1 + 1 + 1/4; later + 1 for `before`)
    norm = np.sqrt(c.d_model) / np.sqrt(2.25 if layer == 0 else 3.3)
    eye = np.eye(IDENTITY, dtype=np.float32) / norm
    p["w_index_k"][layer, source, 0, ROTARY_DIM:] = eye
    p["w_index_k"][layer, ONE, 0, :FAST_PAIRS] = 1 / norm / np.sqrt(FAST_PAIRS) if layer == 0 else 0
    sharp = iter(np.resize(SHARPNESS, c.heads_kv))
    for g in range(c.heads_kv):
        planted = g == layer % c.heads_kv
        turn = np.linalg.qr(rng.standard_normal((IDENTITY, IDENTITY)))[0].astype(np.float32)
        w = np.zeros((c.d_model, HEAD_DIM), np.float32)
        if planted and layer == 0:
            w[ONE, :ROTARY_DIM] = POSITION / np.sqrt(FAST_PAIRS) * _one_step_back()
        elif planted:
            w[TOKEN, ROTARY_DIM:] = LOOK_UP * np.eye(IDENTITY)
        else:
            w[TOKEN, ROTARY_DIM:] = 8 * next(sharp) * np.linalg.qr(rng.standard_normal((IDENTITY, IDENTITY)))[0]
        w *= np.sqrt(HEAD_DIM) / norm
        p["w_index_q"][layer, :, g] = w
        p["wk"][layer, :, g] = _turned(p["w_index_k"][layer, :, 0], turn)
        for h in range(g * ratio, (g + 1) * ratio):
            noise = np.zeros_like(w)
            noise[TOKEN, ROTARY_DIM:] = (
                HEAD_NOISE
                * np.linalg.norm(w[TOKEN, ROTARY_DIM:])
                / IDENTITY
                * rng.standard_normal((IDENTITY, IDENTITY))
            )
            p["wq"][layer, :, h] = _turned(w + noise, turn)
        heads = slice(g * ratio, (g + 1) * ratio)
        if planted:
            p["wv"][layer, TOKEN, g, :IDENTITY] = eye
            write, size = (BEFORE, 1.0) if layer == 0 else (ANSWER, 1 / max(1, c.layers - 1))
            p["wo"][layer, heads, :IDENTITY, write] = size / ratio * np.eye(IDENTITY)
        else:
            p["wv"][layer, :, g] = rng.standard_normal((c.d_model, HEAD_DIM)) / norm / np.sqrt(HEAD_DIM)
            p["wo"][layer, heads, :, REST:] = (
                rng.standard_normal((HEAD_DIM, c.d_model - REST)) * WRITE / ratio / np.sqrt(c.d_model - REST)
            )


def _unit(x):
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def _turned(w, turn):
    """The part without position, turned: products of queries and keys that are turned alike stay what they were."""
    return np.concatenate([w[:, :ROTARY_DIM], w[:, ROTARY_DIM:] @ turn], -1)


def _one_step_back():
    """[ROTARY_DIM]: the constant vector of the position keys, rotated by -1, so that it meets the key of the position before."""
    half = ROTARY_DIM // 2
    angle = ROTARY_BASE ** (-np.arange(FAST_PAIRS) / half)
    out = np.zeros(ROTARY_DIM, np.float32)
    out[:FAST_PAIRS], out[half : half + FAST_PAIRS] = np.cos(angle), -np.sin(angle)
    return out


def make_prompts(config, lengths, seed=0, passages=8):
    """Prompts (int32 arrays of `lengths`) and the continuation each asks for, [B, PASSAGE - 1].

    Noise tokens, `passages` passages of tokens that occur nowhere else, spread over the prompt; its last token is the name of one of them."""
    rng = np.random.default_rng(seed)
    rare = passages * PASSAGE
    if min(lengths) < 4 * rare or config.vocab < 4 * rare:
        raise ValueError(
            f"make_prompts: got lengths {lengths} and vocab {config.vocab}, expected at least {4 * rare}: {passages} passages of {PASSAGE} tokens need room."
        )
    prompts, answers = [], []
    for n in lengths:
        prompt = rng.integers(rare, config.vocab, n).astype(np.int32)
        passage = rng.permutation(rare).astype(np.int32).reshape(passages, PASSAGE)
        room = (n - 1) // passages
        for i in range(passages):
            at = i * room + rng.integers(0, room - PASSAGE)
            prompt[at : at + PASSAGE] = passage[i]
        asked = rng.integers(passages)
        prompt[-1] = passage[asked, 0]
        prompts.append(prompt)
        answers.append(passage[asked, 1:])
    return prompts, np.stack(answers)
