"""How each option is typed: its names, its group on the help page, what it means in a line.

One declaration an option, used by every command that takes it, and by `SINKCHAT_<NAME>`. What a value may be
is decided where it is read (`request.py`, `settings.py`), what stands for it when nobody gave it where the
defaults live.
"""

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from sinkchat.terminal.asked.request import Chosen
from sinkchat.terminal.asked.request import QuantName as QuantName

MEMORY, MODEL, ANSWERS, PIPES, KEPT, LOOKS = "Memory", "Model", "Answers", "Pipes", "Saved", "Looks"

_PLAIN: dict[str, Any] = {"show_default": False, "show_envvar": False}


class GroupedHelp(TyperCommand):
    """Lists options under the heading of their group, in plain text: the first help page needs no Rich."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                group = getattr(parameter, "rich_help_panel", None) or LOOKS
                groups.setdefault(group, []).append(record)
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)


def variable(name: str) -> str:
    """The variable that stands for an option: `SINKCHAT_CACHE_SIZE` for `--cache-size` or `cache_size`."""
    return "SINKCHAT_" + name.removeprefix("--").replace("-", "_").upper()


def typed(context: typer.Context, variables: Mapping[str, str]) -> dict[str, Chosen]:
    """What was given on the command line or in a variable, by the name of the parameter."""
    chosen: dict[str, Chosen] = {}
    for name, value in context.params.items():
        option = "--" + name.strip("_").replace("_", "-")
        where = context.get_parameter_source(name)
        if where is not None and where.name == "COMMANDLINE":
            chosen[name] = Chosen(value, option, "flag")
        elif where is not None and where.name == "ENVIRONMENT":
            chosen[name] = Chosen(value, variable(option), variable(option))
    # The parser would cut a variable at its blanks, and a stop text may have some.
    if "stop" in context.params and "stop" not in chosen and (stop := variables.get("SINKCHAT_STOP")):
        chosen["stop"] = Chosen([stop], "SINKCHAT_STOP", "SINKCHAT_STOP")
    return chosen


def _option(names: str, metavar: str | None, group: str, meaning: str) -> Any:
    """An option, `-s/--system`, that can be given as `SINKCHAT_<NAME>` too."""
    return typer.Option(
        *names.split("/"),
        metavar=metavar,
        rich_help_panel=group,
        help=meaning,
        envvar=variable(names.split("/")[-1]),
        **_PLAIN,
    )


def _model(meaning: str, **settings: Any) -> Any:
    return typer.Argument(metavar="MODEL", rich_help_panel="Arguments", help=meaning, **settings, **_PLAIN)


Model = _model("A Hub id, a folder, a .gguf file or an alias.", envvar="SINKCHAT_MODEL")
NamedModel = _model("A Hub id, a folder, a .gguf file or an alias.")
Prompt = typer.Argument(
    metavar="PROMPT",
    rich_help_panel="Arguments",
    help="Answer this and exit; behind piped text, the question about it.",
    **_PLAIN,
)
CacheSize = _option("--cache-size", "N", MEMORY, "Tokens remembered, pinned ones included (2048).")
Sinks = _option("--sinks", "N|auto", MEMORY, "Tokens never forgotten. auto: 4, or the whole system prompt.")
Evict = _option("--evict", "turn|token|BLOCK", MEMORY, "What is forgotten at once when memory is full (turn).")
Policy = _option("--policy", None, MEMORY, "window and dense exist to see the difference (sink).")
System = _option("-s/--system", "TEXT", MODEL, "System prompt.")
SystemFile = _option("--system-file", "FILE", MODEL, "System prompt from a file.")
Quant = _option("--quant", None, MODEL, "Quantisation; what auto chose is printed.")
Dtype = _option("--dtype", None, MODEL, "Precision of the weights that are not quantised.")
Device = _option("--device", "auto|cuda[:N]|mps|cpu", MODEL, "Where the model runs.")
Processes = _option("--processes", "N", MODEL, "Cut the model across N processes, one a CUDA device (1).")
Threads = _option("--threads", "N", MODEL, "Threads on a CPU (one a core); fewer are faster on a busy machine.")
Revision = _option("--revision", "NAME", MODEL, "Branch, tag or commit on the Hub.")
NoCompile = _option("--no-compile", None, MODEL, "Decode by the model's own code, slower, with nothing compiled.")
Offline = _option("--offline", None, MODEL, "Use only what is on this machine.")
TrustRemoteCode = _option("--trust-remote-code", None, MODEL, "Run code that comes with the model.")
Template = _option("--chat-template", "FILE", MODEL, "A Jinja template in place of the model's own.")
Temperature = _option("-t/--temperature", "X", ANSWERS, "How freely words are drawn; 0 is greedy.")
TopP = _option("--top-p", "X", ANSWERS, "Draw from the likeliest words with this probability in all.")
TopK = _option("--top-k", "N", ANSWERS, "Draw from this many likeliest words; 0 is off.")
MinP = _option("--min-p", "X", ANSWERS, "Drop words less likely than this share of the likeliest.")
Penalty = _option("--repetition-penalty", "X", ANSWERS, "Above 1 makes repeating less likely.")
Seed = _option("--seed", "N", ANSWERS, "Draw the same words again.")
MaxTokens = _option("-n/--max-tokens", "N", ANSWERS, "Longest answer; 0 sets no limit (1024).")
Stop = typer.Option(  # without a variable of the parser's: it would cut a text at its blanks
    "--stop", metavar="TEXT", rich_help_panel=ANSWERS, help="End the answer before this text.", **_PLAIN
)
Input = _option("--input", None, PIPES, "stdin is one message, one a line, or a JSON object a line (text).")
Format = _option("--format", None, PIPES, "What stdout carries (text).")
Fit = _option("--fit", None, PIPES, "What to do when a message is more than memory holds (warn).")
Interactive = _option("-i/--interactive", None, PIPES, "Go on at the keyboard afterwards.")
Continue = _option("-c/--continue", None, KEPT, "Go on with the latest conversation.")
Session = _option("--session", "NAME", KEPT, "Go on with that conversation, or begin it; kept in pipes too.")
NoSave = _option("--no-save", None, KEPT, "Do not save this conversation.")
Panel = _option("--panel", None, LOOKS, "What is shown of memory below the answer (auto).")
Markdown = _option("--markdown", None, LOOKS, "Bold, code and headings while the answer comes (light).")
Ascii = _option("--ascii", None, LOOKS, "Draw with plain characters.")
Accessible = _option("--accessible", None, LOOKS, "Sentences in place of drawings; nothing is redrawn.")
Vi = _option("--vi", None, LOOKS, "Edit the input line with the keys of vi.")
Stats = _option("--stats", None, LOOKS, "Speed and memory after each answer, in pipes too.")
Raw = _option("--raw", None, LOOKS, "On a terminal the text as into a pipe: no panel, no Markdown.")
NoHistory = _option("--no-history", None, LOOKS, "Do not keep typed lines.")
Quiet = _option("-q/--quiet", None, LOOKS, "Answers and errors only.")
Verbose = _option("-v/--verbose", None, LOOKS, "In pipes too, tell what is loaded and remembered.")
Color = _option("--color", None, LOOKS, "Colour (auto).")
Json = typer.Option("--json", rich_help_panel=LOOKS, help="One JSON document on stdout.", **_PLAIN)


def _conversation(meaning: str, metavar: str = "ID") -> Any:
    return typer.Argument(metavar=metavar, rich_help_panel="Arguments", help=meaning, **_PLAIN)


Conversation = _conversation("A saved conversation; the latest, where none is named.")
NamedConversation = _conversation("A saved conversation; `sinkchat sessions` lists them.")
NamedConversations = _conversation("Saved conversations.", "ID...")
ExportFormat = typer.Option("--format", rich_help_panel=PIPES, help="In which form (md).", **_PLAIN)
