"""The README does what it says: its Python runs, its commands exist."""
import inspect
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jax_fp4_indexer as jfi

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FIVE_LINES, MODEL = re.findall(r"```python\n(.*?)```", README, re.S)
COMMANDS = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.S))
Q_LEN, K_LEN, HQ, HKV, PAGES = 4, 300, 4, 2, 5
cu = lambda n: np.array([0, n], np.int32)


def run(code, names):
    exec(compile(code, "README.md", "exec"), names)
    return names


def inputs():
    q, k = (jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i, shape in enumerate([(Q_LEN, HQ, 128), (PAGES, HKV, 128, 128)]))
    return q, k, np.array([3, 0, 4], np.int32)


def test_the_model_example_and_the_five_lines_agree():
    q, k_pages, kv_indices = inputs()
    model = run(MODEL, {"q": q, "k_pages": k_pages})
    scores = model["block_scores"](*(model[name] for name in ("q_codes", "k_codes", "q_scale", "k_scale")), cu(Q_LEN), cu(K_LEN), cu(3), kv_indices)
    assert scores.shape == (HQ, 512, Q_LEN) and np.isneginf(scores[:, 3:]).all()

    names = {"e2m1": jfi.unpack_e2m1, "repeat": jnp.repeat, "einsum": jnp.einsum, "where": jnp.where, "inf": jnp.inf, "group": 16, "Hq": HQ, "Hkv": HKV,
             "head": np.arange(HQ), "k_local": np.arange(384).reshape(3, 1, 128), "q_local": np.arange(Q_LEN)[:, None], "k_len": K_LEN, "q_len": Q_LEN,
             "kv_indices": kv_indices, "q_fp4": model["q_codes"], "k_fp4": model["k_codes"],
             **{name: model[name].astype(jnp.float32) for name in ("q_scale", "k_scale")}}
    with jax.default_matmul_precision("highest"):
        stated = run(FIVE_LINES, names)["scores"]
    assert np.isfinite(stated).all()
    np.testing.assert_allclose(scores[:, :3], stated, rtol=1e-5, atol=1e-4)


def test_commands_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    named = set(re.findall(r"\bmake ([\w-]+)", README))
    assert named and named <= set(targets)
    for module, words in (("jax_fp4_indexer.aot", re.findall(r"-m jax_fp4_indexer\.aot (\w+)", COMMANDS)), ("jax_fp4_indexer", re.findall(r"`jax-fp4-indexer (\w+)", README))):
        assert words
        listed = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120).stdout
        assert all(re.search(rf"^  {word}\b", listed, re.M) for word in words), (module, words, listed)


def test_every_public_function_says_what_each_argument_is():
    for name in set(jfi.__all__) - {"UnsupportedError", "reference"}:
        function = getattr(jfi, name)
        text = function.__doc__
        if name == "check_metadata":
            assert "as for `validate_metadata`" in text and inspect.signature(function) == inspect.signature(jfi.validate_metadata)
            continue
        missing = [p for p in inspect.signature(function).parameters if not re.search(rf"\b{p}\b", text)]
        assert not missing, (name, missing)
    assert all(name in jfi.__doc__ for name in jfi.__all__), "help(jax_fp4_indexer) lists the public names"
