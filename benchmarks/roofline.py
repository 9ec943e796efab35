"""Roofline of measured cases: TFLOP/s over FLOP per logical byte, under the read and GEMM rates of the same run.

    python benchmarks/roofline.py benchmarks/results/h200/block_scores.json
"""
import json
import pathlib
import sys

import numpy as np


def plot(rows, path):
    """Write a PNG of `rows` (as `jax_fp4_indexer.bench.run` makes them) to `path`."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    limits = next(r["limits"] for r in rows if r.get("limits"))
    fig, ax = plt.subplots(figsize=(10, 6), constrained_layout=True)
    intensity = [r["tflops"] * 1e3 / r["gbs"] for r in rows]
    x = np.geomspace(min(intensity) / 3, max(intensity) * 3, 200)
    ax.plot(x, np.minimum(x * limits["read_gbs"] / 1e3, limits["gemm_tflops"]), color="black", lw=1, label="measured limits (read, bf16 GEMM)")
    markers = {"nvfp4": "o", "mxfp4": "s"}
    for fmt, marker in markers.items():
        chosen = [(i, r["tflops"] * r["median_us"] / r["sustained_us"], r["case"]) for i, r in zip(intensity, rows) if r["format"] == fmt and r["scale_layout"] == "preordered_mma"]
        ax.scatter([c[0] for c in chosen], [c[1] for c in chosen], marker=marker, s=36, label=fmt, alpha=0.8)
        if fmt == "nvfp4":
            for i, y, name in chosen:
                ax.annotate(name, (i, y), textcoords="offset points", xytext=(5, -9), fontsize=7)
    ax.set(xscale="log", yscale="log", xlabel="FLOP per logical byte (visible pairs; codes, scales, metadata, scores once)", ylabel="TFLOP/s, sustained",
           title=f"block scores on {rows[0]['card']}, {rows[0]['date']}")
    ax.legend()
    ax.grid(which="both", alpha=0.2)
    fig.savefig(path, dpi=120)
    plt.close(fig)


if __name__ == "__main__":
    source = pathlib.Path(sys.argv[1])
    plot(json.loads(source.read_text()), source.with_suffix(".png"))
