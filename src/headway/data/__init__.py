"""Images in: built-in sets, folders, archives and arrays, under one image policy (docs/data.md)."""

from headway.data.feed import Feed
from headway.data.imageset import ImageSet, split
from headway.data.sources import BUILT_IN, load, open_images

__all__ = ["BUILT_IN", "Feed", "ImageSet", "load", "open_images", "split"]
