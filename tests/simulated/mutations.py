"""Changes of single instructions (ptxsim/mutate.py), tried on rows of the case table and on launches alone: what notices them, and what is recorded of it.

bench = Bench(variant)
for verdict in bench.verdicts(0, mutate.chosen(bench.compiled[0], bench.executed[0], mutate.KINDS, sample=80, seed=1)): print(verdict)
"""

import dataclasses
import functools
import json
import pathlib
import re
import time

from ptxsim import cache, kernels, mutate

from . import prepass_pages, prepass_plan, prepass_precision, selection

RECORDS = cache.HERE.parent / "evidence" / "mutations.json"
CASES = "k_lengths_causal-,ragged_1-,page_id_bad_prefill,sim_many_pages-,sim_bad_pages_one,sim_skewed,sim_wide_long,sim_passes-,sim_wide_passes,sim_many_sequences_600,sim_forms_many,forms_some_queries,sim_many_tiles,sim_negative"
SCHEDULES = ("eager", "lazy", "random:1")


def _key(what, at):
    """Names a change of a text: the line of the kernel's source, which comments move, is not part of it."""
    return what, re.sub(r" \([^ ]+\.py:\d+\)$", "", at)


def again(variant, match, records):
    """Try the survivors of `records`, but those judged to make no difference, on other rows; what is noticed now counts so. Returns the records of the
    variant whose kernels have the text that they had."""
    bench, done = Bench(variant, match), []
    for index, kernel in enumerate(bench.compiled):
        for record in (
            r
            for r in records
            if (r["variant"], r["kernel"], r["text"])
            == (selection.label(variant), kernel.name, mutate.text_stamp(kernel))
        ):
            survivors = {_key(s["change"], s["at"]): s for s in record["survivors"] if not s.get("equivalent")}
            noticed = {}  # an asm block of equal lines has several changes of one key: all of them have to be noticed
            for v in bench.verdicts(
                index, [c for c in mutate.changes(kernel.program) if _key(c.what, kernel.program.at(c.pc)) in survivors]
            ):
                print(v, flush=True)
                key = _key(v.change.what, v.at)
                noticed[key] = noticed.get(key, v.change.kind) and bool(v.noticed) and v.change.kind
            for key, kind in noticed.items():
                if kind:
                    record["survivors"].remove(survivors[key])
                    record["kinds"][kind][1] += 1
                    record["noticed"] += 1
            record["rows"] += [name for name in bench.rows if name not in record["rows"]]
            record["alone"] = bench.alone(index)
            done.append(record)
    return done


def load(path):
    path = pathlib.Path(path)
    return json.loads(path.read_text()) if path.exists() else []


def save(path, records):
    """Put the records of `report` into the JSON file, in place of those of the same kernels. What a reader has written of a survivor stays, if it survives again:
    "why", and "equivalent": whether the change makes no difference that any check could see."""
    kept = {(r["variant"], r["kernel"]): r for r in load(path)}
    for record in records:
        key = record["variant"], record["kernel"]
        judged = {_key(s["change"], s["at"]): s for s in kept.get(key, {}).get("survivors", ())}
        record["survivors"] = [judged.get(_key(s["change"], s["at"]), s) for s in record["survivors"]]
        kept[key] = record
    pathlib.Path(path).parent.mkdir(exist_ok=True)
    pathlib.Path(path).write_text(json.dumps([kept[key] for key in sorted(kept)], indent=1) + "\n")


@dataclasses.dataclass
class Trial:
    """What a change is tried on. run(compiled, schedule, **how): (warp instructions, problems); ran: executions of each instruction of each launch; alone: of one launch."""

    name: str
    run: object
    alone: bool
    insts: int = 0
    ran: list = None


