"""The network of the programs with pictures, and how it sees them."""

from torch import nn
from torchvision import transforms

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(128, classes)

    def forward(self, images):
        return self.head(self.backbone(images))


normalized = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])
