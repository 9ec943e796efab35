"""Words of this project's texts that a reader of English misunderstands, and what to say instead.

    python tools/plain_english.py            # findings in every text that a reader or user sees; exit status 1 if there are any

Such texts are the Markdown pages, the docstrings of public functions, and the string literals of the package (kernels left out) and of the FFI library.
The patterns are wrong wherever they stand; there is no list of exceptions.
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
NOT_OURS = {"build", "dist", "out"}
SAY = {
    r"\b(sums?|cu_\w+) (that )?(never |do(es)? not )?(falls?|falling|fell)\b|\bthat (never )?falls?\b|\bfalling cu_": "a prefix sum that decreases",
    r"\b(ask|asks|asked|asking) for\b": "requests; requires",
    r"\bby turns\b": "alternating, interleaved, round-robin",
    r"\bwiden(ed|s|ing)?\b": "dequantise, dequantised",
    r"\bpages? that do(es)? not exist\b": "page id out of range",
    r"\b(what|that) do(es)? not count\b": "padding; masked keys",
    r"\bfor ever\b": "forever",
    r"\bnobody (waits|reads|writes)\b|\blets? no one\b": "no thread",
}


def findings(text):
    """(line number, words, what to say) of each finding."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, say in SAY.items():
            for match in re.finditer(pattern, line):
                yield number, match[0], say


def markdown():
    """(path, text) of every page, code blocks and inline code blanked."""
    for path in sorted(ROOT.rglob("*.md")):
        if not any(part.startswith(".") or part in NOT_OURS for part in path.relative_to(ROOT).parts):
            text = re.sub(
                r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.S | re.M
            )
            yield path, re.sub(r"`[^`\n]*`", "", text)


def strings():
    """(path, line number, text) of the literals and public docstrings of the package, and of the literals of the library."""
    for path in sorted((ROOT / "jax_fp4_indexer").rglob("*.py")):
        if "kernels" in path.relative_to(ROOT).parts:
            continue
        tree = ast.parse(path.read_text())
        documented = [
            node
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False)
        ]
        docstrings = {id(node.body[0].value) for node in documented}
        public = {
            id(node.body[0].value)
            for node in documented
            if path.parent.name == "ops" and not getattr(node, "name", "").startswith("_")
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and (id(node) not in docstrings or id(node) in public)
            ):
                yield path, node.lineno, node.value
    for path in sorted((ROOT / "ffi").glob("*.cc")) + sorted((ROOT / "ffi" / "handlers").glob("*.cc")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for text in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
                yield path, number, text


def everything():
    """One line for each finding."""
    texts = [(path, 1, text) for path, text in markdown()] + list(strings())
    return list(
        dict.fromkeys(
            f"{path.relative_to(ROOT)}:{first + number - 1}: {words!r}: say {say}"
            for path, first, text in texts
            for number, words, say in findings(text)
        )
    )


def main():
    found = everything()
    print("\n".join(found) or "no findings")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
