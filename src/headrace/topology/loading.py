"""From a file to the app it declares."""

import importlib.util
import inspect
import re
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from headrace.errors import Error, InputError, NotLoaded, Problem, TopologyError
from headrace.topology.app import App
from headrace.topology.nearest import did_you_mean
from headrace.topology.place import Place

__all__ = ["load_app"]

NO_SESSION = ("SESSION_OR_CONTEXT_NOT_EXISTS", "NO_ACTIVE_OR_DEFAULT_SESSION")
"""What PySpark calls it where it wants a session and there is none."""
MISNAMED = re.compile(r"App\.(\w+)\(\) got an unexpected keyword argument '(\w+)'")


def load_app(path: str | Path, name: str | None = None) -> App:
    """Run the file and return its app; with several, the one whose variable or own name is `name`.

    The file runs as `python file.py` would, with its folder first on the path, but not as `__main__`.
    """
    file = Path(path).absolute()
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise _not_loaded(Place(str(file), 0), f"the file {what}", "name the file that declares the app")
    module = _run(file)
    apps = {variable: value for variable, value in vars(module).items() if isinstance(value, App)}
    chosen = _chosen(apps, name, Place(str(file), 0))
    chosen.file = str(file)
    return chosen


class _FreshLoader(SourceFileLoader):
    """Compiles the file as it stands now, and leaves nothing compiled in the user's folder."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(file: Path) -> ModuleType:
    module_name = _module_name(file)
    loader = _FreshLoader(module_name, str(file))
    spec = importlib.util.spec_from_file_location(module_name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    before = sys.modules.get(module_name)
    sys.modules[module_name] = module
    try:
        loader.exec_module(module)
    except BaseException as error:
        if before is None:
            del sys.modules[module_name]
        else:
            sys.modules[module_name] = before
        if isinstance(error, Exception | SystemExit):
            raise _failure(error, file) from error
        raise
    return module


def _module_name(file: Path) -> str:
    """The name other files import it by, unless that name is taken or cannot be imported."""
    known = sys.modules.get(file.stem)
    is_free = known is None or getattr(known, "__file__", None) == str(file)
    if file.stem.isidentifier() and is_free and file.stem not in sys.stdlib_module_names:
        return file.stem
    return f"headrace_app_{file.stem}"


def _failure(error: Exception | SystemExit, file: Path) -> Error:
    place = _last_line_in(error, file)
    if isinstance(error, SyntaxError):
        if error.filename is not None and Path(error.filename).is_file():
            place = Place(error.filename, error.lineno or 0)
        return _not_loaded(place, f"invalid Python: {error.msg}", None)
    match error:
        case TopologyError():
            return error
        case InputError():
            return _not_loaded(place, error.problem, error.next_step)
        case ModuleNotFoundError() if error.name:
            step = f"install what provides it, or put {error.name.partition('.')[0]}.py beside the file"
            return _not_loaded(place, f"no module named {error.name!r}", step)
        case SystemExit():
            step = 'call it only under `if __name__ == "__main__":` '
            return _not_loaded(place, "the file exits while it is loaded", step)
        case _:
            said = traceback.format_exception_only(error)[-1].strip().rstrip(".")
            return _not_loaded(place, f"the file cannot be loaded: {said}", _advice_on(error))


def _advice_on(error: BaseException) -> str | None:
    if misnamed := MISNAMED.fullmatch(str(error)):
        return did_you_mean(misnamed[2], inspect.signature(getattr(App, misnamed[1])).parameters)
    if not _wants_spark(error):
        return None
    return (
        "Spark does not run yet while a file is loaded: give a UDF its type as a class, such as IntegerType(), "
        "or do this inside the function"
    )


def _wants_spark(error: BaseException) -> bool:
    if isinstance(error, AssertionError):
        # All that PySpark says of F.col("x") or F.lit(1) without a session.
        return "pyspark" in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts
    condition = getattr(error, "getCondition", None)
    return condition is not None and condition() in NO_SESSION


def _last_line_in(error: BaseException, file: Path) -> Place:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno or 0 for frame in frames if frame.filename == str(file)]
    return Place(str(file), lines[-1] if lines else 0)


def _chosen(apps: dict[str, App], name: str | None, place: Place) -> App:
    variables = ", ".join(apps)
    distinct = list({id(app): app for app in apps.values()}.values())
    if not distinct:
        raise _not_loaded(place, "the file declares no app", 'add one: app = headrace.App("name")')
    if name is None:
        if len(distinct) > 1:
            raise _not_loaded(place, f"the file declares several apps: {variables}", "choose one with --app")
        return distinct[0]
    if name in apps:
        return apps[name]
    named = [app for app in distinct if app.name == name]
    if len(named) > 1:
        raise _not_loaded(place, f"several apps are named {name!r}", f"name its variable: {variables}")
    if not named:
        known = dict.fromkeys([*apps, *(app.name for app in distinct)])
        raise _not_loaded(place, f"the file declares no app {name!r}", did_you_mean(name, known))
    return named[0]


def _not_loaded(place: Place, message: str, next_step: str | None) -> NotLoaded:
    return NotLoaded([Problem(message, place.shown_file, place.line, next_step)])
