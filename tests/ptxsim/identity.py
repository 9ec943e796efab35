"""Digests of code that an edit of a comment, a docstring or the layout does not change."""

import ast
import hashlib
import pathlib
import re

_C_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\s+|.", re.S)
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NOT_CODE = ("type_comment", "type_ignores", "kind", "ctx")


def c_code(text):
    """The tokens of C source, one space between those that need it: comments and layout are gone."""
    kept = [" " if token.isspace() or token.startswith(("//", "/*")) else token for token in _C_TOKEN.findall(text)]
    return re.sub(r" ?(\W) ?", r"\1", re.sub(r" +", " ", "".join(kept))).strip()


def python_code(text):
    """The syntax tree of Python source as text, without docstrings and positions; the same in every version of Python that reads it."""
    return _node(ast.parse(text))


def _node(value):
    if isinstance(value, list):
        return "[" + ",".join(_node(x) for x in value) + "]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = {name: x for name, x in ast.iter_fields(value) if name not in _NOT_CODE and x is not None and x != []}
    if isinstance(value, _WITH_DOCSTRING) and ast.get_docstring(value, clean=False) is not None:
        fields["body"] = fields["body"][1:]
    return type(value).__name__ + "(" + ",".join(f"{name}={_node(x)}" for name, x in fields.items()) + ")"


def digest(files):
    """16 hex digits of the code in these C and Python files, whatever their order and folders; their names count."""
    h = hashlib.sha256()
    for file in sorted(map(pathlib.Path, files), key=lambda f: f.name):
        read = python_code if file.suffix == ".py" else c_code
        h.update(f"{file.name}\0{read(file.read_text())}\0".encode())
    return h.hexdigest()[:16]
