"""For the README's tour: ``photo.png``, an 8, and ``tomorrow/``, digits as no model has seen them.

python docs/tour.py

Zeros and ones of scikit-learn's digits, in dark on light, a folder for each class.
"""

from __future__ import annotations

from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits


def main() -> None:
    digits = load_digits()
    for number, (values, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
        pixels = (15 * values).astype("uint8")
        if digit < 2:
            folder = Path("tomorrow") / str(digit)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(255 - pixels).save(folder / f"{number}.png")
    Image.fromarray(pixels).save("photo.png")


if __name__ == "__main__":
    main()
