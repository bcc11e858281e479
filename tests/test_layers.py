"""Who may import whom, what is public, and what the core needs to be installed.

The table below is the architecture. A new package or top-level module must be entered in it; a
package that does not exist (yet) is no error.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

import fedsteer

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fedsteer"

SIMULATED = {"data", "participation", "privacy", "training"}
BENCHED = {"data", "training", "simulate", "report"}

# Layer -> the layers it may import, besides itself. "fedsteer" is the package's own __init__.py.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "options": {"errors"},
    "reading": {"errors"},
    "draws": set(),
    "gpu": {"errors"},
    "privacy": {"errors", "options"},
    "steering": {"errors", "options", "gpu"},
    "rules": {"errors", "options", "draws", "steering"},
    "fedsteer": {"errors", "steering", "rules"},
    "data": {"errors", "reading", "options", "draws"},
    "participation": {"errors", "reading", "options", "draws"},
    "training": {"errors", "options", "draws", "gpu"},
    "records": {"errors", "reading", "fedsteer", "steering"},
    "simulate": {
        "errors",
        "reading",
        "options",
        "draws",
        "steering",
        "rules",
        *SIMULATED,
        "records",
    },
    "report": {"errors", "records"},
    "watch": {"errors", "records", "report"},
    "bench": {"draws", "fedsteer", "rules", *BENCHED},
    "flower": {
        "errors",
        "reading",
        "options",
        "draws",
        "steering",
        "rules",
        "records",
        "privacy",
    },
    "experiments": set(),
    "cli": {
        "errors",
        "options",
        "rules",
        "data",
        "records",
        "simulate",
        "report",
        "watch",
        "bench",
    },
    "__main__": {"cli"},
}

# Layer -> the only libraries it may import; layers not named here are free to choose.
LIBRARIES: dict[str, set[str]] = {
    "errors": set(),
    "reading": set(),
    "options": set(),
    "draws": {"numpy"},
    "privacy": {"numpy", "dp_accounting"},
    "steering": {"numpy"},
    "rules": {"numpy"},
    "records": {"numpy", "safetensors"},
    "fedsteer": set(),
}
EXCEPTIONS = {
    ("steering/kernels/torch.py", "torch"),
    ("steering/kernels/fused.py", "torch"),
    ("steering/kernels/fused.py", "triton"),
    ("steering/kernels/fused_kernel.py", "triton"),
    ("steering/kernels/vectors.py", "torch"),
    ("records/trackers.py", "torch"),
}

# Never imported at the top of a file, so that a machine with numpy and torch alone can run us.
LAZY = {"flwr", "plotly", "pooch", "psutil", "rich", "safetensors", "sklearn", "tensorboard"}
LAZY |= {"dp_accounting", "matplotlib", "ray"}
LAZY_EXCEPT = {"flower": {"flwr"}}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    layer: str
    target: str  # a layer of ours, or a library
    ours: bool
    top_level: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.layer}) imports {self.target}"


def layer_of(file: Path) -> str:
    first = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "fedsteer" if first == "__init__" else first


def layers() -> set[str]:
    return {layer_of(file) for file in SOURCE.rglob("*.py")}


def imports() -> Iterator[Import]:
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        top_level = set(at_import_time(tree))
        for node in ast.walk(tree):
            for name in imported_names(node):
                ours, target = resolve(name)
                if not ours and target in sys.stdlib_module_names:
                    continue
                path = file.relative_to(SOURCE).as_posix()
                line = node.lineno  # type: ignore[attr-defined]
                yield Import(path, line, layer_of(file), target, ours, node in top_level)


def at_import_time(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that runs when the file is imported: not in a function, not for types only."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def imported_names(node: ast.AST) -> list[str]:
    """Dotted names of what a statement imports; `from a import b` may mean a.b."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0 and node.module, "imports are absolute here"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def resolve(name: str) -> tuple[bool, str]:
    """(is it ours, layer or library)."""
    package, _, rest = name.partition(".")
    if package != "fedsteer":
        return False, package
    first = rest.partition(".")[0]
    if first == "__version__":
        return True, "errors"  # a constant, free for all
    return True, first if first in ALLOWED or first in layers() else "fedsteer"


def test_every_layer_is_in_the_table() -> None:
    assert layers() <= set(ALLOWED), "enter the new package in ALLOWED: what may it import?"


def test_the_table_has_no_circles() -> None:
    done: set[str] = set()
    while ready := {layer for layer in ALLOWED if layer not in done and ALLOWED[layer] <= done}:
        done |= ready
    assert done == set(ALLOWED)


