"""The roofline plot of measured cases: rate over FLOP per logical byte, under the read and GEMM rates of the same run. Bandwidth-bound and arithmetic-bound cases apart."""

import numpy as np

COLOURS = {"nvfp4": "tab:blue", "mxfp4": "tab:orange"}
SPLIT = 300  # FLOP per byte: decode lies below, prefill above


def spread(y, low, high):
    """Heights near `y` (log scale, any order), at least a label apart, none above `high`."""
    order, step = np.argsort(y), np.log(high / low) / 26
    placed = np.log(np.asarray(y, float))
    for below, i in zip(order, order[1:]):
        placed[i] = max(placed[i], placed[below] + step)
    limit = np.log(high)
    for i in order[::-1]:  # what left at the top pushes the others down again
        placed[i] = min(placed[i], limit)
        limit = placed[i] - step
    return np.exp(placed)


def panel(ax, rows, rates):
    from matplotlib.ticker import LogLocator

    intensity = np.array([r["tflops"] * 1e3 / r["gbs"] for r in rows])
    burst = np.array([r["tflops"] for r in rows])
    sustained = burst * [r["median_us"] / r["sustained_us"] for r in rows]
    x = np.geomspace(intensity.min() / 1.5, intensity.max() * 1.5, 300)
    tops = []
    if rates:
        for key, name, style in (("int8_tops", "int8 GEMM", ":"), ("bf16_tflops", "bf16 GEMM", "-")):
            roof = np.minimum(x * rates["read_gbs"] / 1e3, rates[key])
            ax.plot(
                x, roof, "k" + style, lw=1, label=f"read {rates['read_gbs']:,.0f} GB/s, {name} {rates[key]:,.0f} T/s"
            )
            tops.append(roof.max())
    for fmt, colour in COLOURS.items():
        of = np.array([r["format"] == fmt for r in rows])
        for y, fill, what in ((burst, colour, "burst"), (sustained, "none", "sustained")):
            ax.scatter(
                intensity[of],
                y[of],
                s=34,
                marker="o" if fmt == "nvfp4" else "s",
                facecolor=fill,
                edgecolor=colour,
                label=f"{fmt}, {what}",
                zorder=3,
            )
    low, high = 0.8 * min(burst.min(), sustained.min()), 1.2 * max([burst.max(), *tops])
    ax.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(low, high), xlabel="FLOP per logical byte")
    names = list(dict.fromkeys(r["case"] for r in rows))
    ends = [
        max(((intensity[i], burst[i]) for i, r in enumerate(rows) if r["case"] == name), key=lambda point: point[0])
        for name in names
    ]
    for name, (i, y), height in zip(names, ends, spread([y for _, y in ends], low * 1.05, high)):
        ax.annotate(
            name,
            (i, y),
            xytext=(1.03, (np.log(height) - np.log(low)) / (np.log(high) - np.log(low))),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "grey"},
        )
    ax.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:,.0f}")
        axis.set_minor_formatter("{x:,.0f}")
    ax.tick_params(which="both", labelsize=8)
    ax.grid(which="both", alpha=0.2)


def plot(rows, path):
    """Write a PNG of the `rows` with preordered scales (as `jax_fp4_indexer.bench.run.run_case` makes them) to `path`."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in rows if r["scale_layout"] == "preordered_mma"]
    rates = next((r["limits"]["burst"] for r in rows if "burst" in r.get("limits", {})), None)
    parts = [
        part
        for part in ([r for r in rows if (r["tflops"] * 1e3 / r["gbs"] < SPLIT) == below] for below in (True, False))
        if part
    ]
    fig, axes = plt.subplots(1, len(parts), figsize=(7.5 * len(parts), 7), constrained_layout=True, squeeze=False)
    for ax, part in zip(axes[0], parts):
        panel(ax, part, rates)
    axes[0, 0].set_ylabel("TFLOP/s (visible pairs; bytes are codes, scales, metadata and scores, once)")
    axes[0, 0].legend(fontsize=8, loc="lower left")
    fig.suptitle(f"block scores on {rows[0]['card']}, jax {rows[0]['jax']}, {rows[0]['date']}")
    fig.savefig(path, dpi=110)
    plt.close(fig)
