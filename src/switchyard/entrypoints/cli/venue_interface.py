"""The reference page of the interface for venue adapters, made of its own annotations and docstrings."""

import ast
import inspect
import sys
import textwrap
from typing import Final

import switchyard.venue as interface

HEAD: Final = """# The interface for venue adapters

Every name of `switchyard.venue`. [Connect your broker](../guide/connect-your-broker.md) leads through an example. The
interface is provisional until version 0.1.0. This page is the output of `switchyard venues interface`.
"""
# What an author writes, what is given to it, and what it answers; the other names follow.
SECTIONS: Final = (
    ("Declared", ("Kind", "Descriptor", "Capabilities", "OrderKinds", "IdForm", "Members", "Option", "Source")),
    ("The adapter", ("Adapter", "HasQuotes", "HasStatement", "CancelsAll")),
    ("Given to it", ("Configuration", "Wire", "NewOrder", "CancelOrder", "AmendOrder", "OrderRef")),
    ("Requests and responses", ("Request", "Response")),
    ("Its answers", ("Took", "Refused", "Unclear", "Found", "Fill", "Page", "Report", "Unreadable")),
)


def interface_page() -> str:
    """The page: each struct with its fields, each protocol with its methods, each literal with its values."""
    parts, shown = [HEAD], set[str]()
    for title, names in SECTIONS:
        parts.append(f"\n## {title}\n")
        parts += [_described(name) for name in names]
        shown.update(names)
    rest = [name for name in interface.__all__ if name not in shown]
    parts.append("\n## Other types\n")
    parts += [_described(name) for name in rest if inspect.isclass(getattr(interface, name))]
    aliases = [name for name in rest if not inspect.isclass(getattr(interface, name))]
    parts += ["\n| name | values |\n|---|---|\n", *(_alias(name) for name in aliases)]
    return "".join(parts)


def _described(name: str) -> str:
    found = getattr(interface, name)
    node = _definition(found)
    lines = [f"\n### {name}\n\n{_paragraph(ast.get_docstring(node) or '')}\n"]
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    if fields:
        lines.append("\n| field | type | default | meaning |\n|---|---|---|---|\n")
        lines += [_field(node, field) for field in fields]
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    is_protocol = any("Protocol" in ast.unparse(base) for base in node.bases)
    for method in methods if is_protocol else ():
        lines.append(f"\n- `{_signature(method)}`: {_paragraph(ast.get_docstring(method) or '')}")
    return "".join(lines) + ("\n" if is_protocol else "")


def _definition(found: type) -> ast.ClassDef:
    [node] = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(node, ast.ClassDef)
    return node


def _field(node: ast.ClassDef, field: ast.AnnAssign) -> str:
    following = node.body[node.body.index(field) + 1 :][:1]
    text = ""
    if following and isinstance(following[0], ast.Expr) and isinstance(following[0].value, ast.Constant):
        text = _paragraph(str(following[0].value.value))
    default = "" if field.value is None else f"`{_cell(ast.unparse(field.value))}`"
    return f"| `{ast.unparse(field.target)}` | `{_cell(ast.unparse(field.annotation))}` | {default} | {_cell(text)} |\n"


def _signature(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async def" if isinstance(method, ast.AsyncFunctionDef) else "def"
    if any(ast.unparse(each) == "property" for each in method.decorator_list):
        return f"{method.name}: {ast.unparse(method.returns) if method.returns else ''}"
    arguments = ast.unparse(method.args).removeprefix("self, ").removeprefix("self")
    returns = "" if method.returns is None else f" -> {ast.unparse(method.returns)}"
    return f"{word} {method.name}({arguments}){returns}"


def _alias(name: str) -> str:
    """A union, or a literal with the comments beside its values, which only the source has."""
    for module in ("switchyard.venue.interface", "switchyard.ports.venue"):
        lines = inspect.getsource(sys.modules[module]).splitlines()
        if f"{name} = Literal[" in lines:
            start = lines.index(f"{name} = Literal[") + 1
            return f"| `{name}` | {'; '.join(map(_value, lines[start : lines.index(']', start)]))} |\n"
    shown = str(getattr(interface, name)).replace("typing.", "").replace("switchyard.venue.interface.", "")
    return f"| `{name}` | `{_cell(shown.removeprefix('Literal[').removesuffix(']'))}` |\n"


def _value(line: str) -> str:
    value, _, comment = line.partition("#")
    shown = f"`{value.strip().rstrip(',')}`"
    return f"{shown}: {_cell(comment.strip())}" if comment else shown


def _paragraph(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    # GitHub splits cells at a bar even within code.
    return text.replace("|", "\\|")
