"""The browser that the tests of the explorer share."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.visualize.explorer.browser import start

    chrome = start(tmp_path_factory.mktemp("profile"))
    yield chrome
    chrome.quit()
