"""The table of mutants: every fault can be put into the library as it is."""

import mutants
import pytest

pytestmark = pytest.mark.default


def test_mutants_apply_to_the_current_code():
    # `read_table` raises where the text to replace is missing or not unique.
    faults, tests = mutants.read_table()
    assert {fault.file for fault in faults} <= set(tests)
    assert all(
        (mutants.TESTS / name).is_file() for names in tests.values() for name in names
    )
