"""What every recipe is, whatever the kind of model: strict, with a name and images, written and compared as YAML."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import yaml
from pydantic import Field

from headway.errors import HeadwayError
from headway.recipes.sections import DataSection, Section, Title

if TYPE_CHECKING:
    from headway.data import ImageSet


class RecipeBase(Section):
    """The part of a recipe that does not depend on the kind of model."""

    # What may change when a run goes on: where the same images lie, and what is written or measured about the run.
    free_to_change: ClassVar[Any] = {
        **dict.fromkeys(("name", "about", "published", "log", "sampling", "evaluation"), True),
        "data": {"source", "skip_broken"},
    }

    name: Title = Field(default="edm", description="the run's title, and its folder's by default")
    about: str = ""
    data: DataSection = DataSection()

    def with_data(self, source: str | Path) -> Self:
        """This recipe for the images at ``source``: a path or a built-in name, taken as it is."""
        if not isinstance(source, str | Path):
            raise HeadwayError(f"data is a path or the name of a built-in set, got {type(source).__name__}.")
        return self.model_copy(update={"data": self.data.model_copy(update={"source": str(source)})})

    def with_overrides(self, overrides: list[str]) -> Self:
        """This recipe with ``section.key=value`` applied; values are YAML, and numbers may be written 1e-4, 200k, 2M."""
        from headway.recipes.reading import override

        return override(self, overrides)

    def to_yaml(self) -> str:
        """All of it, defaults spelled out."""
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W), once the data have been read or the recipe says it."""
        size, channels = self.data.size, self.data.channels
        if size == "auto" or channels == "auto":
            raise HeadwayError(
                "The recipe does not say the images' size and channels: give data, or data.size and data.channels."
            )
        height, width = (size, size) if isinstance(size, int) else size
        return channels, height, width

    def differences(self, other: RecipeBase) -> list[str]:
        """What ``other`` decides differently, as far as a run that goes on may not change it."""
        mine, theirs = (flat(recipe.model_dump(mode="json", exclude=self.free_to_change)) for recipe in (self, other))
        return [
            f"{key}: {mine.get(key)} there, {theirs.get(key)} now" for key in theirs if mine.get(key) != theirs.get(key)
        ]


def decided(section: Section, **decisions: object) -> dict[str, object]:
    """The section's values, with those that were ``auto`` or None replaced by the decisions."""
    values = section.model_dump()
    return values | {key: value for key, value in decisions.items() if values[key] in ("auto", None)}


def decided_data(data: DataSection, images: ImageSet, classes: int) -> dict[str, object]:
    """The data section with nothing left to decide, once the images have been read."""
    facts = {"size": images.size, "channels": images.channels, "classes": classes, "fingerprint": images.fingerprint}
    # A path is kept whole, so that the run can be measured from anywhere.
    source = data.source
    if source is not None and Path(source).exists():
        source = str(Path(source).resolve())
    return decided(data, **facts) | {"source": source}


def decided_evaluation(section: Section, images: ImageSet, heldout: int) -> dict[str, object]:
    """The evaluation section likewise: an extractor that suits the images, as many samples as are held out, 5,000 at most."""
    extractor = "classifier" if images.labels is not None else "orientation"
    return decided(section, extractor=extractor, samples=min(5000, heldout))


class _Dumper(yaml.SafeDumper):
    """Mappings in blocks, lists in a line: [28, 28]."""


_Dumper.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return out
