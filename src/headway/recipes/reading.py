"""Recipes from text: files, presets, ``key=value``; and every mistake in them as one sentence with the nearest right name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from headway.errors import HeadwayError, suggest
from headway.recipes.base import RecipeBase
from headway.recipes.recipe import Recipe
from headway.recipes.sections import Named

SomeRecipe = TypeVar("SomeRecipe", bound=RecipeBase)
Schema = TypeVar("Schema", bound=BaseModel)


def parse(values: object, where: str) -> Recipe:
    """A recipe from plain values; errors begin with ``where`` they stand."""
    if isinstance(values, dict) and "model" in values:
        raise HeadwayError(f"{where}: this is the recipe of a {values['model']}, not of a diffusion model.")
    return parse_as(Recipe, values, where)


def parse_as(schema: type[Schema], values: object, where: str) -> Schema:
    """:func:`parse` for a recipe of any kind, or another strict file."""
    if not isinstance(values, dict):
        given = "nothing" if values is None else f"a {type(values).__name__}"
        raise HeadwayError(
            f"{where}: a recipe is a mapping of sections such as 'train: {{images: 200k}}', got {given}."
        )
    try:
        return schema.model_validate(_numbers(values))
    except ValidationError as error:
        raise HeadwayError(f"{where}: {_explain(error, schema)}") from None


@cache
def presets() -> Mapping[str, Mapping[str, Any]]:
    """The built-in recipes as plain values, by name. A preset may name another as its ``base`` and change parts of it."""
    raw: dict[str, dict[str, Any]] = {}
    for file in sorted(resources.files("headway.recipes").joinpath("presets").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".yaml"):
            raw |= yaml.safe_load(file.read_text(encoding="utf-8"))

    def expand(name: str) -> dict[str, Any]:
        values = dict(raw[name])
        base = values.pop("base", None)
        return _merge(expand(base) if base else {}, values) | {"name": name}

    return MappingProxyType({name: expand(name) for name in raw if not name.startswith("_")})


def load(source: str | Path) -> Recipe:
    """See :meth:`Recipe.load`."""
    return parse(*find(source, presets()))


def find(source: str | Path, known: Mapping[str, Mapping[str, Any]]) -> tuple[object, str]:
    """The plain values of a file, a run folder or one of the ``known`` presets, and where they stand, for people."""
    if str(source) in known and (Path(source) / "recipe.yaml").is_file() and not isinstance(source, Path):
        raise HeadwayError(f"{source!r} is a preset, and here also a run folder: write ./{source} for the folder.")
    if str(source) in known and not isinstance(source, Path):
        return dict(known[str(source)]), f"preset {source}"
    path = Path(source)
    path = path / "recipe.yaml" if path.is_dir() else path
    if not path.is_file():
        raise HeadwayError(
            f"No recipe {str(source)!r}: expected a YAML file, a run folder or a preset.{suggest(str(source), known)} "
            f"The presets are {', '.join(known)}."
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise HeadwayError(
            f"{path}: broken YAML{place}; 'headway train edm --dry-run' prints a whole recipe."
        ) from None
    return values, str(path)


def override(recipe: SomeRecipe, overrides: list[str]) -> SomeRecipe:
    """See :meth:`RecipeBase.with_overrides`."""
    schema, values = type(recipe), recipe.model_dump()
    named = _named(schema)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise HeadwayError(f"Expected key=value, got {text!r}; for example optim.lr=2e-4.")
        section, _, leaf = _full_key(key.strip(), schema).rpartition(".")
        if section:
            values[section][leaf] = _value(value)
        elif leaf in named:  # noise=clts: another technique, with none of the options of the last
            values[leaf] = {k: v for k, v in values[leaf].items() if k in named[leaf].model_fields} | {
                "name": _value(value)
            }
        else:
            values[leaf] = _value(value)
    return parse_as(schema, values, "key=value")


def _named(schema: type[BaseModel]) -> dict[str, type[Named]]:
    """The sections that choose a technique by name and hold its options."""
    sections = {name: field.annotation for name, field in schema.model_fields.items()}
    return {name: kind for name, kind in sections.items() if isinstance(kind, type) and issubclass(kind, Named)}


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    nested = {
        k: _merge(base[k], v) for k, v in changes.items() if isinstance(v, dict) and isinstance(base.get(k), dict)
    }
    return base | changes | nested


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise HeadwayError(
            f"Cannot read the value {text!r}: expected a number, a word, or a list such as [1, 2]."
        ) from None


_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9]*)?(e[-+]?[0-9]+)?[kM]?", re.IGNORECASE)
_WORDS = ("source", "labels", "fingerprint", "name", "about", "published", "extractor")


def _numbers(value: Any) -> Any:
    """Numbers that YAML 1.1 takes for words: 200k, 2M, 1e-4; everywhere but under keys whose values are words."""
    if isinstance(value, dict):
        return {key: item if key in _WORDS else _numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    factor = {"k": 1_000, "M": 1_000_000}.get(value[-1], 1)
    number = float(value[:-1] if factor > 1 else value) * factor
    return int(number) if number.is_integer() else number


def _keys(schema: type[BaseModel], prefix: str = "") -> list[str]:
    """All dotted keys."""
    keys = []
    for name, field in schema.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            keys += _keys(section, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def _full_key(key: str, schema: type[BaseModel]) -> str:
    """The dotted key; a bare one is completed where just one section has it."""
    section, keys = key.partition(".")[0], _keys(schema)
    if key in keys or (section in _named(schema) and (key == section or key.count(".") == 1)):
        return key
    if key in (sections := {name.partition(".")[0]: name for name in keys if "." in name}):
        raise HeadwayError(f"{key} is a section of the recipe: set one of its keys, for example {sections[key]}.")
    matches = [name for name in keys if name.rpartition(".")[2] == key]
    if len(matches) == 1:
        return matches[0]
    hint = f" Say which: {' or '.join(matches)}." if matches else _nearest(key, schema)
    raise HeadwayError(f"Unknown recipe key {key!r}.{hint}")


def _nearest(key: str, schema: type[BaseModel]) -> str:
    """The nearest dotted key as a sentence: within its section if that exists, else by its last part, its section, its whole."""
    keys = _keys(schema)
    section, _, leaf = key.rpartition(".")
    own = {name.rpartition(".")[2]: name for name in keys if section and name.rpartition(".")[0] == section}
    leaves = {name.rpartition(".")[2]: name for name in reversed(keys)}
    sections = {} if own else {name.partition(".")[0]: name.partition(".")[0] for name in keys}
    elsewhere = 0.75 if own else 0.5  # another section's key must be very like
    for word, names, likeness in ((leaf, own, 0.5), (leaf, leaves, elsewhere), (key, sections, 0.5)):
        if found := suggest(word, names, likeness):
            return found.replace(found.split("'")[1], names[found.split("'")[1]])
    return f" {section} has {', '.join(own)}." if own else f" The keys are {', '.join(keys)}."


def _explain(error: ValidationError, schema: type[BaseModel]) -> str:
    """The first problem as one sentence."""
    problems = error.errors()
    # A misspelt key comes first: it is why another one is missing.
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        return f"unknown key {'.'.join(path)!r}.{_nearest('.'.join(path), schema)}"
    if first["type"] == "missing":
        absent = [".".join(map(str, p["loc"])) for p in problems if p["type"] == "missing"]
        return f"missing: {', '.join(absent)}. Add {'it' if len(absent) == 1 else 'them'}."
    key = ".".join(path[:2])
    if first["type"] == "value_error":
        message = first["msg"].removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    # A union reports one problem per member: what was expected is any of them.
    wanted = [_expected(p["msg"], first["input"]) for p in problems if p["loc"][:2] == first["loc"][:2]]
    words = [word for text in wanted for word in text.split("'")[1::2]]
    return f"{key} = {first['input']!r}: expected {' or '.join(dict.fromkeys(wanted))}.{suggest(str(first['input']), words)}"


def _expected(message: str, given: Any) -> str:
    """What pydantic expected instead of ``given``, in a user's words."""
    text = message.removeprefix("Input should be ").partition(", unable")[0]
    if text == "a valid tuple":
        return f"a list such as [{given}]"
    if text.startswith("a valid dictionary or instance of "):
        return "a mapping of keys"
    if text.startswith("String should match pattern "):
        return "a name of letters, digits, spaces and . - _"
    return text
