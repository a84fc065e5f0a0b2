"""The house rules that a machine can check: who imports whom, what is never called, how large things may grow."""

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sinkscope

SOURCE = Path(sinkscope.__file__).parent
ORDER = (
    "workers",
    "families",
    "attention",
    "decoding",
    "trace",
    "sinks",
    "interventions",
    "compression",
    "language",
    "grids",
    "evaluation",
    "training",
    "selection",
    "experiments",
    "lab",
    "report",
    "cli",
)
EVERYWHERE = {"addresses", "discovery", "errors", "files", "intervals", "ordering", "records", "seeds", "versions"}
MODULES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
NAMED = {str(path.relative_to(SOURCE)): path for path in MODULES}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of everything imported anywhere in a module, `from package import name` as package.name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folder_of(path: Path) -> str | None:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else None


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def of_kind(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    return ((path, node) for path, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, kinds))


def test_the_walk_sees_the_whole_house() -> None:
    folders = {folder_of(path) for path in MODULES} - {None}
    assert len(MODULES) > 60
    assert folders <= set(ORDER), f"{folders - set(ORDER)} has no place in the order of imports"


def wrong_imports(path: Path) -> Iterator[str]:
    """What a module may not import."""
    folder = folder_of(path)
    for name in imported(TREES[path]):
        parts = name.split(".")
        if parts[0] != "sinkscope" or len(parts) == 1:
            continue
        if parts[1] == "cli" and folder != "cli":
            yield f"{name}, and nobody imports cli"
        if folder is not None and parts[1] not in EVERYWHERE:
            if parts[1] not in ORDER:
                yield f"{name}, which is not a folder of the house"
            elif ORDER.index(parts[1]) > ORDER.index(folder):
                yield f"{name} upwards"


def test_imports_run_one_way() -> None:
    assert {name: wrong for name, path in NAMED.items() if (wrong := [*wrong_imports(path)])} == {}


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Not inside functions or for type checkers either."""
    names = {module_of(path): path for path in MODULES if folder_of(path) is not None}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        wanted = {one if one in names else one.rpartition(".")[0] for one in imported(TREES[path])}
        graph[name] = wanted & names.keys()
    assert len(graph) > 60
    assert sum(map(len, graph.values())) > 300
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' <- '.join(error.args[1])}")


def dangers(path: Path) -> Iterator[str]:
    """What a module does that could run code from elsewhere."""
    names = {name.split(".")[0] for name in imported(TREES[path])}
    yield from names & {"dill", "joblib", "cloudpickle", "shelve", "marshal"}
    for function, call in calls(TREES[path]):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        if function.startswith("pickle.") or function in ("eval", "exec", "compile"):
            yield function
        if "allow_pickle" in given or _is_other("False", given.get("trust_remote_code", ast.Constant(False))):
            yield ast.unparse(call)
        if function in ("torch.load", "load") and "torch" in names:
            if folder_of(path) != "families":
                yield f"{function} outside families"
            if _is_other("True", given.get("weights_only", ast.Constant(None))):
                yield ast.unparse(call)
    text = path.read_text(encoding="utf-8")
    if text.count("trust_remote_code") != text.count("trust_remote_code=False"):
        yield "trust_remote_code"


def _is_other(wanted: str, value: ast.expr) -> bool:
    return ast.unparse(value) != wanted


def test_nothing_remote_or_pickled_is_run() -> None:
    assert {name: found for name, path in NAMED.items() if (found := [*dangers(path)])} == {}


def test_modules_are_small_documented_and_named_for_what_they_do() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in NAMED.items()}
    assert {name: count for name, count in lines.items() if count >= 400} == {}
    assert [name for name, path in NAMED.items() if not ast.get_docstring(TREES[path])] == []
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert [path for path in MODULES if {part.removesuffix(".py") for part in path.parts} & vague] == []


def test_functions_and_classes_are_small() -> None:
    long = {
        f"{path.name}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path, node in of_kind(ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, Function)
    }
    assert len(long) > 200
    assert {name: lines for name, lines in long.items() if lines >= 60} == {}
    methods = {
        f"{path.name}:{node.name}": sum(isinstance(one, Function) and not _special(one.name) for one in node.body)
        for path, node in of_kind(ast.ClassDef)
        if isinstance(node, ast.ClassDef)
    }
    assert len(methods) > 60
    assert {name: count for name, count in methods.items() if count > 10} == {}


def test_no_two_public_classes_have_one_name() -> None:
    """A protocol and its room's own word apart, a name says one thing in the whole house."""
    found: dict[str, list[str]] = {}
    for path, node in of_kind(ast.ClassDef):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert len(found) > 200
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_file_merely_registers() -> None:
    """A register stands with what it holds: a file that makes one also defines something that is filed in it."""
    for path, tree in TREES.items():
        made = [call for name, call in calls(tree) if name.startswith(("Register", "Names"))]
        if made and path.name != "discovery.py":
            defined = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
            assert defined, f"{path} makes a register and defines nothing"


def _special(name: str) -> bool:
    """Methods that Python or a notebook calls."""
    return name.startswith("__") or name == "_repr_html_"


def test_no_error_is_caught_blindly() -> None:
    """But in `refusing`, the guard around other libraries."""
    blind = [
        f"{path.name}:{node.lineno}"
        for path, node in of_kind(ast.ExceptHandler)
        if isinstance(node, ast.ExceptHandler)
        and path != SOURCE / "errors.py"  # `refusing` is the one place that may
        and (node.type is None or ast.unparse(node.type) == "Exception" or _swallows_all(node))
    ]
    assert blind == []


def _swallows_all(handler: ast.ExceptHandler) -> bool:
    """BaseException may be caught to tidy up, if it is raised again."""
    assert handler.type is not None
    last = handler.body[-1]
    return ast.unparse(handler.type) == "BaseException" and not (isinstance(last, ast.Raise) and last.exc is None)


def test_public_names_are_there_sorted_and_documented() -> None:
    assert sorted(sinkscope.__all__) == sinkscope.__all__
    assert len(set(sinkscope.__all__)) == len(sinkscope.__all__)
    for name in sinkscope.__all__:
        thing = getattr(sinkscope, name)
        text = thing.__doc__ or ""
        assert text.strip(), f"sinkscope.{name} has no docstring"
        # A dataclass without one is given its signature.
        assert not text.startswith(f"{name}("), f"sinkscope.{name} has no docstring"
        assert thing.__module__.startswith("sinkscope.")


def test_public_functions_are_annotated() -> None:
    functions = [getattr(sinkscope, name) for name in sinkscope.__all__]
    checked = [function for function in functions if inspect.isfunction(function)]
    assert len(checked) > 10
    for function in checked:
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((SOURCE.parent.parent / "pyproject.toml").read_text())["project"]
    extras = ("gguf", "train", "eval", "vision", "channel", "page", "ray", "cloud", "parquet")
    declared = [
        *project["dependencies"],
        *(text for extra in extras for text in project["optional-dependencies"][extra]),
    ]
    called = {"pillow": "PIL", "scikit_learn": "sklearn", "sionna_no_rt": "sionna"}
    packages = {re.split("[>=[]", text)[0].strip().replace("-", "_") for text in declared}
    names = {called.get(package, package) for package in packages}
    # Packages that torch, transformers and datasets themselves need and hand on.
    handed_on = {"huggingface_hub", "tokenizers", "triton", "yaml"}
    used = {name.split(".")[0] for tree in TREES.values() for name in imported(tree)}
    assert used - set(sys.stdlib_module_names) - names - handed_on - {"sinkscope"} == set()
