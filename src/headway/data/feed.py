"""Images by index for the training loop: resident on the device where they fit, else streamed from the memory map."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from headway.data.imageset import ImageSet, to_unit

_WORKERS = 8  # they wait for the disk more than they compute
_AHEAD = 4  # batches kept that were prefetched and not yet asked for


class Feed:
    """The images of a set by dataset index, the same bits whichever way they come.

    images: what to serve.
    device: where batches go.
    resident_limit: bytes of uint8 pixels up to which the whole set lies on the device; larger sets are read batch by
        batch by worker threads, ahead of time where `prefetch` said what comes next.
    """

    def __init__(self, images: ImageSet, device: torch.device | str, resident_limit: int = 2 << 30) -> None:
        self.device = torch.device(device)
        self.resident = images.images.nbytes <= resident_limit
        self._labels = None if images.labels is None else torch.from_numpy(images.labels).long().to(self.device)
        self._source = images.images
        if self.resident:
            self._pixels = torch.from_numpy(np.array(images.images)).to(self.device)
        else:
            self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="headway-feed")
            self._coming: dict[bytes, tuple[torch.Tensor, list[Future[None]]]] = {}

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(images float32 (n, C, H, W) in [-1, 1], labels int64 (n,) or None), both on the device."""
        if self.resident:
            pixels = self._pixels[indices.to(self.device)]
        else:
            order = _order(indices)
            rows, parts = self._coming.pop(order.tobytes()) if order.tobytes() in self._coming else self._read(order)
            for part in parts:
                part.result()
            pixels = rows.to(self.device, non_blocking=True)
        return to_unit(pixels), None if self._labels is None else self._labels[indices.to(self.device)]

    def prefetch(self, indices: torch.Tensor) -> None:
        """Begin to read the batch of these indices in the background; without effect on a resident set."""
        if self.resident:
            return
        order = _order(indices)
        if order.tobytes() not in self._coming:
            self._coming[order.tobytes()] = self._read(order)
        while len(self._coming) > _AHEAD:
            del self._coming[next(iter(self._coming))]

    def _read(self, order: np.ndarray) -> tuple[torch.Tensor, list[Future[None]]]:
        """A buffer (n, C, H, W) uint8, and the tasks that fill it."""
        rows = torch.empty(
            (len(order), *self._source.shape[1:]), dtype=torch.uint8, pin_memory=self.device.type == "cuda"
        )

        def fill(part: slice) -> None:
            rows.numpy()[part] = self._source[order[part]]

        step = -(-len(order) // _WORKERS)
        return rows, [self._pool.submit(fill, slice(i, i + step)) for i in range(0, len(order), step)]


def _order(indices: torch.Tensor) -> np.ndarray:
    return indices.cpu().numpy().astype(np.int64)