def test_layers_import_downwards_only() -> None:
    wrong = [
        str(entry)
        for entry in imports()
        if entry.ours
        and entry.target != entry.layer
        and entry.target not in ALLOWED.get(entry.layer, set())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_allows_nothing_that_nobody_needs() -> None:
    needed = {(entry.layer, entry.target) for entry in imports() if entry.ours}
    idle = [f"{a} -> {b}" for a, below in ALLOWED.items() for b in below if (a, b) not in needed]
    assert not idle, ", ".join(idle)


def test_lower_layers_import_no_libraries_but_their_own() -> None:
    wrong = [
        str(entry)
        for entry in imports()
        if not entry.ours
        and entry.layer in LIBRARIES
        and entry.target not in LIBRARIES[entry.layer]
        and (entry.file, entry.target) not in EXCEPTIONS
    ]
    assert not wrong, "\n".join(wrong)


def test_optional_libraries_are_imported_where_they_are_used() -> None:
    wrong = [
        str(entry)
        for entry in imports()
        if entry.top_level
        and entry.target in LAZY
        and entry.target not in LAZY_EXCEPT.get(entry.layer, set())
    ]
    assert not wrong, "\n".join(wrong)


STEPS = """
import numpy as np

import fedsteer

for name in fedsteer.RULES:
    for preset in ("paper", "practical"):
        draw = np.random.default_rng(0)
        rule = fedsteer.make_rule(name, preset=preset)
        state = rule.init(dim=20, sizes=[1.0, 2.0, 3.0, 4.0, 5.0])
        model = np.zeros(20, np.float32)
        for number in range(1, 8):
            asked = rule.plan(state, number, range(5)).everyone
            updates = draw.standard_normal((len(asked), 20)).astype(np.float32)
            step = rule.step(
                state,
                fedsteer.Round(
                    number, asked, updates, [0.5] * len(asked), steps=[3] * len(asked), model=model
                ),
            )
            assert np.isfinite(step.delta).all()
            state = step.state
        assert step.delta.any(), name
"""

BLOCKED = ["torch", *sorted(LAZY), "typer", "pandas", "scipy"]

IN_A_BARE_WORLD = f"""
import sys

BLOCKED = {BLOCKED!r}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Absent())
{STEPS}
loaded = {{name.partition(".")[0] for name in sys.modules}}
assert not loaded & set(BLOCKED), loaded & set(BLOCKED)
ours = {{name.split(".")[1] for name in sys.modules if name.startswith("fedsteer.")}}
print(*sorted(ours))
"""


def test_rules_run_where_only_numpy_is() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_BARE_WORLD], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {*("errors", "options", "draws", "rules", "steering")}


def test_public_names() -> None:
    assert sorted(fedsteer.__all__) == [
        "ConfigurationError",
        "DataError",
        "Diagnostics",
        "Diverged",
        "FedsteerError",
        "RULES",
        "Requests",
        "Round",
        "RoundRefused",
        "Rule",
        "ServerOptimiser",
        "State",
        "StateError",
        "Step",
        "TrainingFailed",
        "__version__",
        "make_rule",
    ]
    assert all(hasattr(fedsteer, name) for name in fedsteer.__all__)


def test_fields_of_a_round() -> None:
    assert [field.name for field in fields(fedsteer.Round)] == [
        "number",
        "clients",
        "updates",
        "probabilities",
        "sizes",
        "steps",
        "starts",
        "model",
        "refresh",
        "given",
    ]


def test_rule_names() -> None:
    names = "fedsteer fedavg fedprox fedvarp cluster_fedvarp fedstale mifa scaffold fedawe"
    assert set(names.split()) <= set(fedsteer.RULES)
    assert all(rule.name == name for name, rule in fedsteer.RULES.items())


def test_version_is_the_same_everywhere() -> None:
    assert project()["version"] == fedsteer.__version__


def test_the_core_needs_numpy_and_safetensors_only() -> None:
    assert names_of(project()["dependencies"]) == {"numpy", "safetensors"}


def test_the_installed_core_needs_numpy_and_safetensors_only() -> None:
    try:
        needed = importlib.metadata.requires("fedsteer") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("runs from the source tree, not installed")
    assert names_of([entry for entry in needed if "extra ==" not in entry]) == {
        "numpy",
        "safetensors",
    }


@pytest.mark.slow
def test_a_plain_install_takes_a_step(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = [str(python), "-m", "pip", "install", "--retries", "0", str(copy)]
    done = subprocess.run(install, capture_output=True, text=True, check=False, cwd=tmp_path)
    if done.returncode and re.search(
        r"No matching distribution|Could not find a version|ConnectionError", done.stderr
    ):
        pytest.skip("no package index reachable")
    assert done.returncode == 0, done.stderr
    script = tmp_path / "steps.py"
    listing = """
    import importlib.metadata
    print(*(entry.name for entry in importlib.metadata.distributions()))
    """
    script.write_text(STEPS + textwrap.dedent(listing), encoding="utf-8")
    ran = subprocess.run(
        [str(python), "-I", str(script)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.split()) - {"pip", "setuptools"} == {"fedsteer", "numpy", "safetensors"}


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def names_of(requirements: object) -> set[str]:
    assert isinstance(requirements, list)
    return {re.split(r"[^A-Za-z0-9_.-]", entry, maxsplit=1)[0] for entry in requirements}
