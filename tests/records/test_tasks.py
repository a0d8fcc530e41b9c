"""Tasks are the right rows under the right labels, whatever the order; mistakes are named."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hcl.errors import HCLError
from hcl.records.embeddings import Embeddings
from hcl.records.tasks import (
    Benchmark,
    Drift,
    Part,
    Segment,
    Shown,
    Source,
    Tails,
    Task,
    read_benchmark,
    write_benchmark,
)
from hcl.split import (
    EqualTasks,
    SegmentSettings,
    StreamSettings,
    TaskSettings,
    as_json,
    first_difference,
    make_benchmark,
)
from hcl.train.streams import check_sources
from tests.support.tampering import tampered


def embeddings(classes: int = 6, per_class: int = 10, name: str = "toy") -> Embeddings:
    """Shuffled rows; of each class every fifth is for the test."""
    generator = np.random.default_rng(7)
    y = generator.permutation(np.repeat(np.arange(classes), per_class))
    split = np.zeros(len(y), np.uint8)
    for label in range(classes):
        split[np.flatnonzero(y == label)[::5]] = 1
    x = generator.normal(size=(len(y), 3)).astype(np.float32)
    names = [f"class {label}" for label in range(classes)]
    attributes = {"classes": json.dumps(names), "content_sha256": f"digest of {name}"}
    return Embeddings(x, y.astype(np.int64), split, attributes)


def make(settings: StreamSettings, **sources: Embeddings) -> Benchmark:
    return make_benchmark("b", settings, sources or {"toy": embeddings()}, "p.yaml: key")


@pytest.mark.parametrize("tasks", [EqualTasks("toy", 2), (TaskSettings("toy"),)])
def test_tasks_need_labels(tasks: EqualTasks | tuple[TaskSettings, ...]) -> None:
    known = embeddings()
    attributes = known.attributes | {"classes": "[]"}
    without = Embeddings(known.x, np.full(len(known.y), -1), known.split, attributes)
    with pytest.raises(HCLError, match=r"p\.yaml: key\.tasks.*\.dataset: toy has no labels"):
        make(StreamSettings(tasks), toy=without)


def test_equal_tasks_take_the_classes_in_order_and_relabel_them() -> None:
    source = embeddings()
    benchmark = make(StreamSettings(EqualTasks("toy", 2), validation=0.25), toy=source)
    assert [task.classes for task in benchmark.tasks] == [(0, 1), (2, 3), (4, 5)]
    assert benchmark.num_classes == 2
    assert benchmark.stream == (Segment(0, 1), Segment(1, 1), Segment(2, 1))
    assert benchmark.sources == (Source("toy", "digest of toy"),)
    for task in benchmark.tasks:
        for part, is_test in ((task.train, 0), (task.validation, 0), (task.test, 1)):
            assert (source.y[part.rows] == np.array(task.classes)[part.y]).all()
            assert (source.split[part.rows] == is_test).all()
        assert [len(p.rows) for p in (task.train, task.validation, task.test)] == [12, 4, 4]
        assert np.bincount(task.validation.y).tolist() == [2, 2]
    every = np.concatenate(
        [p.rows for t in benchmark.tasks for p in (t.train, t.validation, t.test)]
    )
    assert sorted(every.tolist()) == list(range(len(source.y)))


def test_a_cut_takes_some_of_the_training_part_and_leaves_the_rest_of_the_stream_alone() -> None:
    settings = StreamSettings(EqualTasks("toy", 2), validation=0.25)
    whole = make(settings)
    cut = make(dataclasses.replace(settings, samples_per_class=3, test_per_class=1))
    for all_of, some in zip(whole.tasks, cut.tasks, strict=True):
        assert np.bincount(some.train.y).tolist() == [3, 3]
        assert np.bincount(some.test.y).tolist() == [1, 1]
        assert set(some.train.rows) < set(all_of.train.rows)
        assert set(some.test.rows) < set(all_of.test.rows)
        np.testing.assert_array_equal(some.validation.rows, all_of.validation.rows)
    other = make(dataclasses.replace(settings, samples_per_class=3, seed=1))
    assert set(other.tasks[0].train.rows) != set(cut.tasks[0].train.rows)


def test_labels_follow_the_order_of_the_declared_classes() -> None:
    settings = StreamSettings(
        (TaskSettings("toy", (3, 0)), TaskSettings("toy", ("class 5", "class 1")))
    )
    benchmark = make(settings)
    assert [task.classes for task in benchmark.tasks] == [(3, 0), (5, 1)]
    source = embeddings()
    task = benchmark.tasks[0]
    assert set(source.y[task.train.rows[task.train.y == 0]]) == {3}


def test_a_task_can_come_twice_with_its_own_epochs() -> None:
    settings = StreamSettings(
        EqualTasks("toy", 2), order=(1, 2, SegmentSettings(3, 7), 1), epochs=4
    )
    stream = make(settings).stream
    assert stream == (Segment(0, 4), Segment(1, 4), Segment(2, 7), Segment(0, 4))


def test_tasks_over_two_data_sets_point_into_their_own_file() -> None:
    first, second = embeddings(3, name="a"), embeddings(3, 20, name="b")
    settings = StreamSettings((TaskSettings("a"), TaskSettings("b")))
    benchmark = make(settings, a=first, b=second)
    assert settings.datasets == ("a", "b")
    assert [task.dataset for task in benchmark.tasks] == ["a", "b"]
    assert benchmark.tasks[1].test.rows.max() >= len(first.y)
    assert benchmark.sources == (Source("a", "digest of a"), Source("b", "digest of b"))


def test_the_validation_part_depends_on_the_seed_alone() -> None:
    def rows(seed: int) -> list[int]:
        settings = StreamSettings(EqualTasks("toy", 2), validation=0.5, seed=seed)
        return make(settings).tasks[0].validation.rows.tolist()

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (StreamSettings(EqualTasks("toy", 4)), "6 classes, which tasks of 4 do not divide"),
        (StreamSettings((TaskSettings("toy", (0, 6)),)), "tasks[0].classes: toy has no class 6"),
        (StreamSettings((TaskSettings("toy", (0, "cat")),)), "toy has no class 'cat'"),
        (StreamSettings((TaskSettings("toy", (0, 0)),)), "a class stands twice in [0, 0]"),
        (StreamSettings((TaskSettings("toy", (0,)),)), "at least 2 classes"),
        (
            StreamSettings((TaskSettings("toy", (0, 1)), TaskSettings("toy", (2, 3, 4)))),
            "the tasks have 2, 3 classes",
        ),
        (StreamSettings(EqualTasks("toy", 2), order=(1, 4)), "order[1]: there is no task 4"),
        (StreamSettings(EqualTasks("toy", 2), order=(1, 3)), "task 2 is never shown"),
    ],
)
def test_a_stream_that_cannot_be_is_refused(settings: StreamSettings, message: str) -> None:
    with pytest.raises(HCLError, match=re.escape(message)) as caught:
        make(settings)
    assert "p.yaml: key" in str(caught.value)


def test_a_class_without_samples_is_named() -> None:
    source = embeddings()
    source.split[source.y == 1] = 1
    with pytest.raises(HCLError, match="toy: class 1 has no train samples"):
        make(StreamSettings(EqualTasks("toy", 2)), toy=source)


@pytest.mark.parametrize(
    "arguments",
    [
        *({"validation": 0.6}, {"epochs": 0}, {"order": ()}),
        *({"samples_per_class": 0}, {"test_per_class": -1}),
    ],
)
def test_impossible_values_are_refused_with_their_key(arguments: dict) -> None:
    key = "epochs" if arguments.get("order") else next(iter(arguments))
    with pytest.raises(ValueError, match=f"^{key}: "):
        StreamSettings(EqualTasks("toy", 2), **arguments)


def same(a: Benchmark, b: Benchmark) -> bool:
    parts = [
        [
            (t.dataset, t.classes, *(p.rows.tolist() + p.y.tolist() for p in parts_of(t)))
            for t in x.tasks
        ]
        for x in (a, b)
    ]
    return parts[0] == parts[1] and (a.name, a.stream, a.sources) == (b.name, b.stream, b.sources)


def parts_of(task: Task) -> tuple[Part, Part, Part]:
    return task.train, task.validation, task.test


def test_the_file_holds_the_benchmark_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    benchmark = make(StreamSettings(EqualTasks("toy", 3), order=(2, 1, 2)))
    for name in ("a.h5", "b.h5"):
        write_benchmark(tmp_path / name, benchmark)
    assert same(read_benchmark(tmp_path / "a.h5"), benchmark)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("damage", ["missing", "foreign", "truncated", "format", "dataset"])
def test_a_file_that_is_not_whole_is_named_with_the_remedy(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tasks.h5"
    write_benchmark(path, make(StreamSettings(EqualTasks("toy", 2))))
    if damage == "missing":
        path.unlink()
    elif damage == "foreign":
        path.write_text("no HDF5")
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:3000])
    else:
        with tampered(path) as file:
            if damage == "format":
                file.attrs["format"] = "hcl-tasks/0"
            else:
                del file["task-1/validation"]
    with pytest.raises(HCLError, match="`hcl split`") as caught:
        read_benchmark(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"order": (1, 3, 2)}, "its order is null, asked for is [1, 3, 2]"),
        ({"epochs": 2}, "its epochs is 1, asked for is 2"),
        (
            {"tasks": (TaskSettings("toy", (0, 1)), TaskSettings("toy", (4, 5)))},
            'its tasks is {"classes_per_task": 2, "dataset": "toy"}, asked for is '
            '[{"classes": [0, 1], "dataset": "toy"}, {"classes": [4, 5], "dataset": "toy"}]',
        ),
        ({"validation": 0.5}, "its validation is 0.25, asked for is 0.5"),
        ({"seed": 1}, "its seed is 0, asked for is 1"),
        ({"samples_per_class": 2}, "its samples_per_class is null, asked for is 2"),
        ({"test_per_class": 1}, "its test_per_class is null, asked for is 1"),
        ({"seed": 1, "epochs": 2}, "its epochs is 1, asked for is 2"),  # the first of two
    ],
)
def test_the_first_difference_is_named_and_moves_the_digest(changes, said, tmp_path) -> None:
    settings = {"tasks": EqualTasks("toy", 2), "validation": 0.25}
    asked = StreamSettings(**settings | changes)
    here, there = make(StreamSettings(**settings)), make(asked)
    write_benchmark(tmp_path / "tasks.h5", here)
    for one in (here, read_benchmark(tmp_path / "tasks.h5")):
        assert first_difference(one, asked) == said
    assert (here.digest() == there.digest()) == (said is None)


def test_a_file_that_does_not_say_what_was_asked_for_is_let_be(tmp_path: Path) -> None:
    settings = StreamSettings(EqualTasks("toy", 2))
    unknown = replace(make(settings), settings=None)
    write_benchmark(tmp_path / "tasks.h5", unknown)
    assert read_benchmark(tmp_path / "tasks.h5").settings is None
    assert first_difference(unknown, replace(settings, epochs=9)) is None


def test_other_embeddings_are_another_benchmark() -> None:
    """Which ones a file points into is checked against its sources (``check_sources``)."""
    settings = StreamSettings(EqualTasks("toy", 2))
    here, there = (make(settings, toy=embeddings(name=name)) for name in ("a", "b"))
    assert first_difference(here, settings) is None
    assert here.digest() != there.digest()
    check_sources(here, {"toy": embeddings(name="a")})
    with pytest.raises(HCLError, match="toy"):
        check_sources(here, {"toy": embeddings(name="b")})


@pytest.mark.parametrize(
    ("tasks", "order", "message"),
    [
        (EqualTasks("toy", 2), (1, 0), r"order\[1\]: there is no task 0; .* counted from 1\."),
        ((TaskSettings("toy"), TaskSettings("toy")), (1, 3), r"there is no task 3; .* 1 to 2\."),
        ((TaskSettings("toy"), TaskSettings("toy")), (1, 1), r"order: task 2 is never shown"),
    ],
)
def test_an_order_that_no_data_can_serve_is_refused_at_once(tasks, order, message) -> None:
    with pytest.raises(ValueError, match=message):
        StreamSettings(tasks, order=order)


SHOWN = {
    "blur": 5,
    "batches": 20,
    "frequencies": (1.0, 0.02),
    "disturb": Tails(degrees=2.5),
    "labels": "own",
    "labelled": 0.25,
    "order": (SegmentSettings(1, 1), SegmentSettings(2, 1, (3.0, 1.0)), 3),
}


@pytest.mark.parametrize("key", SHOWN)
def test_how_a_stream_is_shown_is_part_of_the_file_and_of_the_digest(tmp_path, key) -> None:
    plain = StreamSettings(EqualTasks("toy", 2))
    benchmark = make(replace(plain, **{key: SHOWN[key]}))
    assert benchmark.shown != Shown()
    write_benchmark(tmp_path / "b.h5", benchmark)
    read = read_benchmark(tmp_path / "b.h5")
    assert read.shown == benchmark.shown
    assert read.digest() == benchmark.digest() != make(plain).digest()
    assert first_difference(read, plain) is not None
    assert first_difference(read, replace(plain, **{key: SHOWN[key]})) is None
    assert first_difference(make(plain), replace(plain, **{key: SHOWN[key]})) is not None


def test_a_plain_stream_says_nothing_of_how_it_is_shown(tmp_path) -> None:
    settings = StreamSettings(EqualTasks("toy", 2), order=(SegmentSettings(1, 2), 2, 3), seed=3)
    benchmark = make(settings)
    assert benchmark.shown == Shown()
    asked = {"tasks", "order", "epochs", "validation", "seed", "samples_per_class"}
    assert as_json(settings).keys() == asked | {"test_per_class"}
    assert as_json(settings)["order"][0] == {"task": 1, "epochs": 2}
    write_benchmark(tmp_path / "b.h5", benchmark)
    with h5py.File(tmp_path / "b.h5") as file:
        assert "shown" not in file.attrs
    # As it was before a stream could be shown in other ways.
    assert benchmark.digest().startswith("cb7d1719e9931c45")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("blur", -1, "blur: is -1; expected a whole number from 0"),
        ("batches", 0, "batches: is 0; expected a whole number from 1"),
        ("frequencies", (1.0, -0.5), "each item a number from 0"),
        ("frequencies", (0.0, 0.0), "one of them above 0"),
        ("frequencies", (), "expected a weight of 0 or more for each label"),
        ("labelled", 0.0, "labelled: is 0; expected a number above 0, up to 1"),
    ],
)
def test_a_stream_that_cannot_be_shown_is_refused(key, value, said) -> None:
    with pytest.raises(ValueError, match=said):
        StreamSettings(EqualTasks("toy", 2), **{key: value})


def test_tails_and_drift_say_what_is_out_of_range() -> None:
    with pytest.raises(ValueError, match="degrees: is 0"):
        Tails(degrees=0)
    with pytest.raises(ValueError, match="rate: is -1"):
        Drift(rate=-1)


def test_frequencies_have_a_weight_for_each_label() -> None:
    with pytest.raises(HCLError, match=r"p.yaml: key.frequencies: has 3 weights.* 2 labels"):
        make(StreamSettings(EqualTasks("toy", 2), frequencies=(1.0, 1.0, 1.0)))
    order = (1, SegmentSettings(2, 1, (1.0,)), 3)
    with pytest.raises(HCLError, match=r"order\[1\].frequencies: has 1 weights"):
        make(StreamSettings(EqualTasks("toy", 2), order=order))


def test_pixels_are_not_disturbed() -> None:
    made = embeddings()
    pixels = replace(made, attributes={**made.attributes, "pixels": "[1, 1, 3]"})
    with pytest.raises(HCLError, match=r"key.disturb: moves features, but toy has pixels"):
        make(StreamSettings(EqualTasks("toy", 2), disturb=Drift()), toy=pixels)


def test_own_labels_are_those_of_the_data_set() -> None:
    source = embeddings()
    tasks = (TaskSettings("toy", ("class 4", 1)), TaskSettings("toy", (0, 2)))
    benchmark = make(StreamSettings(tasks, labels="own"), toy=source)
    assert benchmark.num_classes == 5
    for task in benchmark.tasks:
        for part in (task.train, task.validation, task.test):
            assert (source.y[part.rows] == part.y).all()


def test_own_labels_are_of_one_data_set_and_all_given() -> None:
    tasks = (TaskSettings("toy", (0, 1)), TaskSettings("other", (0, 1)))
    with pytest.raises(HCLError, match=r"key.labels: is own, but the tasks are of toy, other"):
        make(StreamSettings(tasks, labels="own"), toy=embeddings(), other=embeddings())
    with pytest.raises(ValueError, match=r"labelled: is 0.5, but with labels: own"):
        StreamSettings(tasks, labels="own", labelled=0.5)
