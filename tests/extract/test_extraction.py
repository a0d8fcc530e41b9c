from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import h5py
import numpy as np
import pytest
import torch
import yaml
from sklearn.datasets import load_digits

from hcl.errors import HCLError
from hcl.extract import extraction, forward
from hcl.extract.backbones import load_backbone
from hcl.extract.extraction import extract, find_lanes
from hcl.extract.partial import NOTE, Partial
from hcl.extract.settings import ExtractSettings
from hcl.records import embeddings
from hcl.records.raw import Block, Content, write_raw
from hcl.settings import build
from stages.cli import main
from tests.support.imports import ROOT, load_script
from tests.support.tampering import tampered
from tests.support.tiny_backbone import (
    CLASSES,
    NAME,
    SIZE,
    labels,
    random_images,
    save_raw,
    save_raw_files,
    save_weights,
)

COUNT = 45  # images: six blocks of eight, the last one not full


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return str(save_weights(tmp_path_factory.mktemp("weights") / "tiny.pth"))


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return save_raw(tmp_path_factory.mktemp("raw") / "raw.h5", random_images(COUNT))


@pytest.fixture(scope="module")
def settings(weights):
    def make(**changes):
        return ExtractSettings(backbone=NAME, weights=weights, device="cpu", **changes)

    return make


@pytest.fixture(scope="module")
def reference(raw, settings, tmp_path_factory):
    """The file of an uninterrupted run."""
    path = tmp_path_factory.mktemp("whole") / "whole.h5"
    extract(raw, path, settings())
    return path


@pytest.fixture
def whole(reference):
    return reference.read_bytes()


@pytest.fixture
def lanes(monkeypatch):
    def use(count):
        monkeypatch.setattr(extraction, "find_lanes", lambda _: [torch.device("cpu")] * count)

    return use


@pytest.fixture(scope="module")
def processes():
    """New processes, forked from one that has imported torch already, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hcl.extract.extraction"])
    return context


# What comes out


def one_by_one(weights, images, image_size="auto"):
    """The embeddings of single images, straight from the model."""
    backbone = load_backbone(NAME, weights, image_size)
    with torch.no_grad():
        return np.concatenate(
            [
                backbone.model(
                    backbone.transform.normalise(
                        backbone.transform.resize(torch.from_numpy(i[None]).permute(0, 3, 1, 2))
                    )
                )
                for i in images
            ]
        )


@pytest.mark.parametrize("shape", [(20, 20, 3), (8, 8, 1), (30, 17, 3)])
def test_every_image_gets_its_own_embedding(tmp_path, settings, weights, shape):
    images = random_images(19, shape)
    raw = save_raw(tmp_path / "raw.h5", images)
    assert extract(raw, tmp_path / "out.h5", settings()) == (19, SIZE)
    found = embeddings.read(tmp_path / "out.h5")
    expected = one_by_one(weights, images)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(found.x, expected, atol=1e-4)
    np.testing.assert_array_equal(found.y, labels(19)[0])
    np.testing.assert_array_equal(found.split, labels(19)[1])


@pytest.mark.parametrize("workers", [0, 3])
def test_files_of_different_sizes(tmp_path, settings, weights, workers):
    images = [random_images(1, (10 + 3 * i, 40 - 2 * i, 3))[0] for i in range(11)]
    raw = save_raw_files(tmp_path / "raw.h5", images)
    extract(raw, tmp_path / "out.h5", settings(workers=workers))
    found = embeddings.read(tmp_path / "out.h5").x
    np.testing.assert_allclose(found, one_by_one(weights, images), atol=1e-4)


def test_the_file_says_what_made_it(raw, tmp_path, settings, weights):
    extract(raw, tmp_path / "out.h5", settings())
    attributes = embeddings.read(tmp_path / "out.h5").attributes
    with h5py.File(raw) as file:
        assert attributes["data_sha256"] == file.attrs["content_sha256"]
    assert attributes["dataset"] == "trees"
    assert json.loads(attributes["classes"]) == list(CLASSES)
    assert attributes["backbone"] == NAME
    assert attributes["weights"] == "file: tiny.pth"
    assert attributes["weights_sha256"] == load_backbone(NAME, weights).weights.sha256
    assert json.loads(attributes["transform"])["height"] == 160
    assert json.loads(attributes["versions"])["torch"].split("+")[0] in torch.__version__
    assert json.loads(attributes["settings"]) == {
        "amp": False,
        "compiled": False,
        "device": "cpu",
        "forward_batch": 8,
    }
    assert str(tmp_path) not in "".join(attributes.values())


def test_a_smaller_input_is_recorded_and_makes_other_embeddings(
    raw, tmp_path, settings, weights, reference
):
    extract(raw, tmp_path / "out.h5", settings(image_size=64))
    small, own = embeddings.read(tmp_path / "out.h5"), embeddings.read(reference)
    transform = json.loads(own.attributes["transform"])
    assert json.loads(small.attributes["transform"]) == {**transform, "height": 64, "width": 64}
    assert small.attributes["fingerprint"] != own.attributes["fingerprint"]
    expected = one_by_one(weights, random_images(COUNT), image_size=64)
    np.testing.assert_allclose(small.x, expected, atol=1e-4)
    assert np.abs(small.x - own.x).max() > 1e-3  # ten times what passes for equal


def test_embeddings_of_before_image_size_was_a_setting_keep_their_fingerprint(reference):
    """What is hashed at the backbone's own size, written out by hand as it has always been."""
    attributes = embeddings.read(reference).attributes
    assert len(attributes) == 12
    assert attributes["transform"] == (
        '{"crop_mode":"center","crop_pct":0.95,"height":160,"interpolation":"bicubic",'
        '"mean":[0.485,0.456,0.406],"std":[0.229,0.224,0.225],"width":160}'
    )
    assert attributes["settings"] == (
        '{"amp":false,"compiled":false,"device":"cpu","forward_batch":8}'
    )
    hashed = {
        name: value
        for name, value in attributes.items()
        if name not in ("fingerprint", "content_sha256")
    }
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
    assert attributes["fingerprint"] == hashlib.sha256(text.encode()).hexdigest()


