"""The documentation does what it says.

Fenced blocks of README.md and docs/ are tried in the order of the page, in an empty folder of the page's own:

- `sh` and `python` blocks are run. An `output` block right after one is what it must print.
- `sh fails` is run too, and its last command must fail; the `output` block has what it says on stderr as well.
- `sh running` is a command that goes on until the page ends, and must then end well. The lines of the `output` block
  after it are waited for. Such a page has services of its own home folder, others have a broker of their own.
- `python NAME.py` and `toml NAME.toml` are files: they are laid where the blocks of the page find them. Those that
  declare an app are analysed by Spark, tests are run, settings are read.

A block that is only to be read is marked `console`, `text` or `mermaid`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from headrace.config.run import RunConfig
from headrace.topology import load_app
from tests.ending import down, end
from tests.peers import broker_for_tests

if TYPE_CHECKING:
    from headrace.testing import Environment

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\S*) *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
RUNNING = "running"
FAILS = "fails"
READY_SECONDS = 240.0
ANY_PORT = "127.0.0.1:0"


class Step(NamedTuple):
    page: Path
    language: str
    word: str
    text: str
    line: int
    output: str | None

    @property
    def where(self) -> str:
        return f"{self.page.name}, line {self.line}"

    @property
    def is_file(self) -> bool:
        return self.word.endswith((".py", ".toml"))

    @property
    def is_test(self) -> bool:
        return self.is_file and self.word.startswith("test_")

    @property
    def is_app(self) -> bool:
        return self.is_file and "App(" in self.text

    def lay(self, folder: Path) -> Path:
        path = folder / self.word
        path.write_text(self.text)
        return path


def steps(page: Path) -> Iterator[Step]:
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    for block, following in zip_longest(blocks, blocks[1:]):
        if block[1] in ("sh", "python", "toml"):
            adjoining = following is not None and not text[block.end() : following.start()].strip()
            output = following[3] if following and adjoining and following[1] == "output" else None
            yield Step(page, block[1], block[2].strip(), block[3], text.count("\n", 0, block.start()) + 1, output)


STEPS = [step for page in PAGES for step in steps(page)]
FILES = [step for step in STEPS if step.is_file]
APPS = list({step.word: step for step in FILES if step.is_app}.values())


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix(""))


def shown(step: Step) -> str:
    return f"{name_of(step.page)}:{step.word}"


class Trial:
    """A page that is being tried, in a folder of its own."""

    def __init__(self, page: Path, folder: Path, stack: ExitStack) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.logs = folder
        self.stack = stack
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.environment = {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        self.services = self.folder / ".headrace" / "services.json"
        self.is_embedded = any(step.word == RUNNING for step in steps(page))
        if self.is_embedded:
            # As if the broker had been at another port before: the usual one may be taken here.
            self.services.parent.mkdir()
            self.services.write_text(json.dumps({"broker": {"address": ANY_PORT}}))
            stack.callback(down, self.folder, self.environment)
        elif any(not step.is_file for step in steps(page)):
            settings = {"group.initial.rebalance.delay.ms": "0"}
            server = stack.enter_context(broker_for_tests(folder / "broker", settings))
            self.environment["HEADRACE_KAFKA"] = server.address

    def take(self, step: Step) -> None:
        if step.is_file:
            step.lay(self.folder)
        elif step.word == RUNNING:
            self.stack.enter_context(self._running(step))
        else:
            self._run(step)

    def _run(self, step: Step) -> None:
        shell = ["bash", "-euo", "pipefail", "-c"] if step.language == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*shell, self._text(step)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        fails = step.word == FAILS
        assert (done.returncode != 0) == fails, (
            f"{step.where} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
        if step.output is not None:
            said = done.stdout + done.stderr if fails else done.stdout
            assert said == step.output, f"{step.where} printed something else"

    @contextmanager
    def _running(self, step: Step) -> Iterator[None]:
        log = self.logs / f"line-{step.line}.log"
        with log.open("wb") as said:
            command = ["bash", "-c", f"exec {self._text(step)}"]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=said, stderr=said)
        try:
            limit = time.monotonic() + READY_SECONDS
            while not all(line in log.read_text() for line in (step.output or "").splitlines()):
                assert process.poll() is None, f"{step.where} ended:\n{log.read_text()}"
                assert time.monotonic() < limit, f"{step.where} is not ready:\n{log.read_text()}"
                time.sleep(0.1)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, f"{step.where} ended badly:\n{log.read_text()}"
        finally:
            end(process)

    def _text(self, step: Step) -> str:
        address = self.environment.get("HEADRACE_KAFKA")
        if self.is_embedded:
            address = json.loads(self.services.read_text())["broker"]["address"]
        return step.text.replace("127.0.0.1:9092", address or ANY_PORT)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not all(step.is_file for step in steps(page))],
    ids=name_of,
)
def test_the_page_runs(page: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        trial = Trial(page, tmp_path, stack)
        for step in steps(page):
            trial.take(step)


@pytest.fixture
def lay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Step], Path]]:
    """Lays the files of a step's page in a folder to import them from; nothing of them stays imported."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def lay_page(step: Step) -> Path:
        for other in steps(step.page):
            if other.is_file:
                other.lay(tmp_path)
        return tmp_path / step.word

    yield lay_page
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", APPS, ids=shown)
def test_the_app_holds_and_spark_can_run_its_functions(
    step: Step, lay: Callable[[Step], Path], headrace_environment: Environment, broker_address: str
) -> None:
    from headrace.engine.plan.planner import plan_topology

    topology = load_app(lay(step)).topology()
    config = RunConfig(kafka=broker_address, home=Path("home"))
    assert len(plan_topology(topology, headrace_environment.spark, config)) == len(topology.queries)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", [step for step in FILES if step.is_test], ids=shown)
def test_the_tests_that_are_shown_pass(step: Step, lay: Callable[[Step], Path], request: pytest.FixtureRequest) -> None:
    module = importlib.import_module(lay(step).stem)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})


@pytest.mark.parametrize("step", [step for step in STEPS if step.language == "toml"], ids=shown)
def test_the_settings_are_read(step: Step, lay: Callable[[Step], Path]) -> None:
    RunConfig.load(file=lay(step), environment={})


def test_a_file_that_is_shown_twice_is_the_same() -> None:
    texts: dict[str, str] = {}
    for step in FILES:
        assert texts.setdefault(step.word, step.text) == step.text, step.where


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []
