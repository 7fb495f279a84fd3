import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import NotLoaded, TopologyError
from headrace.topology import load_app

DECLARING = "import headrace.topology as hr\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to load from, current and forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def loaded_error(path: str, name: str | None = None) -> str:
    with pytest.raises(NotLoaded) as caught:
        load_app(path, name)
    return str(caught.value)


def test_the_one_app_of_a_file(folder: Path) -> None:
    (folder / "card_helpers.py").write_text("SCHEMA = 'id STRING'\n")
    (folder / "card_fraud.py").write_text(
        DECLARING + "from card_helpers import SCHEMA\napp = hr.App('fraud')\nsame = app\np = app.topic('p', SCHEMA)\n"
    )
    app = load_app("card_fraud.py")
    assert app.name == "fraud"
    assert (app.nodes[0].name, str(app.nodes[0].place)) == ("p", "card_fraud.py:5")
    assert sys.modules["card_fraud"].app is app
    assert load_app(folder / "card_fraud.py") is not app
    assert not list(folder.glob("__pycache__/card_fraud*"))


def test_a_file_whose_name_is_taken_or_no_name(folder: Path) -> None:
    for file in ("json.py", "my-app.py", "pytest.py"):
        (folder / file).write_text(DECLARING + f"app = hr.App('x')\nassert __name__ == 'headrace_app_{file[:-3]}'\n")
        assert load_app(file).name == "x"


def test_one_of_several_apps(folder: Path) -> None:
    (folder / "two.py").write_text(DECLARING + "a = hr.App('first')\nb = hr.App('second')\nc = hr.App('second')\n")
    assert loaded_error("two.py") == "two.py: the file declares several apps: a, b, c; choose one with --app"
    assert load_app("two.py", "a").name == load_app("two.py", "first").name == "first"
    assert load_app("two.py", "b").name == "second"
    assert loaded_error("two.py", "second") == "two.py: several apps are named 'second'; name its variable: a, b, c"
    assert loaded_error("two.py", "frist") == "two.py: the file declares no app 'frist'; did you mean 'first'?"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = 1\ndef (:\n", "bad.py:2: invalid Python: invalid syntax"),
        ("x = 1\neval('1 +')\n", "bad.py:2: invalid Python: invalid syntax"),
        ("x = '\0'\n", "bad.py: invalid Python: source code string cannot contain null bytes"),
        (
            "\nimport nowhere.at_all\n",
            "bad.py:2: no module named 'nowhere'; install what provides it, or put nowhere.py",
        ),
        (
            "from headrace.topology import Nope\n",
            "bad.py:1: the file cannot be loaded: ImportError: cannot",
        ),
        (
            "def f():\n    return 1 / 0\nf()\n",
            "bad.py:2: the file cannot be loaded: ZeroDivisionError: division",
        ),
        ("import sys\nsys.exit(3)\n", "bad.py:2: the file exits while it is loaded; call it only under"),
        (DECLARING + "hr.tumbling('soon')\n", "bad.py:2: 'soon' is not a duration; write whole numbers"),
        (
            DECLARING + "@hr.App('a').stream(keys='card')\ndef f(x): return x\n",
            "bad.py:2: the file cannot be loaded: TypeError: App.stream() got an unexpected keyword argument "
            "'keys'; did you mean 'key'?",
        ),
        (
            DECLARING + "@hr.App('a').stream('bursts', key='card')\ndef f(x): return x\n",
            "bad.py:2: 'bursts' is not a function: a node has the name of its function; write @app.stream(key=...) "
            "above `def bursts(...)`",
        ),
        (
            DECLARING + "hr.App(3)\n",
            'bad.py:2: App() takes a name, not 3; write App("shop")',
        ),
        (
            DECLARING + "hr.App('a').topic()\n",
            "bad.py:2: the file cannot be loaded: TypeError: App.topic() missing",
        ),
    ],
)
def test_a_file_that_cannot_be_loaded(folder: Path, source: str, problem: str) -> None:
    (folder / "bad.py").write_text(source)
    assert loaded_error("bad.py").startswith(problem)
    assert "bad" not in sys.modules


def test_a_file_without_an_app(folder: Path) -> None:
    (folder / "empty.py").write_text("")
    assert loaded_error("empty.py") == ('empty.py: the file declares no app; add one: app = headrace.App("name")')


def test_a_syntax_error_in_a_file_that_is_imported(folder: Path) -> None:
    (folder / "helpers.py").write_text("x = 1\ny = = 2\n")
    (folder / "fraud.py").write_text("import helpers\n")
    assert loaded_error("fraud.py") == "helpers.py:2: invalid Python: invalid syntax"


def test_files_that_are_not_there(folder: Path) -> None:
    (folder / "here").mkdir()
    assert loaded_error("here") == "here: the file is a folder; name the file that declares the app"
    assert loaded_error("gone.py") == "gone.py: the file does not exist; name the file that declares the app"


def test_an_app_with_problems_is_loaded_and_its_topology_refused(folder: Path) -> None:
    (folder / "fraud.py").write_text(
        DECLARING
        + """
app = hr.App("fraud")
payments = app.topic("payments", "id STRING", key="card")

@app.stream(key="id")
def bursts(
    paymets,
): ...
"""
    )
    with pytest.raises(TopologyError) as caught:
        load_app("fraud.py").topology()
    assert str(caught.value).splitlines() == [
        "2 problems:",
        "fraud.py:4: topic 'payments': key 'card' is not a column; known here: id",
        "fraud.py:6: stream 'bursts': unknown upstream 'paymets'; did you mean 'payments'?",
    ]


def test_an_interrupt_is_no_failure_of_the_file(folder: Path) -> None:
    (folder / "slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_app("slow.py")
    assert "slow" not in sys.modules
