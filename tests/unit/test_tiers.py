"""The short run has the tests that it lists."""

import pytest

from tests.support.process import ROOT
from tests.support.tiers import PROCESSES, PROMISES


@pytest.mark.parametrize("test", [test for tests in PROMISES.values() for test in tests])
def test_a_listed_test_exists(test: str) -> None:
    module, _, name = test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / "tests" / module).read_text()


@pytest.mark.parametrize("module", sorted(PROCESSES))
def test_a_listed_module_exists(module: str) -> None:
    assert list((ROOT / "tests").glob(f"*/{module}"))
