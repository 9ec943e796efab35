"""What README.md and CONTRIBUTING.md state: the programs run and print what is shown, the commands exist, the README stays short."""

import contextlib
import inspect
import io
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_fp4_indexer as jfi

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
QUICK_START, ARRAY_CODE = re.findall(r"```python\n(.*?)```", README, re.S)
(PRINTED,) = re.findall(r"```text\n(.*?)```", README, re.S)


def run(code, names):
    """The names after the program, and what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    return names, printed.getvalue()


@pytest.fixture(scope="module")
def quick_start():
    return run(QUICK_START, {})


def test_the_quick_start_prints_what_the_readme_shows(quick_start):
    assert quick_start[1] == PRINTED


def test_the_array_code_computes_the_scores_of_the_quick_start(quick_start):
    names = quick_start[0]
    definition = {
        "e2m1": jfi.unpack_e2m1,
        "repeat": jnp.repeat,
        "einsum": jnp.einsum,
        "where": jnp.where,
        "inf": jnp.inf,
        "group": 16,
        "Hq": 4,
        "Hkv": 1,
        "head": np.arange(4),
        "k_local": np.arange(384).reshape(3, 1, 128),
        "q_local": np.arange(2)[:, None],
        "k_len": 300,
        "q_len": 2,
        "kv_indices": names["page_ids"],
        "q_fp4": names["q_codes"],
        "k_fp4": names["k_codes"],
        "q_scale": names["q_scale"].astype(jnp.float32),
        "k_scale": names["k_scale"].astype(jnp.float32),
    }
    with jax.default_matmul_precision("highest"):
        stated = run(ARRAY_CODE, definition)[0]["scores"]
    scores = names["scores"]
    assert np.isfinite(stated).all() and np.isneginf(scores[:, 3:]).all()
    np.testing.assert_allclose(scores[:, :3], stated, rtol=1e-5, atol=1e-4)


def test_the_readme_can_be_read_in_one_sitting():
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("name, text", [("README.md", README), ("CONTRIBUTING.md", CONTRIBUTING)])
def test_make_targets_exist(name, text):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", "\n".join(re.findall(r"`[^`]+`|```sh\n.*?```", text, re.S))))
    assert named and named <= set(targets)


@pytest.mark.parametrize(
    "module, pattern",
    [("jax_fp4_indexer.aot", r"-m jax_fp4_indexer\.aot (\w+)"), ("jax_fp4_indexer", r"\bjax-fp4-indexer (\w+)")],
)
def test_subcommands_exist(module, pattern):
    words = set(re.findall(pattern, README + CONTRIBUTING))
    assert words
    help_text = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, cwd=ROOT, timeout=120
    ).stdout
    assert all(re.search(rf"^  {word}\b", help_text, re.M) for word in words), (module, words, help_text)


def test_every_public_function_says_what_each_argument_is():
    public = {name: getattr(jfi, name) for name in set(jfi.__all__) - {"UnsupportedError", "ragged", "reference"}}
    public |= {f"ragged.{name}": getattr(jfi.ragged, name) for name in jfi.ragged.__all__}
    for name, function in public.items():
        text = function.__doc__
        if name == "ragged.check":
            assert "as for `ragged.validate`" in text and inspect.signature(function) == inspect.signature(
                jfi.ragged.validate
            )
            continue
        missing = [p for p in inspect.signature(function).parameters if not re.search(rf"\b{p}\b", text)]
        assert not missing, (name, missing)
    assert all(name in jfi.ragged.__doc__ for name in jfi.ragged.__all__), (
        "help(jax_fp4_indexer.ragged) lists the public names"
    )
    assert all(name in jfi.__doc__ for name in jfi.__all__), "help(jax_fp4_indexer) lists the public names"


def test_the_files_of_an_op_are_where_contributing_says():
    table = CONTRIBUTING.split("## How to add an op")[1].split("\n## ")[0]
    named = re.findall(r"`([\w/]+/<op>(?:\.py|\.md|/)|[\w/]+/__init__\.py)`", table)
    assert len(named) >= 10
    there = [lambda name, folder=folder: (ROOT / folder / name).exists() for folder in (".", "jax_fp4_indexer")]
    for name in named:
        assert any(
            at(name.replace("<op>", op)) for at in there for op in ("block_scores", "fp4_indexer_block_scores")
        ), name
    for name in re.findall(r"`((?:ffi|primitives|tests)/[\w/]+\.(?:py|cc))`", CONTRIBUTING):
        assert any(at(name) for at in there), name
