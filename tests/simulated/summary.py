"""The table of what is recorded in results/, between two lines of README.md."""
from ptxsim import cache

README = cache.HERE / "README.md"
BEGIN, END = "<!-- made by sweep.py: begin -->", "<!-- made by sweep.py: end -->"
HEAD = ("what", "records", "schedules", "rows a schedule", "runs", "exact: bits of the reference", "and of the H200", "worst error", "reports", "wrong", "executed, at least", "minutes")


def _group(record):
    """(through, what) of a line: formats, scale layouts and widths are together."""
    words = record["label"].split(".")
    if record["through"] == "direct":
        arch, implementation, path = words[:3]
        return f"{arch} {implementation} {path}"
    return f"jax.jit on {words[0]}.{words[1]}: {words[2]}"


def lines(records):
    """Rows of the table, in the order of the records."""
    groups = {}
    for record in records:
        groups.setdefault(_group(record), []).append(record)
    for name, members in groups.items():
        every = [run for record in members for run in record["runs"].values()]
        total = lambda field: sum(run[field] for run in every)
        schedules = {schedule: sum(schedule in record["runs"] for record in members) for record in members for schedule in record["runs"]}
        rows = [run["cases"] for run in every]
        shares = {}
        for record in members:
            for run in record["runs"].values():
                for kernel, share in run["executed"].items():
                    key = record["label"], kernel
                    shares[key] = max(share, shares.get(key, 0))
        yield (name, len(members), ", ".join(s if n == len(members) else f"{s} ({n})" for s, n in schedules.items()),
               str(min(rows)) if min(rows) == max(rows) else f"{min(rows)} to {max(rows)}", f"{total('cases'):,}", f"{total('exact'):,}", f"{total('h200'):,}",
               f"{max(run['worst'] for run in every):.1e}", total("reports"), sum(len(run["wrong"]) for run in every), f"{min(shares.values()):.1%}", f"{total('seconds') / 60:.1f}")


def table(records):
    """Markdown."""
    rows = [HEAD, ("---",) * len(HEAD), *lines(records)]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def replaced(text, records):
    """`text` of the README with the table of these records."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{README.name} has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{table(records)}\n{END}{after}"
