"""The detector on streams that are made: calibrated, quick, and right about who comes back."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch

from hcl.detect import detector as module
from hcl.detect.detector import Detector
from hcl.detect.measure import WIDEST, Features, Measured, shifts
from hcl.detect.sequential import WAITING
from hcl.detect.settings import NEEDED, CalibratedSettings
from hcl.errors import HCLError
from hcl.records.runs import NEW, RECURRING, SAME
from hcl.settings import build

SIZE, CLASSES = 16, 3
WAY = np.ones(SIZE) / SIZE**0.5  # a direction


class World:
    """Tasks of Gaussian classes; ``noise`` may have any distribution."""

    def __init__(self, seed: int = 0, tasks: int = 4, apart: float = 1.0) -> None:
        self.random = np.random.default_rng(seed)
        self.centres = apart * self.random.normal(size=(tasks, CLASSES, SIZE))

    def batch(self, task: int, noise=None, shares=None, moved=0.0, size: int = 32):
        y = self.random.choice(CLASSES, size, p=shares)
        e = self.random.normal(size=(size, SIZE)) if noise is None else noise(self.random, size)
        x = (self.centres[task][y] + e + moved).astype(np.float32)
        return torch.from_numpy(x), torch.from_numpy(y)


def made(every: int = 10_000) -> Detector:
    return Detector(CalibratedSettings(false_alarm_every=every), CLASSES, (SIZE,))


def verdicts(detector: Detector, batches) -> list[tuple[int, int, int]]:
    """Where the detector says that the task has changed: batch, verdict, task."""
    found = []
    for index, (x, y) in enumerate(batches):
        seen = detector.judge(x, y)
        if seen.verdict != SAME:
            found.append((index, seen.verdict, seen.task))
    return found


def test_changes_are_found_within_five_batches_and_returning_tasks_named():
    world = World()
    order = [0, 1, 2, 0, 3, 1]
    found = verdicts(made(), (world.batch(task) for task in order for _ in range(50)))
    assert [(verdict, task) for _, verdict, task in found] == [
        (NEW, 1),
        (NEW, 2),
        (RECURRING, 0),
        (NEW, 3),
        (RECURRING, 1),
    ]
    for (index, _, _), begun in zip(found, range(50, 300, 50), strict=True):
        assert begun < index < begun + 5


def test_tasks_of_twenty_batches_are_found():
    world = World(tasks=6, apart=2.0)
    found = verdicts(made(), (world.batch(task) for task in range(6) for _ in range(20)))
    assert [task for _, _, task in found] == [1, 2, 3, 4, 5]
    assert all(index % 20 < 5 for index, _, _ in found)


def student(random, size):
    return random.standard_t(3, size=(size, SIZE))


def outliers(random, size):
    far = np.where(random.random((size, 1)) < 0.002, 50.0, 1.0)
    return random.normal(size=(size, SIZE)) * far


@pytest.mark.parametrize("noise", [None, student, outliers], ids=["Gaussian", "t3", "outliers"])
def test_a_stream_without_changes_has_no_more_alarms_than_stated(noise):
    world, batches, every = World(seed=3), 500, 250
    found = verdicts(made(every), (world.batch(0, noise) for _ in range(batches)))
    assert len(found) <= 3 * batches / every


def test_class_frequencies_alone_are_no_change():
    world = World(seed=1)
    shares = [[0.34, 0.33, 0.33], [0.9, 0.05, 0.05], [0.05, 0.05, 0.9], [0.5, 0.5, 0.0]]
    batches = (world.batch(0, shares=share) for share in shares for _ in range(80))
    assert verdicts(made(), batches) == []


def test_slow_drift_is_followed():
    world = World(seed=1)
    batches = (world.batch(0, moved=0.02 * index * WAY) for index in range(400))
    assert verdicts(made(), batches) == []  # 8 standard deviations in all


def test_swapped_labels_and_another_spread_are_changes():
    world = World(seed=9)
    for change in ("labels", "spread"):
        detector = made()
        verdicts(detector, (world.batch(0) for _ in range(120)))
        late = 0
        while late < 12:
            late += 1
            x, y = world.batch(0)
            if change == "labels":
                y = (y + 1) % CLASSES
            else:
                centres = torch.from_numpy(world.centres[0]).float()[y]
                x = centres + 1.5 * (x - centres)
            if detector.judge(x, y).verdict == NEW:
                break
        assert late <= 5, change


def blurred(world: World, batches: int, over: int):
    """From batch 80 on the share of the second task rises, over so many batches."""
    for index in range(batches):
        share = min(max((index - 80) / over, 0), 1)
        (x, y), (other, labels) = world.batch(0), world.batch(1)
        count = round(32 * share)
        x[:count], y[:count] = other[:count], labels[:count]
        yield x, y


def test_a_blurred_change_is_found_once():
    found = verdicts(made(), blurred(World(seed=4), batches=130, over=10))
    assert [(verdict, task) for _, verdict, task in found] == [(NEW, 1)]
    assert 80 < found[0][0] < 95


def test_a_change_that_takes_its_time_is_found_once():
    for seed in range(5):
        found = verdicts(made(), blurred(World(seed=seed, apart=2.0), batches=200, over=40))
        assert [(verdict, task) for _, verdict, task in found] == [(NEW, 1)], seed


def test_a_small_shift_of_all_classes_together_is_found():
    """By 0.8 standard deviations; each class by itself shows half of such shifts."""
    found = 0
    for seed in range(10, 18):
        world, detector = World(seed=seed), made()
        verdicts(detector, (world.batch(0) for _ in range(120)))
        found += bool(verdicts(detector, (world.batch(0, moved=0.8 * WAY) for _ in range(20))))
    assert found >= 6


def announced(rate: float) -> int:
    """Alarms of streams that drift by so many standard deviations a batch."""
    drifting = ((World(seed=s), made()) for s in range(10, 14))
    return sum(
        len(verdicts(detector, (world.batch(0, moved=rate * i * WAY) for i in range(300))))
        for world, detector in drifting
    )


def test_fast_drift_is_announced_less_often_because_the_lag_tells_it(monkeypatch):
    followed = announced(0.05)
    monkeypatch.setattr(Detector, "_drifted", lambda self: None)
    assert followed <= 0.6 * announced(0.05)


def test_one_strange_batch_is_learned_in_the_end():
    world, detector = World(), made()
    verdicts(detector, (world.batch(0) for _ in range(60)))
    while detector.waiting:
        detector.judge(*world.batch(0))
    age = detector.tasks[0].age
    seen = detector.judge(*world.batch(1))
    assert (seen.verdict, seen.waiting, seen.released) == (SAME, 1, [])
    assert detector.tasks[0].age == age
    after = 1
    while detector.waiting:
        assert detector.judge(*world.batch(0)).verdict == SAME
        after += 1
    assert after < WAITING
    assert detector.tasks[0].age == age + after


def false_alarms(batches: int, every: int, learned_before: bool) -> int:
    """Alarms of a stream without changes, by a detector that may be broken on purpose."""
    world, detector = World(seed=5), made(every)
    found = 0
    for index in range(batches):
        x, y = world.batch(0)
        if learned_before and detector.tasks and index % 5:  # every fifth is judged as it should
            for _ in range(3):
                detector._learn(detector._measured(detector._seen(x), y))
            detector.learn(x, y)
        else:
            found += detector.judge(x, y).verdict != SAME
    return found


def test_ranks_among_batches_that_were_learned_before_they_were_judged_alarm_too_often():
    batches, every = 500, 250
    assert false_alarms(batches, every, learned_before=False) <= 3 * batches / every
    assert false_alarms(batches, every, learned_before=True) > 3 * batches / 5 / every


def test_a_reference_that_the_new_task_has_come_into_misses_its_change():
    for contaminated in (False, True):
        world, detector = World(seed=6), made()
        for _ in range(60):
            detector.judge(*world.batch(0))
        if contaminated:  # what a detector does that learns first and judges then
            scores = [detector._look(detector._measured(detector._seen(x), y))
                      for x, y in (world.batch(1) for _ in range(8))]  # fmt: skip
            for score in scores:
                detector.sequential.accept(score)
        found = verdicts(detector, (world.batch(1) for _ in range(5)))
        assert bool(found) == (not contaminated)


def test_a_hundred_tasks_are_named():
    world, detector = World(tasks=100, apart=2.0), made()
    names, wrong = {}, 0
    for _ in range(25):
        detector.judge(*world.batch(0))
    names[0] = 0
    for task in [*range(1, 100), *world.random.permutation(99)[:40]]:
        for _ in range(8):
            seen = detector.judge(*world.batch(task))
        names.setdefault(task, seen.task)
        wrong += names[task] != seen.task
    assert len(set(names.values())) == 100
    assert wrong <= 4


def test_a_checkpoint_goes_on_byte_by_byte():
    world, detector = World(), made()
    batches = [world.batch(task) for task in (0, 1, 0) for _ in range(40)]
    verdicts(detector, batches[:41])  # the 41st waits
    assert detector.waiting
    file = io.BytesIO()
    torch.save(detector.state(), file)
    file.seek(0)
    again = made()
    again.restore(torch.load(file, weights_only=True))
    for x, y in batches[41:]:
        one, two = detector.judge(x, y), again.judge(x, y)
        assert (one.verdict, one.task, one.waiting) == (two.verdict, two.task, two.waiting)
        assert repr(one.statistics) == repr(two.statistics)
    assert torch.equal(detector.novelty(batches[0][0]), again.novelty(batches[0][0]))


def test_what_is_released_is_every_batch_once_in_its_order():
    world, detector = World(), made()
    shown, released = [], []
    for task in (0, 1, 2, 0):
        for _ in range(40):
            x, y = world.batch(task)
            shown.append(x)
            seen = detector.judge(x, y)
            released += [x for x, _ in (*seen.earlier, *seen.released)]
    released += [x for x, _ in detector.waiting]
    assert all(one is other for one, other in zip(shown, released, strict=True))


def test_novelty_is_a_p_value_for_what_is_known_and_small_for_what_is_not():
    world, detector = World(apart=3.0), made()
    assert detector.novelty(world.batch(0)[0]).tolist() == [1.0] * 32
    verdicts(detector, (world.batch(task) for task in (0, 1) for _ in range(60)))
    for task in (0, 1):
        p = detector.novelty(torch.cat([world.batch(task)[0] for _ in range(20)]))
        for level in (0.01, 0.05, 0.2):
            assert (p <= level).double().mean() <= 1.5 * level + 0.02
    strange = detector.novelty(torch.cat([world.batch(2)[0] for _ in range(20)]))
    assert strange.median() < 0.01


def test_distances_that_novelty_goes_by_stay_few(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 128)
    world, detector = World(), made()
    verdicts(detector, (world.batch(0) for _ in range(100)))
    assert 32 <= detector._kept <= 128
    assert detector._stride > 8


def test_bytes_are_pixels_and_wide_samples_are_projected():
    x = torch.randint(256, (5, 3, 4, 4), dtype=torch.uint8)
    seen = Features((3, 4, 4), torch.device("cpu"))(x)
    torch.testing.assert_close(seen, (x.flatten(1) / 255).sqrt())
    wide = Features((WIDEST + 1,), torch.device("cpu"))
    assert wide(torch.randn(4, WIDEST + 1)).shape == (4, WIDEST)


@pytest.mark.parametrize("scale", [1e-3, 1e4])
def test_units_do_not_matter(scale):
    """A feature that is measured in millimetres hides no change in another."""
    world, detector = World(seed=8), made()
    units = torch.ones(SIZE)
    units[0] = scale
    batches = [world.batch(task) for task in (0, 1) for _ in range(60)]
    found = verdicts(detector, ((x * units, y) for x, y in batches))
    assert [(verdict, task) for _, verdict, task in found] == [(NEW, 1)]


def test_samples_that_are_all_equal_say_nothing():
    detector = made()
    batch = torch.ones(32, SIZE), torch.zeros(32, dtype=torch.int64)
    assert verdicts(detector, [batch] * 60) == []


def test_the_number_of_tasks_does_not_matter_within_a_task():
    """Only the current task's means are looked at: others may hold anything."""
    world, detector = World(), made()
    verdicts(detector, (world.batch(task) for task in (0, 1) for _ in range(40)))
    other = copy.deepcopy(detector)
    other.tasks[0].means.fill_(torch.nan)
    for _ in range(20):
        x, y = world.batch(1)
        assert repr(detector.judge(x, y).statistics) == repr(other.judge(x, y).statistics)


