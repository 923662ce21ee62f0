"""Virtual data: labelled images, the same for every client; see the add-on `vhl`.

A generator returns lossless images [M, C, H, W] uint8 of any size and number of channels, and labels [M] int64, class
after class. The same parameters give the same images; a class depends on its number and the seed alone.
"""

from fedcore.data.virtual.image_set import chosen_classes, images
from fedcore.data.virtual.pixels import Images, ImageShape, Labels, OnProgress
from fedcore.data.virtual.untrained_cnns import cnn
from fedcore.data.virtual.untrained_stylegan import stylegan
from fedcore.data.virtual.upsampled_noise import noise

__all__ = ["ImageShape", "Images", "Labels", "OnProgress", "chosen_classes", "cnn", "images", "noise", "stylegan"]