def test_ready_made_embeddings_pass_through_without_a_backbone(tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "load_backbone", lambda *_: pytest.fail("loaded a model"))
    x = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    content = Content("embeddings", CLASSES, 9, (5,), [Block(x, *labels(9))])
    write_raw(tmp_path / "raw.h5", content, dataset="own", source="made by a test")
    assert extract(tmp_path / "raw.h5", tmp_path / "out.h5", ExtractSettings()) == (9, 5)
    found = embeddings.read(tmp_path / "out.h5")
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.y, labels(9)[0])
    assert found.attributes["backbone"] == "none (ready-made embeddings)"
    assert found.attributes["dataset"] == "own"


# The same bytes


@pytest.mark.parametrize(
    ("batch_size", "count"), [(1, 1), (1, 3), (7, 1), (8, 2), (20, 1), (20, 3), (45, 1), (1000, 2)]
)
def test_bytes_depend_neither_on_batch_size_nor_on_lanes(
    raw, tmp_path, settings, whole, lanes, batch_size, count
):
    lanes(count)
    extract(raw, tmp_path / "out.h5", settings(batch_size=batch_size, workers=count - 1))
    assert (tmp_path / "out.h5").read_bytes() == whole


def test_bytes_do_not_depend_on_threads(raw, tmp_path, settings, whole):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        extract(raw, tmp_path / "out.h5", settings())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (tmp_path / "out.h5").read_bytes() == whole


def test_forward_batch_is_part_of_the_fingerprint(raw, tmp_path, settings, reference):
    extract(raw, tmp_path / "out.h5", settings(forward_batch=5))
    found, before = embeddings.read(tmp_path / "out.h5"), embeddings.read(reference)
    np.testing.assert_allclose(found.x, before.x, atol=1e-4)
    assert found.attributes["fingerprint"] != before.attributes["fingerprint"]


# Stopped and continued


class Stopped(Exception):
    pass


