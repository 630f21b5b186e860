"""Rules about the source tree itself. Layers, types and style have their own tools, which `tests/run` calls."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from mcp_sandbox.core import errors

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "mcp_sandbox"
LINES: Final = 400
MODULES: Final = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
SDKS: Final = {"docker", "e2b", "e2b_code_interpreter", "modal", "daytona", "kubernetes", "microsandbox", "opensandbox"}
HEAVY: Final = SDKS | {"mcp", "mcp_types", "pydantic", "starlette", "uvicorn", "httpx"}


def relative(path: Path) -> str:
    """Return a path as it is shown when it breaks a rule."""
    return str(path.relative_to(ROOT))


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that are there after a statement ran in a new interpreter."""
    code = f"{statement}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(shown.stdout.splitlines()[-1].split())


def test_no_source_file_has_more_than_400_lines() -> None:
    sources = [p for top in (PACKAGE, ROOT / "tests") for p in top.rglob("*") if p.suffix in {".py", ".c", ".h", ".sh"}]
    sources += [ROOT / "tests" / "run", ROOT / "tests" / "install", ROOT / ".ci" / "run"]
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in sources}
    assert {path: length for path, length in lengths.items() if length > LINES} == {}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_says_what_it_is_and_what_it_exports(path: Path) -> None:
    """A docstring, and an `__all__` that lists exactly the public classes and functions it defines."""
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree), "no docstring"
    defined = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    }
    bound = set(defined)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
        bound |= {name.id for target in targets(node) for name in ast.walk(target) if isinstance(name, ast.Name)}
    exported = exports(tree)
    assert exported is not None, "no __all__"
    assert set(exported) - bound == set(), "exported, but not defined"
    assert defined - set(exported) == set(), "defined and public, but not exported"


def targets(node: ast.stmt) -> list[ast.expr]:
    """Return what a top-level statement assigns to."""
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def exports(tree: ast.Module) -> list[str] | None:
    """Return the value of `__all__`, if there is one."""
    for node in tree.body:
        named = any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets(node))
        if named and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return ast.literal_eval(node.value)
    return None


def test_every_error_class_is_in_the_tree_that_documents_them() -> None:
    documented = (errors.__doc__ or "").split()
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert classes == set(errors.__all__)
    assert {name for name in classes if name not in documented} == set()


def test_every_error_has_a_code_of_its_own() -> None:
    classes = [getattr(errors, name) for name in errors.__all__]
    codes = [error.code for error in classes]
    assert len(set(codes)) == len(codes)


def test_importing_the_package_loads_nothing_else() -> None:
    assert loaded_by("import mcp_sandbox") & (HEAVY | {"anyio", "asyncio"}) == set()


def test_listing_providers_loads_neither_an_sdk_nor_mcp_nor_pydantic() -> None:
    statement = "from mcp_sandbox.providers import registry; assert {'local', 'memory'} <= set(registry.known())"
    assert loaded_by(statement) & HEAVY == set()


@pytest.mark.parametrize("module", ["core.provider", "service.services", "wrappers.limited", "policy.guard"])
def test_the_inner_layers_load_neither_an_sdk_nor_mcp_nor_pydantic(module: str) -> None:
    assert loaded_by(f"import mcp_sandbox.{module}") & HEAVY == set()


def test_the_application_loads_no_provider_sdk() -> None:
    assert loaded_by("import mcp_sandbox.app") & SDKS == set()


def test_who_has_no_manifest_waits_neither_for_pydantic_nor_for_yaml() -> None:
    arranged = "arrange('/', '', '', None, Start(), None)"
    statement = f"from mcp_sandbox.app import arrange; from mcp_sandbox.settings.starting import Start; {arranged}"
    assert loaded_by(statement) & (HEAVY | {"yaml"}) == set()


def test_every_module_can_be_imported_first() -> None:
    """No module needs another one to have been imported before it: there are no cycles to fall into."""
    for path in MODULES:
        name = relative(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        if name.endswith("__main__") or name == "mcp_sandbox.guest.build":  # runs the program; needs the build backend
            continue
        importlib.import_module(name)
