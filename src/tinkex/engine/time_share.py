"""Who runs next when training and sampling both have work: each gets its share of the time."""

from __future__ import annotations

from typing import Literal

Side = Literal["train", "sample"]


class TimeShare:
    """Keeps both sides' times in proportion while both have work; time spent alone counts for nobody."""

    def __init__(self, train_share: float = 0.5, *, most: float = 30.0) -> None:
        if not 0.0 < train_share < 1.0:
            raise ValueError(f"train_share must lie between 0 and 1, got {train_share}")
        self._weight = {"train": 1.0 / train_share, "sample": 1.0 / (1.0 - train_share)}
        self._most = most
        self._lead = 0.0
        self._both = False

    def choose(self, *, train: bool, sample: bool) -> Side | None:
        """The side to run, given which have work."""
        self._both = train and sample
        if not self._both:
            self._lead = 0.0
            return "train" if train else "sample" if sample else None
        return "train" if self._lead <= 0.0 else "sample"

    def spent(self, side: Side, seconds: float) -> None:
        """Time that the chosen side took."""
        if self._both:
            change = seconds * self._weight[side]
            lead = self._lead + (change if side == "train" else -change)
            self._lead = max(-self._most, min(self._most, lead))
