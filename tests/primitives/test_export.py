"""Programs exported on a host without a GPU: for a platform or two, and for a mesh of GPUs that is not here."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_fp4_indexer as jfi
from jax_fp4_indexer.specs import OPS
from jax_fp4_indexer.specs.block_scores import SPEC

from support import inputs

NAMES = ("q_fp4", "k_fp4", "q_scale", "k_scale", "cu_seqlens_q", "cu_seqlens_k", "cu_page_offsets", "kv_indices")
BATCH = inputs.batch("nvfp4", [3, 0, 5], [300, 5, 200], 8, 4, spare_pages=2)
LOAD = """
import sys, numpy as np, jax, jax.export
program = jax.export.deserialize(bytearray(open(sys.argv[1] + '/program', 'rb').read()))
print(program.platforms, program.nr_devices)
data = np.load(sys.argv[1] + '/arguments.npz')
np.save(sys.argv[1] + '/out', program.call(*(data[f'arr_{i}'] for i in range(8))))
assert 'jax_fp4_indexer' not in sys.modules
"""


def op(*operands):
    return jfi.fp4_indexer_block_scores(**dict(zip(NAMES, operands, strict=True)), **BATCH.statics())


def export(f, shapes, *platforms):
    return jax.export.export(f, platforms=platforms, disabled_checks=jfi.export_disabled_checks())(*shapes)


@pytest.mark.parametrize("platforms", [("cpu",), ("cuda",), ("cpu", "cuda")], ids="-".join)
def test_round_trip_through_a_new_process(platforms, tmp_path):
    """What is exported for the CPU runs there without this package; what is for CUDA alone says so."""
    arrays = [BATCH.arrays()[name] for name in NAMES]
    exported = export(jax.jit(op), arrays, *platforms)
    assert exported.mlir_module().count(f"custom_call @{SPEC.target}(") == ("cuda" in platforms)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "arguments", *arrays)
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.stdout.startswith(f"{platforms} 1")
    if "cpu" in platforms:
        assert done.returncode == 0, done.stderr[-2000:]
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), op(*arrays))
    else:
        assert done.returncode != 0 and "exported for platforms '('cuda',)' but it is used on '('cpu',)'" in done.stderr


def shapes_on(mesh, specs):
    """Types of a batch of 32 sequences, placed on a mesh."""
    kinds = {
        "q_fp4": ((64, 16, 64), "uint8"),
        "k_fp4": ((512, 8, 128, 64), "uint8"),
        "q_scale": ((64, 16, 8), "uint8"),
        "k_scale": ((512, 8, 128, 8), "uint8"),
        "cu_seqlens_q": ((36,), "int32"),
        "cu_seqlens_k": ((36,), "int32"),
        "cu_page_offsets": ((36,), "int32"),
        "kv_indices": ((512,), "int32"),
    }
    return [
        jax.ShapeDtypeStruct(*kinds[name], sharding=NamedSharding(mesh, spec))
        for name, spec in zip(NAMES, specs, strict=True)
    ]


def scores(*operands):
    return jfi.fp4_indexer_block_scores(**dict(zip(NAMES, operands, strict=True)), max_seqlen_q=2, max_seqlen_k=1024)


@pytest.mark.parametrize("kind", ["shard_map", "explicit", "auto"])
def test_for_a_mesh_of_32_gpus_that_is_not_here(kind):
    """shard_map: 4 groups of sequences by 8 parts of the heads. Explicit and Auto: heads over 8, tokens or nothing over 4. The call in the artifact is that of the wire format."""
    mesh = AbstractMesh(
        (4, 8), ("dp", "tp"), axis_types=(AxisType.Explicit if kind == "explicit" else AxisType.Auto,) * 2
    )
    if kind == "shard_map":
        specs = [P("dp", "tp")] * 4 + [P("dp")] * 4
        f, local = (
            jax.shard_map(scores, mesh=mesh, in_specs=tuple(specs), out_specs=P("tp", None, "dp")),
            ("tensor<16x2x64xui8>", "tensor<128x1x128x64xui8>"),
        )
    elif kind == "explicit":
        specs = [P("dp", "tp"), P(None, "tp"), P("dp", "tp"), P(None, "tp"), *[P()] * 4]
        f, local = scores, ("tensor<16x2x64xui8>", "tensor<512x1x128x64xui8>")
    else:
        specs = [P(None, "tp")] * 4 + [P()] * 4
        f, local = scores, ("tensor<64x16x64xui8>", "tensor<512x8x128x64xui8>")  # XLA gathers for it where it is loaded
    exported = export(jax.jit(f), shapes_on(mesh, specs), "cuda")
    exported = jax.export.deserialize(exported.serialize())
    assert exported.nr_devices == 32 and exported.platforms == ("cuda",)
    text = exported.mlir_module()
    (line,) = [line for line in text.splitlines() if "custom_call @jax_fp4_indexer" in line]
    assert f"@{SPEC.target}(" in line and f": ({', '.join(local)}, " in line
    assert "sdy.sharding_rule" not in line
    assert "all_gather" not in text


def test_helper_names_what_export_asks_for():
    """Without it JAX refuses; with it the call's own name is all that is let through."""
    shapes = [BATCH.arrays()[name] for name in NAMES]
    with pytest.raises(ValueError, match=SPEC.target):
        jax.export.export(jax.jit(op), platforms=("cuda",))(*shapes)
    assert [str(check) for check in jfi.export_disabled_checks()] == [
        str(jax.export.DisabledSafetyCheck.custom_call(spec.target)) for spec in OPS.values()
    ]
    other = jax.jit(
        lambda *operands: jax.ffi.ffi_call("another.target", jax.ShapeDtypeStruct((1,), jnp.float32))(op(*operands))
    )
    with pytest.raises(ValueError, match="another.target"):
        export(other, shapes, "cuda")


def test_the_package_that_serialising_needs_is_named():
    """Without flatbuffers a program is exported all the same; JAX's error, the docstring and the page name the package."""
    script = """
import sys
sys.modules["flatbuffers"] = None
import jax, jax.export, numpy as np, jax_fp4_indexer as jfi
program = jax.export.export(jax.jit(jfi.pack_e2m1), disabled_checks=jfi.export_disabled_checks())(jax.ShapeDtypeStruct((2, 4), np.float32))
for use in (program.serialize, lambda: jax.export.deserialize(bytearray(8))):
    try:
        use()
    except ImportError as error:
        assert "flatbuffers" in str(error), error
    else:
        raise SystemExit("flatbuffers is not needed")
"""
    root = pathlib.Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    page = (root / "docs" / "sharding.md").read_text().split("## Export")[1].split("\n## ")[0]
    assert "pip install flatbuffers" in page and "pip install flatbuffers" in jfi.export_disabled_checks.__doc__