class Bench:
    """A variant and what its changes are tried on: rows of the case table, and where a launch has them its problems alone. All is right before any change.

    executed    for each launch, how often each instruction runs in all trials
    """

    def __init__(self, variant, match=CASES, schedules=SCHEDULES):
        self.variant, self.schedules, self.compiled = variant, schedules, kernels.load(variant.launches)
        self.trials = [
            Trial(case.name, functools.partial(self._row, case), False) for case in selection.rows(variant, match=match)
        ]
        for index, kernel in enumerate(self.compiled):
            self.trials += [
                Trial(problem.name, functools.partial(self._alone, problem, index), True)
                for module in (prepass_precision, prepass_pages, prepass_plan)
                for problem in module.problems(kernel)
            ]
        for trial in self.trials:
            before = [k.hits.copy() for k in self.compiled]
            for schedule in schedules:
                insts, problems = trial.run(self.compiled, schedule)
                if problems:
                    raise AssertionError(f"{trial.name} {schedule}: wrong before any change: {problems[0]}")
                trial.insts = max(trial.insts, insts)
            trial.ran = [k.hits - b for k, b in zip(self.compiled, before)]
        self.trials.sort(key=lambda trial: trial.insts)
        self.executed = [sum(trial.ran[i] for trial in self.trials) for i in range(len(self.compiled))]

    def _row(self, case, compiled, schedule, **how):
        outcome, problems = selection.run(compiled, self.variant, case, schedule, **how)
        return outcome.insts if outcome else 0, problems

    def _alone(self, problem, index, compiled, schedule, **how):
        return problem.run(compiled[index], schedule, **how)

    @property
    def rows(self):
        return [trial.name for trial in self.trials if not trial.alone]

    def alone(self, index):
        """How many problems launch `index` has alone."""
        return sum(trial.alone and bool(trial.ran[index].any()) for trial in self.trials)

    def judge(self, index, change):
        """What notices the change of launch `index`, or ""."""
        mutant = mutate.changed(self.compiled[index], change)
        with_it = [*self.compiled[:index], mutant, *self.compiled[index + 1 :]]
        touched = [trial for trial in self.trials if trial.ran[index][change.pc]]  # in others nothing differs
        # All that a launch writes is compared when it runs alone: rows are for what no problem of its own executes.
        for trial in [trial for trial in touched if trial.alone] or touched:
            for schedule in self.schedules:
                _, problems = trial.run(with_it, schedule, max_insts=3 * trial.insts + 100000)
                if problems:
                    return f"{schedule} {trial.name}: {problems[0].splitlines()[0][:140]}"
        return ""

    def verdicts(self, index, picked):
        for change in picked:
            kernel = self.compiled[index]
            yield mutate.Verdict(kernel.name, change, kernel.program.at(change.pc), self.judge(index, change))


def report(variant, kinds=mutate.KINDS, *, match=CASES, launches=None, sample=0, seed=0, show_all=False):
    """Print the verdicts and a count a kernel. Returns [record of each kernel]: its text, counts by kind, the survivors.

    launches    numbers of those to change; default: all
    """
    start, bench, records = time.time(), Bench(variant, match), []
    for trial in bench.trials:
        print(f"  {trial.name}{' (one launch alone)' * trial.alone}: {trial.insts} warp instructions", flush=True)
    for index, kernel in enumerate(bench.compiled):
        if launches is not None and index not in launches:
            continue
        counts, survivors = {}, []
        picked = mutate.chosen(kernel, bench.executed[index], kinds, sample, seed)
        for v in bench.verdicts(index, picked):
            count = counts.setdefault(v.change.kind, [0, 0])
            count[0], count[1] = count[0] + 1, count[1] + bool(v.noticed)
            if not v.noticed:
                survivors.append({"change": v.change.what, "at": v.at})
            if show_all or not v.noticed:
                print(v, flush=True)
        total, noticed = (sum(c[i] for c in counts.values()) for i in (0, 1))
        share = (bench.executed[index] > 0).mean()
        print(
            f"{kernel.name}: {noticed} of {total} noticed, {share:.1%} of the instructions executed; "
            + ", ".join(f"{k} {c[1]}/{c[0]}" for k, c in counts.items())
            + f"; {time.time() - start:.0f} s",
            flush=True,
        )
        records.append(
            {
                "variant": selection.label(variant),
                "launch": index,
                "kernel": kernel.name,
                "text": mutate.text_stamp(kernel),
                "seed": seed,
                "mutants": total,
                "noticed": noticed,
                "kinds": counts,
                "rows": bench.rows,
                "alone": bench.alone(index),
                "survivors": survivors,
            }
        )
    return records
