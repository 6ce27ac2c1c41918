"""Prints torchvision's numbers for torchvision_numbers.txt: torchvision_numbers.py > tests/data/torchvision_numbers.txt

Needs torchvision (0.29.2 on torch 2.15 on a processor with FMA made the file). A line is a call: function, picture, its height
and width, dtype, the arguments after a colon, and a number made of all values of the result. torchvision_test.cc makes the same
calls.
"""

import torch
import torchvision
from torchvision.transforms import v2
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F


def picture(kind, height, width):
    """bytes_picture of torchvision_test.cc"""
    y, x = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
    c = torch.arange(1 if kind == "grey" else 3).view(-1, 1, 1)
    values = (y * y * 7 + x * 13 + c * 50 + x * y * (c + 1)) % 256
    if kind == "flat":  # one channel is even, and the others have few values
        values = torch.where(c == 1, 90, values // 80 * 30 + 40)
    return values.to(torch.uint8)


def fill_of(values):
    return None if not values else [float(value) for value in values]


def affine_options(values):
    """interpolation, whether there is a center, its x and y, and the fill"""
    interpolation, has_center, x, y, *fill = values
    return {"interpolation": InterpolationMode.BILINEAR if interpolation else InterpolationMode.NEAREST,
            "center": [x, y] if has_center else None, "fill": fill_of(fill)}


def resized_crop(image, height, width, *bounds, interpolation=InterpolationMode.BILINEAR):
    """bounds of scale and of ratio that leave one part alone"""
    return v2.RandomResizedCrop((int(height), int(width)), bounds[:2], bounds[2:], interpolation)(image)


def nearest_crop(image, *sizes):
    return resized_crop(image, *sizes, interpolation=InterpolationMode.NEAREST)


CALLS = {
    "adjust_brightness": F.adjust_brightness,
    "adjust_contrast": F.adjust_contrast,
    "adjust_saturation": F.adjust_saturation,
    "adjust_hue": F.adjust_hue,
    "adjust_sharpness": F.adjust_sharpness,
    "rgb_to_grayscale": lambda image, channels: F.rgb_to_grayscale(image, int(channels)),
    "invert": F.invert,
    "posterize": lambda image, bits: F.posterize(image, int(bits)),
    "solarize": F.solarize,
    "autocontrast": F.autocontrast,
    "equalize": F.equalize,
    "gaussian_blur": lambda image, width, height, x, y: F.gaussian_blur(image, [int(width), int(height)], [x, y]),
    "erase": lambda image, top, left, height, width, *v: F.erase(
        image, int(top), int(left), int(height), int(width), torch.tensor(v)[:, None, None]),
    "random_resized_crop": resized_crop,
    "random_resized_crop_nearest": nearest_crop,
    "rotate": lambda image, angle, *options: F.rotate(image, angle, **affine_options(options)),
    "affine": lambda image, angle, x, y, scale, shear_x, shear_y, *options: F.affine(
        image, angle, [x, y], scale, [shear_x, shear_y], **affine_options(options)),
}


def arguments(unit):
    """Of all calls; `unit` is the largest value of the dtype."""
    for factor in 0, 0.3, 0.5, 1, 1.3, 1.7, 2.5:
        for name in "brightness", "contrast", "saturation", "sharpness":
            yield f"adjust_{name}", (factor,)
    for shift in -0.5, -0.13, 0, 0.05, 0.25, 0.5:
        yield "adjust_hue", (shift,)
    for channels in 1, 3:
        yield "rgb_to_grayscale", (channels,)
    for name in "invert", "autocontrast", "equalize":
        yield name, ()
    for bits in 0, 1, 3, 7, 8:
        yield "posterize", (bits,)
    for threshold in 0, 0.25, 0.4, 1:
        yield "solarize", (threshold * unit,)
    for blur in (3, 3, 0.1, 0.1), (3, 3, 2, 2), (5, 3, 0.8, 1.4), (1, 7, 1, 2), (9, 9, 1.7, 1.7):
        yield "gaussian_blur", blur
    yield "erase", (2, 3, 4, 5, 0)
    yield "erase", (0, 0, 9, 1, 0.5 * unit)
    for size in (7, 9), (30, 20):  # no draw fits, so that the part is in the middle
        for bounds in (1, 1, 0.2, 0.25), (1, 1, 4, 5), (4, 4, 0.5, 2):
            yield "random_resized_crop", (*size, *bounds)
            yield "random_resized_crop_nearest", (*size, *bounds)
    for fill in (), (0,), (0.3 * unit,):
        for interpolation in 0, 1:
            for angle in 0, 90, 180, 270, -30, 45.5, 123.4, 359:
                yield "rotate", (angle, interpolation, 0, 0, 0, *fill)
            yield "rotate", (90, interpolation, 1, 3, 4.5, *fill)
            yield "rotate", (-20, interpolation, 1, 0, 0, *fill)
            yield "affine", (0, 0, 0, 1, 16.7, 0, interpolation, 1, 0, 0, *fill)
            yield "affine", (0, 0, 0, 1, 0, -16.7, interpolation, 1, 0, 0, *fill)
            yield "affine", (0, -3, 2, 1, 0, 0, interpolation, 0, 0, 0, *fill)
            yield "affine", (33, 1.5, -2, 0.7, 10, -5, interpolation, 0, 0, 0, *fill)


def augmentations(policy, image, bins, magnitudes):
    """The changes that a policy can make, by their place in it, and what they make of the image."""
    for place, (name, (row, signed)) in enumerate(policy._AUGMENTATION_SPACE.items()):
        row = row(bins, *image.shape[-2:])
        sizes = [0.0] if row is None else [float(row[which]) for which in magnitudes]
        for size in sizes:
            for sign in (1, -1) if signed else (1,):
                changed = policy._apply_image_or_video_transform(
                    image, name, sign * size, interpolation=policy.interpolation, fill=policy._fill)
                yield place, sign * size, changed


def step_odds(policy, image, name, probability, which):
    """What a step of AutoAugment may make of an image, and how often."""
    row, signed = policy._AUGMENTATION_SPACE[name]
    row = row(10, *image.shape[-2:])
    size = 0.0 if row is None else float(row[which])
    yield image, 1 - probability
    for sign in (1, -1) if signed else (1,):
        yield policy._apply_image_or_video_transform(
            image, name, sign * size, interpolation=policy.interpolation, fill=policy._fill), probability / (2 if signed else 1)


def pair_odds(policy, image):
    """The numbers of all pictures that AutoAugment may make, and how often it makes them."""
    odds = {}
    for first, second in policy._policies:
        for half, often in step_odds(policy, image, *first):
            for whole, more in step_odds(policy, half, *second):
                number = number_of(whole)
                odds[number] = odds.get(number, 0) + often * more / len(policy._policies)
    return {number: often for number, often in odds.items() if often > 0}


def number_of(values):
    weights = torch.arange(values.numel()) * 7919 % 1009 + 1
    return f"{float((values.flatten().double() * weights).sum()):.10g}"


def main():
    print(f"# torchvision {torchvision.__version__} on torch {torch.__version__}; written by torchvision_numbers.py")
    torch.set_num_threads(1)
    for kind, height, width in ("rgb", 13, 17), ("rgb", 40, 40), ("grey", 12, 16), ("flat", 21, 18), ("rgb", 2, 12):
        for dtype in torch.uint8, torch.float32:
            image = picture(kind, height, width)
            image = image if dtype == torch.uint8 else image.float() / 255
            for name, values in arguments(255 if dtype == torch.uint8 else 1):
                if height == 2 and name not in ("adjust_sharpness", "adjust_hue", "rotate", "equalize"):
                    continue
                if name == "erase" and height < 12:
                    continue
                result = CALLS[name](image, *values)
                print(name, kind, height, width, "bytes" if dtype == torch.uint8 else "floats", ":",
                      *(f"{value:.10g}" for value in values), "=", number_of(result))
    image = picture("rgb", 24, 20)
    for name, policy, magnitudes in (("rand_augment", v2.RandAugment(), [9]), ("trivial_augment_wide", v2.TrivialAugmentWide(), range(31))):
        for place, size, changed in augmentations(policy, image, 31, magnitudes):
            print(name, "rgb", 24, 20, "bytes", ":", place, f"{size:.6g}", "=", number_of(changed))
    for name in "IMAGENET", "CIFAR10", "SVHN":
        for number, often in pair_odds(v2.AutoAugment(v2.AutoAugmentPolicy[name]), image).items():
            print(f"auto_augment_{name.lower()}", "rgb", 24, 20, "bytes", ":", f"{often:.6g}", "=", number)


if __name__ == "__main__":
    main()
