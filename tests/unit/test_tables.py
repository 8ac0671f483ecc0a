"""docs/protocol.md shows the tables of the code as they are."""

from tests.tables import BLOCKS, PROTOCOL, names, with_blocks


def test_the_specification_shows_every_table_and_each_is_current() -> None:
    text = PROTOCOL.read_text()
    assert sorted(names(text)) == sorted(BLOCKS)
    assert with_blocks(text) == text, "`make tables` makes them anew"