def test_many_tasks_are_compared_as_one_by_one():
    world, detector = World(tasks=6), made()
    for task in range(6):
        batches = [world.batch(task) for _ in range(40)]
        if task == 4:  # a class that one task never had
            batches = [(x[y > 0], y[y > 0]) for x, y in batches]
        verdicts(detector, batches)
    detector.tasks[2].spread.zero_()  # as after a change of the metric
    x, y = world.batch(3)
    z, metric = detector._seen(x), detector.scatter.metric
    one_by_one = [Measured(z, y, means, metric).shift for means in detector.tasks]
    at_once = shifts(z, y, detector.tasks, metric)
    torch.testing.assert_close(at_once, torch.stack(one_by_one), rtol=1e-3, atol=1e-3)
    assert int(at_once.argmin()) == 3


def test_a_trend_is_kept_of_the_current_task_alone():
    world, detector = World(), made()
    verdicts(detector, (world.batch(task) for task in (0, 1, 2, 0) for _ in range(40)))
    assert [len(means.trend) for means in detector.tasks] == [CLASSES, 0, 0]


def test_a_stream_is_judged_from_where_it_says():
    world, detector = World(), made()
    for _ in range(NEEDED - 1):
        assert not detector.can_judge
        detector.judge(*world.batch(0))
    assert detector.can_judge
    assert CalibratedSettings().advice(NEEDED) is None
    assert f"needs {NEEDED} before it judges" in str(CalibratedSettings().advice(NEEDED - 1))