class Stop:
    """Lets a number of blocks through the backbone, then stops the run; counts them."""

    def __init__(self, monkeypatch, after):
        self.seen, self.after = 0, after
        original = forward.Embedder.forward

        def counted(module, images):
            if images.any():  # not the black ones on which a backbone is tried out
                if self.seen == self.after:
                    raise Stopped
                self.seen += 1
            return original(module, images)

        monkeypatch.setattr(forward.Embedder, "forward", counted)


@pytest.mark.parametrize(("after", "lane_count"), [(1, 1), (4, 1), (5, 1), (2, 2), (4, 2)])
def test_a_stopped_run_continues(
    raw, tmp_path, settings, whole, lanes, monkeypatch, after, lane_count
):
    lanes(lane_count)
    out = tmp_path / "out.h5"
    with monkeypatch.context() as context:
        Stop(context, after)
        with pytest.raises(Stopped):
            extract(raw, out, settings(batch_size=8))
    assert not out.exists()
    with monkeypatch.context() as context:
        second = Stop(context, after=-1)
        extract(raw, out, settings(batch_size=8))
    # A block per lane may be on its way when the other lane stops.
    assert 6 - after <= second.seen <= 6 - after + lane_count - 1
    assert out.read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


def interrupted(raw, out, settings, monkeypatch, after=4):
    with monkeypatch.context() as context:
        Stop(context, after)
        with pytest.raises(Stopped):
            extract(raw, out, settings)
    (folder,) = out.parent.glob(".out.h5.*.part")
    return folder


def test_a_cut_journal_entry_is_not_taken_for_a_finished_block(
    raw, tmp_path, settings, whole, lanes, monkeypatch
):
    lanes(1)
    folder = interrupted(raw, tmp_path / "out.h5", settings(batch_size=1), monkeypatch)
    finished = folder / "finished"
    assert finished.stat().st_size == 4 * NOTE.itemsize
    finished.write_bytes(finished.read_bytes()[:-3])
    (folder / "rows").write_bytes((folder / "rows").read_bytes()[: 3 * 8 * SIZE * 4 + 11])
    # Stopped once more: the list goes on behind the cut entry, and is still understood.
    interrupted(raw, tmp_path / "out.h5", settings(batch_size=1), monkeypatch, after=2)
    with monkeypatch.context() as context:
        third = Stop(context, after=-1)
        extract(raw, tmp_path / "out.h5", settings(batch_size=1))
    assert third.seen == 1
    assert (tmp_path / "out.h5").read_bytes() == whole


def test_unfinished_work_of_other_settings_is_not_used_and_goes_at_the_end(
    raw, tmp_path, settings, whole, lanes, monkeypatch
):
    lanes(1)
    out = tmp_path / "out.h5"
    folder = interrupted(raw, out, settings(batch_size=1, forward_batch=5), monkeypatch)
    extract(raw, out, settings())
    assert out.read_bytes() == whole
    assert not folder.exists()


def test_other_data_does_not_continue_unfinished_work(
    raw, tmp_path, settings, lanes, monkeypatch, weights
):
    lanes(1)
    out = tmp_path / "out.h5"
    interrupted(raw, out, settings(batch_size=1), monkeypatch)
    images = 255 - random_images(COUNT)
    extract(save_raw(tmp_path / "raw.h5", images), out, settings())
    np.testing.assert_allclose(embeddings.read(out).x, one_by_one(weights, images), atol=1e-4)


def run_command(command):
    main(command)


def run_but_for_the_last_blocks(command):
    """However fast the machine, it is not finished before it is killed."""
    write = Partial.write

    def held(self, outputs):
        if len(self.pending()) == len(outputs):
            time.sleep(600)  # and no longer, should the test have failed
        write(self, outputs)

    Partial.write = held
    main(command)


