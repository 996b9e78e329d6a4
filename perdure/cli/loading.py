"""Finds a user's agents: ``module``, ``module:attribute``, ``app.py`` or ``app.py:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.checkpoint_bridge.errors import ConfigurationError, PerdureError

if TYPE_CHECKING:
    from types import ModuleType

    from perdure.agent import Agent

FORMS = "MODULE, MODULE:ATTRIBUTE, FILE.py or FILE.py:ATTRIBUTE"

_PACKAGE = str(Path(__file__).parents[1])
_TRACEBACK_HINT = "See the whole traceback with --traceback."


def load_agents(app: str, *, show_traceback: bool = False) -> list[Agent]:
    """Import a user's module and give the agents that are meant.

    The current directory is put first on ``sys.path``, as ``python -m`` does.

    Args:
        app: one of :data:`FORMS`; the attribute is an agent or a list of agents, and without
            one, all agents at the module's top level are meant.
        show_traceback: print the traceback of an error inside the user's code.

    Raises:
        ConfigurationError: there is no such module or attribute, or it holds no agent, or its
            code raised; ``field`` is ``app``.
    """
    source, attribute = split_app(app)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _import(source, show_traceback=show_traceback)
    found = _agents_in(module) if attribute is None else _agents_at(module, source, attribute)
    if not found:
        msg = f"{app} holds no agent."
        hint = (
            "Make one at the top level: my_agent = Agent('name', model='openai/…'); "
            "name a list of them: FILE.py:agents."
        )
        raise ConfigurationError(msg, field="app", hint=hint)
    return found


def split_app(app: str) -> tuple[str, str | None]:
    """Take APP apart into its module or file, and its attribute.

    Raises:
        ConfigurationError: it is none of :data:`FORMS`.
    """
    # From the right: a Windows path has a colon of its own.
    source, colon, attribute = app.rpartition(":")
    if not colon or (_is_path(app) and not attribute.isidentifier() and app.endswith(".py")):
        source, attribute = app, ""
    elif not all(part.isidentifier() for part in attribute.split(".")):
        msg = f"{app!r} names no agents; give {FORMS}."
        raise ConfigurationError(msg, field="app")
    if not _is_path(source) and not all(part.isidentifier() for part in source.split(".")):
        msg = f"{source!r} is no module; give {FORMS}."
        raise ConfigurationError(msg, field="app")
    return source, attribute or None


def _is_path(source: str) -> bool:
    return source.endswith(".py") or "/" in source or os.sep in source


def _import(source: str, *, show_traceback: bool) -> ModuleType:
    try:
        return _import_file(Path(source)) if _is_path(source) else importlib.import_module(source)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if not _is_path(source) and f"{source}.".startswith(f"{missing}."):
            msg = f"There is no module {source!r} in {Path.cwd()} or where Python looks."
            hint = f"Did you mean {source}.py's directory? APP is {FORMS}."
            raise ConfigurationError(msg, field="app", hint=hint) from None
        raise _broken(source, error, show_traceback=show_traceback) from error
    except ConfigurationError as error:
        if error.field == "app":
            raise
        raise _broken(source, error, show_traceback=show_traceback) from error
    except (Exception, SystemExit) as error:  # whatever the user's code does
        raise _broken(source, error, show_traceback=show_traceback) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file under its own name, with its directory on the path, as ``python FILE`` does."""
    if not path.is_file():
        msg = f"There is no file {path}."
        raise ConfigurationError(msg, field="app", hint=f"APP is {FORMS}.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        msg = f"{path} is no Python file."
        raise ConfigurationError(msg, field="app", hint=f"APP is {FORMS}.")
    module = importlib.util.module_from_spec(spec)
    # Pydantic looks up annotations of the module's classes by its name. A module of ours or of
    # the standard library that is loaded already under this name stays what it is for others.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _broken(source: str, error: BaseException, *, show_traceback: bool) -> ConfigurationError:
    """One line for an error that the user's own code raised, with its place."""
    if show_traceback:
        traceback.print_exception(error)
    text = str(error) or "no message"
    code = error.code if isinstance(error, PerdureError) else None
    kind = "" if isinstance(error, PerdureError) else f"{type(error).__name__}: "
    if isinstance(error, SyntaxError):
        place, text = f"{error.filename}:{error.lineno}", error.msg
    else:
        place = _place(error)
    if isinstance(error, SystemExit):
        text = f"it ends the program when it is imported (sys.exit({error.code!r}))"
        kind, code = "", None
    msg = f"{source} cannot be loaded: {kind}{text} ({place})"
    return ConfigurationError(msg, field="app", code=code, hint=_TRACEBACK_HINT)


def _place(error: BaseException) -> str:
    """``file:line`` of the innermost frame that is the user's own."""
    frames = traceback.extract_tb(error.__traceback__)
    libraries = (_PACKAGE, "<frozen ", sys.prefix, sys.base_prefix, importlib.__path__[0])
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    for frame in reversed(own or frames):
        return f"{frame.filename}:{frame.lineno}"
    return "unknown place"


def _agents_in(module: ModuleType) -> list[Agent]:
    from perdure.agent import Agent

    found = [value for value in vars(module).values() if isinstance(value, Agent)]
    return list({id(agent): agent for agent in found}.values())


def _agents_at(module: ModuleType, source: str, attribute: str) -> list[Agent]:
    from perdure.agent import Agent

    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = ", ".join(
                name for name, each in vars(module).items() if isinstance(each, Agent)
            )
            msg = f"{source} has no attribute {attribute!r}; its agents are: {names or 'none'}."
            raise ConfigurationError(msg, field="app")
        value = getattr(value, part)
    if isinstance(value, Agent):
        return [value]
    if isinstance(value, (list, tuple, set, frozenset)):
        wrong = [each for each in value if not isinstance(each, Agent)]
        if not wrong:
            return list(value)
        msg = f"{source}:{attribute} holds {wrong[0]!r}, which is no Agent."
        raise ConfigurationError(msg, field="app")
    msg = f"{source}:{attribute} is no Agent and no list of them, but a {type(value).__name__}."
    raise ConfigurationError(msg, field="app")
