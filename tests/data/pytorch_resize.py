"""Prints, for some sizes, a number made of all values of a picture resized by torch.nn.functional.interpolate, blended and not."""

import torch


def picture(height, width):
    y, x, c = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1), torch.arange(3).view(-1, 1, 1)
    return ((y * y * 7 + x * 13 + c * 50 + x * y) % 256).to(torch.uint8)


for height, width, to_height, to_width in (400, 500, 224, 224), (50, 40, 64, 100), (33, 47, 33, 10):
    image = picture(height, width)
    for values in image, image.float() / 255:
        for how in {"mode": "bilinear", "antialias": True}, {"mode": "nearest"}:
            resized = torch.nn.functional.interpolate(values[None], (to_height, to_width), **how)[0]
            # Floats as the bits that they are.
            bits = resized.contiguous() if resized.dtype == torch.uint8 else resized.contiguous().view(torch.int32)
            print(int((bits.long().flatten() * torch.arange(1, bits.numel() + 1) % 1000003).sum()))
