"""The pages and plots of measured rows, made anew from `benchmarks/results`.

python benchmarks/report.py             # the tables between the markers of docs/benchmarks.md and README.md, from the
                                        H200's records, and a PNG for every block_scores.json
python benchmarks/report.py --check     # changes nothing; status 1 if a page is not that of the record, or a share is
                                        above 100 %
"""

import argparse
import json
import pathlib
import sys
import textwrap

from jax_fp4_indexer.bench.cases import How, all_cases
from jax_fp4_indexer.bench.figures import figures, kept_busy
from jax_fp4_indexer.specs import OPS

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SHOWN = RESULTS / "h200"
BEGIN, END = "<!-- made by benchmarks/report.py: begin -->", "<!-- made by benchmarks/report.py: end -->"
HEADLINES = {  # the README's rows, and what they are called there
    ("prefill_q8k_k8k", "nvfp4"): "prefill: 8,192 queries x 8,192 keys, 64/4 heads",
    ("prefill_q8k_k8k", "mxfp4"): "prefill: 8,192 queries x 8,192 keys, 64/4 heads",
    ("decode_8k", "nvfp4"): "decode: 128 sequences of 8,192 keys",
    ("decode_64k", "nvfp4"): "decode: 128 sequences of 65,536 keys",
    ("decode_b1_128k", "nvfp4"): "decode: one sequence of 131,072 keys",
}
CARDS = {"NVIDIA H200": ((9, 0), 132)}  # compute capability and multiprocessors, for rows that do not say them
MOST = 1.005  # of a share that cannot pass 100 %: what two clocks may differ by


def number(x):
    """Three figures, thousands whole and with a comma; "-" for None."""
    return "-" if x is None else f"{x:,.{0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2}f}"


def percent(x):
    return "-" if x is None else f"{x:.0%}"


def completed(rows, dispatch=None):
    """Rows with every figure that follows from what they hold. `dispatch`: the record of benchmarks/dispatch.py, whose
    chains stand for those that a row does not have itself."""
    chains = {
        (link["case"], link["format"]): link["chain_us"]
        for link in (dispatch or {}).get("modes", {}).get("command buffers", ())
    }
    # Baselines are timed once a case and format, whatever the layout of the op's own scales
    beside = {}
    for row in rows:
        times = {key: row.get(key) for key in ("xla_us", "reference_us") if row.get(key) is not None}
        beside.setdefault((row["case"], row["format"]), {}).update(times)
    found = []
    for row in rows:
        row = {**row, **beside[row["case"], row["format"]]}
        capability, multiprocessors = CARDS.get(row["card"], (None, None))
        known = {
            "capability": tuple(row.get("capability") or capability or ()) or None,
            "multiprocessors": row.get("multiprocessors") or multiprocessors,
        }
        how = How(row["format"], row["scale_layout"], row["implementation"])
        made = figures(
            all_cases()[row["case"]],
            how,
            burst_us=row["median_us"],
            sustained_us=row["sustained_us"],
            burst_mhz=row.get("sm_mhz"),
            sustained_mhz=row.get("sustained_sm_mhz"),
            rates=row.get("limits"),
            **known,
        )
        chain = row.get("chain_us") or (
            chains.get((row["case"], row["format"])) if row["scale_layout"] == "preordered_mma" else None
        )
        found.append({**row, **made, "chain_us": chain})
    return found


def shown(rows):
    """The rows of the tables: each case with the scale layout that is the last of those it names."""
    return [row for row in rows if row["scale_layout"] == all_cases()[row["case"]].scale_layouts[-1]]


def markdown(headings, lines):
    return "\n".join(
        [
            "| " + " | ".join(headings) + " |",
            "|" + "---|" * len(headings),
            *("| " + " | ".join(line) + " |" for line in lines),
        ]
    )


def share(row):
    """What binds the case, in words: the tensor cores, or the read rate."""
    if row["sustained_tensor_share"] is not None:
        kind = max(
            all_cases()[row["case"]].work(How(row["format"], row["scale_layout"])).items(), key=lambda item: item[1]
        )[0]
        return f"{percent(row['sustained_tensor_share'])} of the {kind} tensor cores"
    return f"{percent(row['sustained_read_share'])} of the read rate"


