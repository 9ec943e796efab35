"""The roofline plots and the table of docs/benchmarks.md, made anew from `benchmarks/results`.

    python benchmarks/report.py             # a PNG beside every block_scores.json; the table between the markers in docs/benchmarks.md from the H200's
    python benchmarks/report.py --check     # changes nothing; status 1 if the table is not that of the file
"""
import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
SHOWN = ROOT / "benchmarks" / "results" / "h200" / "block_scores.json"
BEGIN, END = "<!-- made by benchmarks/report.py: begin -->", "<!-- made by benchmarks/report.py: end -->"


def number(x):
    """Three figures, thousands whole and with a comma; "-" for None."""
    return "-" if x is None else f"{x:,.{0 if abs(x) >= 100 else 1 if abs(x) >= 10 else 2}f}"


def percent(x):
    return "-" if x is None else f"{x:.0%}"


def clock(row):
    """MHz sustained, with what held it down."""
    mhz, reasons = row.get("sustained_sm_mhz"), row.get("card_sustained", {}).get("reasons", [])
    return "-" if mhz is None else f"{mhz:.0f}" + (f" ({', '.join(reasons)})" if reasons else "")


def table(rows):
    """Markdown of the rows with preordered scales."""
    lines = ["| case | | burst | sustained | limit | burst of limit | sustained of limit | clocks a tile | SM MHz sustained | plain XLA | published, B200 |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        if r["scale_layout"] == "preordered_mma":
            cells = (r["case"], r["format"], f"{number(r['median_us'])} ± {number(r['spread_us'] / 2)}", number(r["sustained_us"]), f"{number(r['limit_us'])} ({r['limit']})",
                     percent(r["fraction"]), percent(r.get("sustained_fraction")), number(r.get("clocks_per_tile")), clock(r), number(r["xla_us"]), number(r["published_us"]))
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replaced(text, rows):
    """The page's text with the table of `rows` between the markers. ValueError if the markers are not there, once and in order."""
    before, begin, rest = text.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in after:
        raise ValueError(f"docs/benchmarks.md: got no single pair of the markers {BEGIN!r} and {END!r}; put them around the table")
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = PAGE.read_text()
    made = replaced(text, json.loads(SHOWN.read_text()))
    if args.check:
        sys.exit(0 if made == text else "docs/benchmarks.md: its table is not that of benchmarks/results; run python benchmarks/report.py")
    PAGE.write_text(made)
    from roofline import plot
    for path in sorted((ROOT / "benchmarks" / "results").glob("*/block_scores.json")):
        plot(json.loads(path.read_text()), path.with_suffix(".png"))
        print(f"{path.with_suffix('.png')}; docs/benchmarks.md from {SHOWN}")


if __name__ == "__main__":
    main()