@pytest.mark.slow
def test_killed_at_random_points_it_ends_with_the_same_bytes(tmp_path, processes):
    """Real weights, real images, a real SIGKILL, as the command line runs it."""
    images = (load_digits().images[:88] * 15).astype(np.uint8)[..., None]
    raw = save_raw(tmp_path / "raw.h5", images, dataset="digits")
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump({"extract": {"batch_size": 8, "device": "cpu"}}))
    out = tmp_path / "killed" / "digits.h5"
    command = ["extract", "--params", str(params), "--raw", str(raw), "--out", str(out)]

    def finished() -> int:
        return sum(p.stat().st_size // NOTE.itemsize for p in out.parent.glob(".*.part/finished"))

    random = np.random.default_rng(0)
    for goal in (1, 4, 7):
        process = processes.Process(target=run_but_for_the_last_blocks, args=(command,))
        process.start()
        while process.is_alive() and finished() < goal:
            time.sleep(0.005)
        time.sleep(random.uniform(0, 0.3))  # anywhere: in a pass, or in a write
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert finished() >= goal
        assert not out.exists()
    before = finished()
    assert 7 <= before < 11
    process = processes.Process(target=run_command, args=(command,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [p.name for p in out.parent.iterdir()] == ["digits.h5"]

    extract(raw, tmp_path / "whole.h5", ExtractSettings(device="cpu"))
    assert out.read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert embeddings.read(out).x.shape == (88, 1280)


# Memory


def peak_memory(weights, count, folder):
    benchmark = load_script(ROOT / "benchmarks" / "extract.py")
    return benchmark.peak_memory(NAME, weights, count, folder)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tmp_path, weights, processes):
    peaks = []
    for count in (150, 1200):
        with ProcessPoolExecutor(1, processes) as pool:
            peaks.append(pool.submit(peak_memory, weights, count, tmp_path).result())
    few, many = peaks
    assert few > 100 * 2**20  # torch itself: something was measured
    # 1,050 images more: 49 MiB as bytes on their way in, 300 MiB on their way through. The peak of
    # the same work differs by some MiB from run to run.
    assert many - few < 25 * 2**20


# Compiled


@pytest.mark.slow
def test_compiled_once_for_all_lanes_and_recorded(
    raw, tmp_path, settings, reference, lanes, monkeypatch
):
    """With a backend of torch.compile that needs no C++ compiler."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(
        forward,
        "compile_embedder",
        lambda module: torch.compile(module, dynamic=False, backend=backend),
    )
    lanes(2)
    extract(raw, tmp_path / "out.h5", settings(compile=True))
    compiled = embeddings.read(tmp_path / "out.h5")
    eager = embeddings.read(reference)
    assert len(graphs) == 1
    assert json.loads(compiled.attributes["settings"])["compiled"] is True
    assert compiled.attributes["fingerprint"] != eager.attributes["fingerprint"]
    np.testing.assert_allclose(compiled.x, eager.x, atol=1e-4)


def test_without_a_compiler_it_is_eager_with_a_note(
    raw, tmp_path, settings, whole, monkeypatch, caplog
):
    def no_compiler(module):
        def call(images):
            raise RuntimeError("No working C++ compiler found\nin torch._inductor")

        return call

    monkeypatch.setattr(forward, "compile_embedder", no_compiler)
    with caplog.at_level(logging.WARNING):
        extract(raw, tmp_path / "out.h5", settings(compile=True))
    assert "not compiled, which is slower but works (No working C++ compiler" in caplog.text
    assert (tmp_path / "out.h5").read_bytes() == whole


@pytest.mark.parametrize(("threshold", "compiled"), [(COUNT, True), (COUNT + 1, False)])
def test_compiled_only_where_the_set_is_large_enough(
    raw, tmp_path, settings, monkeypatch, threshold, compiled
):
    monkeypatch.setitem(forward.COMPILE_FROM, "cpu", threshold)
    monkeypatch.setattr(forward, "compile_embedder", lambda module: module)
    extract(raw, tmp_path / "out.h5", settings())
    made = json.loads(embeddings.read(tmp_path / "out.h5").attributes["settings"])
    assert made["compiled"] is compiled


# What can be wrong


def test_an_embedding_that_is_not_finite_stops_the_run(raw, tmp_path, weights):
    state = torch.load(weights, weights_only=True)
    state["conv_head.weight"][0] = float("inf")
    torch.save(state, tmp_path / "bad.pth")
    settings = ExtractSettings(backbone=NAME, weights=str(tmp_path / "bad.pth"), device="cpu")
    with pytest.raises(HCLError, match=r"image \d+ is not finite"):
        extract(raw, tmp_path / "out.h5", settings)
    assert not (tmp_path / "out.h5").exists()


def test_changed_raw_data_is_noticed(tmp_path, settings):
    raw = save_raw(tmp_path / "raw.h5", random_images(COUNT))
    with tampered(raw) as file:
        file["images"][3, 0, 0, 0] += 1
    with pytest.raises(HCLError, match=r"raw\.h5.*SHA-256"):
        extract(raw, tmp_path / "out.h5", settings())


@pytest.mark.parametrize("place", [0, 5 * SIZE + 3, 8 * SIZE * 4 * 3])
def test_a_flipped_bit_in_unfinished_work_is_noticed_and_made_again(
    raw, tmp_path, settings, whole, lanes, monkeypatch, caplog, place
):
    lanes(1)
    folder = interrupted(raw, tmp_path / "out.h5", settings(batch_size=1), monkeypatch)
    rows = bytearray((folder / "rows").read_bytes())
    rows[place] ^= 1
    (folder / "rows").write_bytes(rows)
    with monkeypatch.context() as context:
        second = Stop(context, after=-1)
        extract(raw, tmp_path / "out.h5", settings(batch_size=1))
    assert second.seen == 3  # the two that were missing, and the damaged one
    assert "blocks are damaged (1," in caplog.text
    assert (tmp_path / "out.h5").read_bytes() == whole


def test_unfinished_work_that_another_process_removes_is_finished_all_the_same(
    raw, tmp_path, settings, whole, lanes, monkeypatch
):
    """Which that process does when it was faster."""
    lanes(1)
    real = extraction.embed_all

    def outrun(*arguments):
        real(*arguments)
        with monkeypatch.context() as context:
            context.setattr(extraction, "embed_all", real)
            extract(raw, tmp_path / "out.h5", settings())
        assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]

    monkeypatch.setattr(extraction, "embed_all", outrun)
    extract(raw, tmp_path / "out.h5", settings())
    assert (tmp_path / "out.h5").read_bytes() == whole
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


def test_a_full_disk_says_so_and_what_was_done_is_kept(
    raw, tmp_path, settings, whole, lanes, monkeypatch
):
    lanes(1)
    pwrite, calls = os.pwrite, []

    def full(file, data, offset):
        calls.append(offset)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")
        return pwrite(file, data, offset)

    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", full)
        with pytest.raises(HCLError, match=r"out\.h5: can.t be written: no space left"):
            extract(raw, tmp_path / "out.h5", settings(batch_size=8))
    with monkeypatch.context() as context:
        second = Stop(context, after=-1)
        extract(raw, tmp_path / "out.h5", settings(batch_size=8))
    assert second.seen == 3
    assert (tmp_path / "out.h5").read_bytes() == whole


class LostDevice(torch.AcceleratorError):
    """As torch raises it when a GPU has fallen off the bus; the real one can't be made by hand."""

    def __init__(self):
        RuntimeError.__init__(self, "CUDA error: unspecified launch failure\nSearch for …")


@pytest.fixture
def lose(monkeypatch):
    """Lanes that fail: the n-th lane after ``after[n]`` blocks. The others wait until all have.

    What it returns has an entry for each block that was embedded.
    """

    def use(after):
        make, left = extraction.make_embedders, threading.Semaphore(0)
        embedded = []

        def lane(device, embed, blocks):
            def forward(images):
                nonlocal blocks
                if blocks is None:
                    for _ in after:
                        assert left.acquire(timeout=60)
                    left.release(len(after))
                elif blocks == 0:
                    left.release()
                    raise LostDevice
                else:
                    blocks -= 1
                embedded.append(len(images))
                return embed(images)

            return device, forward

        def made(*arguments):
            embedders, compiled = make(*arguments)
            return [lane(*made, after.get(n)) for n, made in enumerate(embedders)], compiled

        monkeypatch.setattr(extraction, "make_embedders", made)
        return embedded

    return use


@pytest.mark.parametrize("after", [{0: 0}, {1: 1}, {0: 1, 2: 0}, {0: 0, 1: 2}])
@pytest.mark.parametrize("batch_size", [8, 32])  # with 32 it has blocks that are not written yet
def test_blocks_of_a_lost_device_are_done_by_the_others(
    raw, tmp_path, settings, whole, lanes, lose, caplog, after, batch_size
):
    lanes(3)
    embedded = lose(after)
    extract(raw, tmp_path / "out.h5", settings(batch_size=batch_size))
    assert (tmp_path / "out.h5").read_bytes() == whole
    assert "cpu failed (CUDA error: unspecified launch failure); the other devices" in caplog.text
    if batch_size == 8:  # each block is written at once: none is done twice
        assert len(embedded) == 6


def test_without_a_device_left_it_says_so_and_goes_on_when_run_again(
    raw, tmp_path, settings, whole, lanes, lose, monkeypatch
):
    lanes(2)
    lose({0: 1, 1: 2})
    with pytest.raises(HCLError, match=r"no device is left: cpu failed .* is kept; run again\."):
        extract(raw, tmp_path / "out.h5", settings(batch_size=8))
    monkeypatch.undo()
    lanes(2)
    again = Stop(monkeypatch, after=-1)
    extract(raw, tmp_path / "out.h5", settings(batch_size=8))
    assert again.seen == 3
    assert (tmp_path / "out.h5").read_bytes() == whole


def test_a_device_without_room_says_what_to_lower(raw, tmp_path, settings, monkeypatch):
    def full(module, images):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(forward.Embedder, "forward", full)
    with pytest.raises(HCLError, match=r"no room for 8 images at once. Lower extract\.forward"):
        extract(raw, tmp_path / "out.h5", settings())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": 31}, r"extract\.image_size: is 31; expected a whole number from 32"),
        ({"image_size": "small"}, r"extract\.image_size is 'small'"),
        ({"batch_size": 0}, r"extract\.batch_size: is 0; expected a whole number from 1"),
        ({"forward_batch": 0}, r"extract\.forward_batch: is 0; expected a whole number from 1"),
        ({"workers": -1}, r"extract\.workers: is -1; expected a whole number from 0"),
        ({"device": "gpu"}, r"extract\.device: 'gpu'; allowed: auto, cpu"),
        ({"device": "cpu:1"}, r"extract\.device: 'cpu:1'"),
        ({"device": "cuda:x"}, r"extract\.device: 'cuda:x'"),
        ({"compile": 1}, r"extract\.compile is 1; expected one of auto, true, false"),
        ({"amp": "yes"}, r"extract\.amp is 'yes'; expected true or false"),
        ({"bakbone": "x"}, r"did you mean 'backbone'"),
    ],
)
def test_impossible_settings_name_the_key(values, message):
    with pytest.raises(HCLError, match=message):
        build(ExtractSettings, values, "params.yaml", "extract")


def test_lanes(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert find_lanes("cpu") == [torch.device("cpu")] * 3
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_lanes("auto") == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert find_lanes("cuda") == find_lanes("auto")
    assert find_lanes("cuda:1") == [torch.device("cuda", 1)]
    with pytest.raises(HCLError, match="is 'cuda:2', but torch sees 2 CUDA devices"):
        find_lanes("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_lanes("auto") == [torch.device("cpu")] * 3
    with pytest.raises(HCLError, match="is 'cuda', but torch sees 0 CUDA devices"):
        find_lanes("cuda")


def test_half_precision_on_the_cpu_is_an_error(raw, tmp_path, settings):
    with pytest.raises(HCLError, match=r"extract\.amp is true, but the device is the CPU"):
        extract(raw, tmp_path / "out.h5", settings(amp=True))
