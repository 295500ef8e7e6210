"""Skips that are failures.

The environment variable QKV_REQUIRE names what this machine must have, separated by commas: "browser" (Chromium and its
driver), "compiler" (a C compiler), "data" (the datasets under QKV_DATA), "packages" (the packages of the `dev` extra).
A test that is skipped for lack of it fails, so that it cannot be skipped unnoticed.
"""

import importlib
import os
from collections.abc import Callable, Generator

import pytest

SEPARATE_DATASETS = ("fashion_mnist", "imdb", "omniglot")  # large; not in the folder of the other datasets

Node = pytest.Item | pytest.Collector


def _needs_browser(node: Node, reason: str) -> bool:
    return node.get_closest_marker("browser") is not None or "selenium" in reason


def _needs_compiler(node: Node, reason: str) -> bool:
    return "needs a C compiler" in reason


def _needs_data(node: Node, reason: str) -> bool:
    named = any(word in reason for word in ("QKV_DATA", "SHA256SUMS", "SHA-256"))
    return named and not any(name in reason for name in SEPARATE_DATASETS)


def _needs_package(node: Node, reason: str) -> bool:
    return "not installed" in reason or "needs the package" in reason


REQUIREMENTS: dict[str, Callable[[Node, str], bool]] = {
    "browser": _needs_browser,
    "compiler": _needs_compiler,
    "data": _needs_data,
    "packages": _needs_package,
}
REQUIRED = [name for name in os.environ.get("QKV_REQUIRE", "").split(",") if name]


def pytest_configure(config: pytest.Config) -> None:
    for name in REQUIRED:
        if name not in REQUIREMENTS:
            raise pytest.UsageError(f"QKV_REQUIRE: unknown requirement {name!r} (known: {', '.join(REQUIREMENTS)})")
    if "packages" in REQUIRED:
        pytest.importorskip = lambda name, *arguments, **options: importlib.import_module(name)


def _fail_if_required(node: Node, report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2]
    for name in REQUIRED:
        if REQUIREMENTS[name](node, reason):
            report.outcome = "failed"
            report.longrepr = f"{node.nodeid}: must not be skipped, since QKV_REQUIRE names {name!r} ({reason})"
            return


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_required(item, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_required(collector, report)
    return report
