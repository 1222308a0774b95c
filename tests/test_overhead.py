"""What the techniques cost: every one is timed, by the name that a recipe gives it."""

from __future__ import annotations

from headway.studies.overhead import overheads
from headway.studies.techniques import listing, techniques


def test_every_technique_of_a_training_step_is_timed_and_listed():
    step, costs = overheads(repeats=2, steps=1)
    assert step > 0
    assert all(cost.seconds > 0 and cost.share == cost.seconds / step for cost in costs)
    timed = {cost.setting for cost in costs} | {"optim.name=schedulefree"}  # an extra
    assert timed == {t.setting for t in techniques() if not t.setting.startswith("sampling.")}
    text = listing(costs)
    assert all(technique.setting in text for technique in techniques())
    assert text.count("% of a step") == len(costs)
    assert listing().count("% of a step") == 0
