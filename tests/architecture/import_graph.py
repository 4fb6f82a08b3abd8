"""Prints how the packages of a checkout import each other.

    python -m tests.architecture.import_graph [--root DIR]

Per package: its sub-packages with their modules, its top modules, levels (the longest chain of
imports), imports between sub-packages and between modules, imports against the layers that
pyproject.toml declares, and import cycles. An `__init__.py` counts as a module only if other
modules import names that it defines; imports inside functions and for type checking count.
"""

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grimp
import networkx

PACKAGES = ("eulerlora", "eulerlora_client", "service", "training")
ROOT = Path(__file__).parents[2]
Arrow = tuple[str, str]


@dataclass(frozen=True)
class PackageReport:
    """The import structure of one package.

    sub_packages: number of modules by sub-package. levels: modules on the longest chain of
    imports, a cycle counting once. upward: imports against the declared layers; None without a
    declaration.
    """

    name: str
    sub_packages: dict[str, int]
    top_modules: list[str]
    levels: int
    sub_package_levels: int
    module_arrows: list[Arrow]
    sub_package_arrows: list[Arrow]
    upward: list[Arrow] | None
    module_cycles: list[list[str]]
    sub_package_cycles: list[list[str]]


def build(root: Path, packages: Iterable[str] = PACKAGES) -> "networkx.DiGraph[str]":
    """Returns the graph of a checkout: one node per module, one edge per importing module."""
    present = [name for name in packages if (root / name / "__init__.py").is_file()]
    sys.path.insert(0, str(root))
    try:
        imports = grimp.build_graph(*present, cache_dir=None)
    finally:
        sys.path.remove(str(root))
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_nodes_from(sorted(imports.modules))
    for module in sorted(imports.modules):
        for imported in sorted(imports.find_modules_directly_imported_by(module)):
            graph.add_edge(module, imported)
    return graph


def report(graph: "networkx.DiGraph[str]", package: str, layers: list[str] | None) -> PackageReport:
    """Returns the structure of `package`; layers: its children from high to low."""
    members = graph.subgraph(m for m in graph if (m + ".").startswith(package + "."))
    folders = {parent(module) for module in members if module.count(".") > 1}
    modules = members.subgraph(
        m for m in members if m not in folders | {package} or members.in_degree(m)
    )
    groups: networkx.DiGraph[str] = networkx.DiGraph()
    groups.add_nodes_from(child(module) for module in modules if module != package)
    groups.add_edges_from(
        (child(a), child(b)) for a, b in modules.edges if child(a) != child(b) and package != b
    )
    sizes = Counter(child(m) for m in modules if m.count(".") > 1)
    return PackageReport(
        name=package,
        sub_packages=dict(sorted(sizes.items())),
        top_modules=sorted(set(groups) - set(sizes)),
        levels=levels(modules),
        sub_package_levels=levels(groups),
        module_arrows=sorted(modules.edges),
        sub_package_arrows=sorted(groups.edges),
        upward=None if layers is None else upward(groups, layers),
        module_cycles=cycles(modules),
        sub_package_cycles=cycles(groups),
    )


def parent(module: str) -> str:
    """Returns the package that contains a module."""
    return module.rpartition(".")[0]


def child(module: str) -> str:
    """Returns the sub-package or top module that a module belongs to."""
    return ".".join(module.split(".")[:2])


def levels(graph: "networkx.DiGraph[str]") -> int:
    """Returns the number of nodes on the longest path; the nodes of a cycle count as one."""
    return len(networkx.dag_longest_path(networkx.condensation(graph)))


def cycles(graph: "networkx.DiGraph[str]") -> list[list[str]]:
    """Returns the sets of nodes that import each other, directly or not."""
    components = networkx.strongly_connected_components(graph)
    return sorted(sorted(component) for component in components if len(component) > 1)


def upward(groups: "networkx.DiGraph[str]", layers: list[str]) -> list[Arrow]:
    """Returns the edges from a low layer to a higher one, or between independent ones."""
    rank = {
        name.strip(" ()"): index
        for index, layer in enumerate(layers)
        for name in layer.replace(":", "|").split("|")
    }
    independent = {layer for layer in layers if "|" in layer}
    return sorted(
        (low, high)
        for low, high in groups.edges
        if (a := rank.get(low.partition(".")[2], -1)) > (b := rank.get(high.partition(".")[2], -1))
        or (a == b and a >= 0 and layers[a] in independent)
    )


def declared_layers(root: Path) -> dict[str, list[str]]:
    """Returns the layers of each package, from high to low, that pyproject.toml declares."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    contracts = project["tool"].get("importlinter", {}).get("contracts", [])
    return {
        package: contract["layers"]
        for contract in contracts
        for package in contract.get("containers", ())
    }


def lines(package: PackageReport) -> Iterable[str]:
    """Yields the report of one package as text."""
    sizes = package.sub_packages
    modules = sum(sizes.values()) + len(package.top_modules)
    yield f"{package.name}: {modules} modules"
    listed = ", ".join(f"{name.partition('.')[2]} {count}" for name, count in sizes.items())
    yield f"  {len(sizes)} sub-packages: {listed or 'none'}"
    top = ", ".join(name.partition(".")[2] for name in package.top_modules)
    yield f"  {len(package.top_modules)} top modules: {top or 'none'}"
    yield f"  levels: {package.levels} of modules, {package.sub_package_levels} of sub-packages"
    yield f"  imports between modules: {len(package.module_arrows)}"
    yield f"  imports between sub-packages and top modules: {len(package.sub_package_arrows)}"
    if package.upward is None:
        yield "  imports against the layers: no layers are declared"
    else:
        yield f"  imports against the layers: {len(package.upward)}"
        yield from (f"    {low} -> {high}" for low, high in package.upward)
    for title, found in (
        ("modules", package.module_cycles),
        ("sub-packages", package.sub_package_cycles),
    ):
        yield f"  cycles of {title}: {len(found)}"
        yield from ("    " + ", ".join(cycle) for cycle in found)


def main() -> None:
    """Prints the report of a checkout."""
    parser = argparse.ArgumentParser(description="Print the import graph of a checkout.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: this one)")
    root = parser.parse_args().root.resolve()
    graph = build(root)
    layers = declared_layers(root)
    for package in PACKAGES:
        if package in graph:
            print("\n".join(lines(report(graph, package, layers.get(package)))))
    first = {module: module.partition(".")[0] for module in graph}
    between = Counter((first[a], first[b]) for a, b in graph.edges if first[a] != first[b])
    print("imports between packages")
    for (importer, imported), count in sorted(between.items()):
        print(f"  {importer} -> {imported}: {count}")


if __name__ == "__main__":
    main()
