"""Makes the site's reference pages from the program itself, so that none can be out of date."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import mkdocs_gen_files
import typer
from typer.cli import get_docs_for_click

from perdure.checkpoint_bridge import errors
from perdure.checkpoint_bridge.log import events
from perdure.cli.main import __doc__ as exit_codes, app

_API = {
    "Agents and tools": [
        "perdure.agent.Agent",
        "perdure.tools.tool",
        "perdure.tools.ToolContext",
        "perdure.options",
        "perdure.history_options",
        "perdure.activities.turn_context",
    ],
    "The client": [
        "perdure.client.connect",
        "perdure.client.Client",
        "perdure.client_approvals.ClientApprovals",
        "perdure.run_handle.RunHandle",
        "perdure.results",
    ],
    "Sessions": [
        "perdure.sessions.directory.Sessions",
        "perdure.sessions.reading.Reading",
        "perdure.sessions.turns.Turns",
        "perdure.sessions.history.History",
        "perdure.sessions.lifecycle.Lifecycle",
    ],
    "Workers": ["perdure.worker.serving", "perdure.worker.run_worker", "perdure.plugin"],
    "Checkpoints, forks and stores": [
        "perdure.checkpoint_bridge.format.fork.ForkPatch",
        "perdure.checkpoint_bridge.format.trajectory",
        "perdure.checkpoint_bridge.stores.store",
        "perdure.checkpoint_bridge.stores.sql_store.SqlStore",
    ],
    "Tests": ["perdure.testing"],
}


def _api() -> str:
    lines = ["# Python API\n"]
    for title, names in _API.items():
        lines.append(f"\n## {title}\n")
        lines += [f"\n::: {name}\n" for name in names if _is_there(name)]
    return "".join(lines)


def _is_there(name: str) -> bool:
    root = Path(inspect.getfile(errors)).resolve().parents[2]
    path = name.replace("perdure.checkpoint_bridge", "checkpoint_bridge").split(".")
    return any(root.joinpath(*path[:end]).with_suffix(".py").exists() for end in (len(path), -1))


def _commands() -> tuple[str, str]:
    """The pages of the commands and of the environment variables that they read."""
    group: Any = typer.main.get_command(app)
    context = group.make_context("perdure", [], resilient_parsing=True)
    text = get_docs_for_click(obj=group, ctx=context, name="perdure", title="Command line")
    table = re.search(r"====  =+\n(.*)\n====", exit_codes or "", re.DOTALL)
    assert table
    text += f"\n## Exit codes\n\n```text\n{table[0]}\n```\n"
    variables: dict[str, tuple[str, set[str]]] = {}
    for name, command in group.commands.items():
        for parameter in command.params:
            help_ = str(getattr(parameter, "help", "") or "").replace("\n", " ")
            for variable in _variables(parameter):
                variables.setdefault(variable, (help_, set()))[1].add(f"`{name}`")
    page = ["# Environment variables\n\n| variable | meaning | read by |\n| --- | --- | --- |\n"]
    page += [
        f"| `{variable}` | {help_} | {', '.join(sorted(names))} |\n"
        for variable, (help_, names) in sorted(variables.items())
    ]
    page.append(
        "\nTemporal's address, namespace, TLS and API keys come from temporalio's own "
        "[environment configuration]"
        "(https://docs.temporal.io/develop/environment-configuration): `TEMPORAL_ADDRESS`, "
        "`TEMPORAL_NAMESPACE`, `TEMPORAL_API_KEY`, `TEMPORAL_PROFILE` and the others. "
        "The providers read `OPENAI_API_KEY`, `OPENAI_BASE_URL`, `ANTHROPIC_API_KEY` and "
        "`ANTHROPIC_BASE_URL`.\n"
    )
    return text, "".join(page)


def _variables(parameter: Any) -> list[str]:
    found = parameter.envvar
    return [found] if isinstance(found, str) else list(found or ())


def _errors() -> str:
    lines = [
        (
            "# Errors\n\nEvery error of perdure is a `PerdureError` with a code; the command line "
            "prints it in brackets. Codes that begin with `LOUSHO_` are those of the documented "
            "format.\n\n| error | code | when |\n| --- | --- | --- |\n"
        )
    ]
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.PerdureError):
            said = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ")
            lines.append(f"| `{name}` | `{found.code}` | {said} |\n")
    return "".join(lines)


def _events() -> str:
    """The vocabulary, with what stands under each name in the module."""
    lines = ["# Events\n\nThe vocabulary of the log.\n\n| event | meaning |\n| --- | --- |\n"]
    body = ast.parse(inspect.getsource(events)).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)):
            continue
        value = node.value.value
        if not (isinstance(value, str) and re.fullmatch(r"[a-z_]+(/[a-z-]+)?", value)):
            continue
        if "/" not in value and "_" not in value:
            continue
        said = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            said = str(after.value.value).replace("\n", " ").replace("``", "`")
        lines.append(f"| `{value}` | {said} |\n")
    return "".join(lines)


def _decisions() -> str:
    lines = ["# Decisions\n\n"]
    for file in sorted((Path(__file__).parents[1] / "decisions").glob("0*.md")):
        title = file.read_text("utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({file.name})\n")
    return "".join(lines)


_COMMANDS, _ENVIRONMENT = _commands()
for _name, _text in {
    "index.md": "# perdure\n",
    "decisions/index.md": _decisions(),
    "reference/api.md": _api(),
    "reference/command-line.md": _COMMANDS,
    "reference/environment.md": _ENVIRONMENT,
    "reference/errors.md": _errors(),
    "reference/events.md": _events(),
}.items():
    with mkdocs_gen_files.open(_name, "w") as _file:
        _file.write(_text)
