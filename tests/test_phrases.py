"""The check of wording: it finds a phrase wherever it stands, and the list itself can be read."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))

import phrases

LIST = "# a comment\n\nis away | is unavailable\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "phrases.txt").write_text(LIST)
    (tmp_path / "src").mkdir()
    (tmp_path / "docs" / "concepts").mkdir(parents=True)
    return tmp_path


def found(root: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    code = phrases.main(root, root / "phrases.txt")
    lines = capsys.readouterr().out.splitlines()
    assert code == (1 if lines else 0)
    return [line.partition(': "')[0] for line in lines]


def test_a_phrase_is_found_with_file_line_and_the_wanted_wording(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "README.md").write_text("One.\nPostgreSQL Is Away.\n")
    assert phrases.main(root, root / "phrases.txt") == 1
    assert capsys.readouterr().out == 'README.md:2: "is away": write: is unavailable\n'


def test_it_is_found_over_a_line_break(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "docs" / "concepts" / "views.md").write_text("# Views\n\nWhile PostgreSQL is\naway, nodes wait.\n")
    (root / "src" / "strings.py").write_text('x = (\n    "it is "\n    f"away now"\n)\n')
    (root / "src" / "comments.py").write_text("# a server that is\n#   away\n")
    assert found(root, capsys) == ["docs/concepts/views.md:3", "src/comments.py:1", "src/strings.py:2"]


def test_other_words_and_other_files_are_left_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "src" / "fine.py").write_text("# this awayness; is_away; it is far away\n")
    (root / "src" / "schema.txt").write_text("is away\n")
    (root / "CHANGELOG.md").write_text("is away\n")
    assert found(root, capsys) == []


def test_a_line_without_the_wanted_wording_is_an_error(root: Path) -> None:
    (root / "phrases.txt").write_text("is away\n")
    with pytest.raises(ValueError, match=r"phrases.txt:1: write: phrase \| wanted"):
        phrases.read_phrases(root / "phrases.txt")


def test_the_list_of_the_repository_can_be_read() -> None:
    listed = phrases.read_phrases()
    assert len(listed) > 10
    assert len({phrase.text.casefold() for phrase in listed}) == len(listed)