def test_a_rate_that_was_not_simulated_is_refused():
    for every in (99, 1_000_001):
        with pytest.raises(HCLError, match=f"d.false_alarm_every: is {every}; expected a whole"):
            build(CalibratedSettings, {"false_alarm_every": every}, "params.yaml", "d")


def with_own_classes(order: list[int], batches: int) -> list[tuple[int, int, int]]:
    """Two classes for each task, all alike in how they spread; the detector knows six."""
    random = np.random.default_rng(0)
    centres = 3 * random.normal(size=(6, SIZE))
    detector = Detector(CalibratedSettings(), 6, (SIZE,), own_classes=True)

    def shown():
        for task in order:
            for _ in range(batches):
                y = 2 * task + random.integers(0, 2, 32)
                x = (centres[y] + random.normal(size=(32, SIZE))).astype(np.float32)
                yield torch.from_numpy(x), torch.from_numpy(y)

    return verdicts(detector, shown())


def test_a_batch_without_any_class_of_the_task_is_of_another_task_at_once():
    found = with_own_classes([0, 1, 0, 2], 20)
    assert found == [(20, NEW, 1), (40, RECURRING, 0), (60, NEW, 2)]


def test_a_task_of_its_own_classes_may_be_as_short_as_two_batches():
    assert [task for _, _, task in with_own_classes([0, 1, 2], 2)] == [1, 2]


def test_batches_under_suspicion_are_the_old_tasks_when_other_classes_come():
    world = World()
    detector = Detector(CalibratedSettings(), 2 * CLASSES, (SIZE,), own_classes=True)
    for _ in range(40):
        detector.judge(*world.batch(0))
    x, y = world.batch(0, moved=0.6)
    waiting = detector.judge(x, y)
    assert waiting.verdict == SAME
    assert not waiting.released
    other, labels = world.batch(1)
    found = detector.judge(other, labels + CLASSES)
    assert found.verdict == NEW
    assert [len(part) for part in (found.earlier, found.released)] == [1, 1]
    assert torch.equal(found.earlier[0][0], x)
    assert torch.equal(found.released[0][0], other)
    assert not detector.waiting
