"""What others rely on is as it was: names, formats and signatures are those of the kept files."""

from __future__ import annotations

import pytest

from support.contracts import goldens


@pytest.mark.parametrize("name", goldens.GOLDENS)
def test_a_contract_is_as_it_is_kept(name: str) -> None:
    found = goldens.difference(name)
    path = (goldens.FOLDER / name).relative_to(goldens.ROOT)
    assert not found, f"{path} differs:\n{found}\nIf that is intended: {goldens.COMMAND}"


def test_every_file_is_that_of_a_contract() -> None:
    assert {path.name for path in goldens.FOLDER.iterdir()} == set(goldens.GOLDENS)
