"""Writes network.pt, which plain.cc and sharded.cc go on training: a scripted network for MNIST."""
import torch
from torch import nn

network = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(),
                        nn.Linear(8 * 12 * 12, 32), nn.ReLU(), nn.Linear(32, 10))
torch.jit.script(network).save("network.pt")
