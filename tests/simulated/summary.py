"""The tables of README.md: what the ledger holds, and the changes of single instructions, each between two lines of it."""

import pathlib

from . import mutations

README = pathlib.Path(__file__).parent / "README.md"
LEDGER, MUTATIONS = "ledger", "mutations"
LEDGER_HEAD = (
    "what",
    "lines",
    "schedules",
    "rows a schedule",
    "runs",
    "exact: bits of the reference",
    "and of the H200",
    "worst error",
    "reports",
    "wrong",
    "executed, at least",
    "simulator",
    "minutes",
)
MUTATIONS_HEAD = (
    "kernel",
    "changes",
    "noticed",
    "noticed of all",
    "declared to make no difference",
    "left",
    "reasons of those left",
)


def _group(name):
    """What of a line: formats, scale layouts and widths are together."""
    through, _, label = name.partition("/")
    words = label.split(".")
    return " ".join(words[:3]) if through == "direct" else f"jax.jit on {words[0]}.{words[1]}: {words[2]}"


def ledger_rows(lines):
    """Rows of the table of {name: line of the ledger}, in order."""
    groups = {}
    for name in sorted(lines):
        groups.setdefault(_group(name), []).append(lines[name])
    for name, members in groups.items():
        runs = lambda field: sum(m[field] * len(m["schedules"]) for m in members)
        total = lambda field: sum(m[field] for m in members)
        schedules = {s: sum(s in m["schedules"] for m in members) for m in members for s in m["schedules"]}
        rows = [m["cases"] for m in members]
        share = min(k["executed"] for m in members for k in m["kernels"].values())
        yield (
            name,
            len(members),
            ", ".join(s if n == len(members) else f"{s} ({n})" for s, n in schedules.items()),
            str(min(rows)) if min(rows) == max(rows) else f"{min(rows)} to {max(rows)}",
            f"{runs('cases'):,}",
            f"{runs('exact'):,}",
            f"{runs('card'):,}",
            f"{max(m['worst'] for m in members):.1e}",
            total("reports"),
            sum(len(m["wrong"]) for m in members),
            f"{share:.1%}",
            ", ".join(f"`{s}`" for s in sorted({m["simulator"] for m in members})),
            f"{total('seconds') / 60:.1f}",
        )


def mutation_rows(records):
    """Rows of the table of mutations.json: what was noticed of all changes, and of the rest what was declared to make no difference and what is left."""
    counted = [0, 0, 0]
    for r in records:
        equivalent, left = (sum(bool(s.get("equivalent")) == same for s in r["survivors"]) for same in (True, False))
        counted = [a + b for a, b in zip(counted, (r["mutants"], r["noticed"], equivalent))]
        why = "; ".join(sorted({s.get("why", "") for s in r["survivors"] if not s.get("equivalent")}))
        yield (
            f"{r['variant']}: {r['kernel']}",
            r["mutants"],
            r["noticed"],
            f"{r['noticed'] / r['mutants']:.0%}",
            equivalent,
            left,
            why,
        )
    if records:
        yield (
            "all",
            f"{counted[0]:,}",
            f"{counted[1]:,}",
            f"{counted[1] / counted[0]:.0%}",
            counted[2],
            counted[0] - counted[1] - counted[2],
            "",
        )


def _table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ("---",) * len(head), *rows])


def _between(text, which, table):
    begin, end = f"<!-- made by sweep.py, {which}: begin -->", f"<!-- made by sweep.py, {which}: end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{README.name} has no lines {begin!r} and {end!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def replaced(text, lines, records=None):
    """`text` of the README with the tables of these lines and records of changes."""
    text = _between(text, LEDGER, _table(LEDGER_HEAD, ledger_rows(lines)))
    return _between(
        text,
        MUTATIONS,
        _table(MUTATIONS_HEAD, mutation_rows(mutations.load(mutations.RECORDS) if records is None else records)),
    )