def headlines(rows):
    """Markdown of the README's rows."""
    by_name = {(row["case"], row["format"]): row for row in shown(rows)}
    lines = [
        (
            title,
            row["format"].upper(),
            number(row["sustained_us"]),
            share(row),
            number(row["median_us"]),
            number(row["chain_us"]),
            number(row["xla_us"]),
            number(row["published_us"]),
        )
        for row, title in ((by_name[name], title) for name, title in HEADLINES.items())
    ]
    words = (
        "Microseconds, cold L2. *Sustained*: programs without a pause. *Burst*: after one of 80 ms. "
        "*In a chain*: each call waits for the one before."
    )
    named = [by_name[name] for name in HEADLINES]
    return (
        textwrap.fill(f"{caption(named)} {words}", 118)
        + "\n\n"
        + markdown(
            (
                "case",
                "format",
                "sustained",
                "share of what is possible",
                "burst",
                "in a chain",
                "plain XLA",
                "published, B200",
            ),
            lines,
        )
    )


def table(rows):
    """Markdown of every row."""

    def line(row):
        card = row.get("card_sustained", {})
        held = (
            "-"
            if row.get("sustained_sm_mhz") is None
            else f"{row['sustained_sm_mhz']:.0f}" + "".join(f" ({reason})" for reason in card.get("reasons", ()))
        )
        return (
            row["case"],
            row["format"],
            number(row["sustained_us"]),
            f"{number(row['median_us'])} ± {number(row['spread_us'] / 2)}",
            number(row["chain_us"]),
            percent(row["sustained_tensor_share"]),
            percent(row["tensor_share"]),
            percent(row["sustained_read_share"]),
            percent(row["read_share"]),
            percent(row["sustained_gemm_share"]),
            percent(row.get("busy")) + ("" if kept_busy(row) else " (paused)" if row.get("busy") else ""),
            held,
            number(card.get("power_w")),
            number(row["xla_us"]),
            number(row.get("reference_us")),
            number(row["published_us"]),
        )

    return markdown(
        (
            "case",
            "format",
            "sustained",
            "burst",
            "in a chain",
            "tensor cores",
            "in a burst",
            "read rate",
            "in a burst",
            "XLA's GEMM",
            "busy",
            "SM MHz",
            "W",
            "plain XLA",
            "reference",
            "published, B200",
        ),
        map(line, shown(rows)),
    )


def caption(rows):
    """One sentence: which card, when, with what."""
    row = rows[0]
    identity = row.get("card_identity", {})
    power = (
        f"power cap {identity['power_limit_w']:.0f} W"
        if identity
        else f"{max(r['card_sustained'].get('power_w', 0) for r in rows):.0f} W at most"
    )
    return (
        f"{row['card']} ({identity.get('uuid', 'UUID not recorded')}), {power}, jax {row['jax']}, "
        f"{row['date']}, commit {' and '.join(sorted({str(r['commit']) for r in rows}))}."
    )


def tables(rows):
    """Markdown of every row, an op after the other, each with its card. An op's rows are of one run."""
    by_op = {}
    for row in rows:
        by_op.setdefault(all_cases()[row["case"]].op, []).append(row)
    return "\n\n".join(f"### {OPS[op].api}\n\n{caption(found)}\n\n{table(found)}" for op, found in by_op.items())


def replaced(text, made, name):
    """A page's text with `made` between the markers. ValueError if the markers are not there, once and in order."""
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"{name}: got no single pair of the markers {BEGIN!r} and {END!r}; put them around the table")
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def pages():
    """({path: text as it should be}, the completed rows of the H200)."""
    dispatch = SHOWN / "dispatch.json"
    rows = [row for path in sorted(SHOWN.glob("*.json")) for row in _rows(path)]
    rows = completed(rows, json.loads(dispatch.read_text()) if dispatch.exists() else None)
    made = {ROOT / "README.md": headlines(rows), ROOT / "docs" / "benchmarks.md": tables(rows)}
    return {path: replaced(path.read_text(), text, path.name) for path, text in made.items()}, rows


def _rows(path):
    """The rows of a file that holds rows of benchmark cases; nothing of another one."""
    data = json.loads(path.read_text())
    return data if isinstance(data, list) and all("median_us" in row for row in data) else []


def too_high(rows):
    """Sentences about shares above 100 % that cannot be."""
    return [
        f"{row['case']} {row['format']}: {key} is {row[key]:.1%}"
        for row in rows
        for key in ("read_share", "sustained_read_share", "tensor_share", "sustained_tensor_share")
        if (row[key] or 0) > MOST
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    made, rows = pages()
    wrong = too_high(rows)
    if args.check:
        wrong += [
            f"{path.name}: its table is not that of benchmarks/results; run python benchmarks/report.py"
            for path, text in made.items()
            if path.read_text() != text
        ]
        sys.exit("\n".join(wrong) if wrong else 0)
    for path, text in made.items():
        path.write_text(text)
        print(f"{path} from {SHOWN}")
    from roofline import plot

    for path in sorted(RESULTS.glob("*/block_scores.json")):
        plot(json.loads(path.read_text()), path.with_suffix(".png"))
        print(path.with_suffix(".png"))
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
