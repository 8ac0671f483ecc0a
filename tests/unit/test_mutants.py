"""The list of mutants fits the code: each can be planted, and its tests are there."""

from __future__ import annotations

import pytest
from tests.proof.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_mutant_can_be_planted_and_is_python(mutant: Mutant) -> None:
    compile(mutant.mutated, mutant.file, "exec")
    assert (ROOT / mutant.tests.split()[0]).is_file()


def test_no_two_mutants_have_one_name() -> None:
    names = [one.name for one in MUTANTS]
    assert len(names) == len(set(names))
