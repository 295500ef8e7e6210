"""Fashion-MNIST: grayscale images of clothing, 28 x 28 pixels (Xiao, Rasul and Vollgraf 2017)."""

from pathlib import Path

from qkv.datasets.columns import ACCURACY
from qkv.datasets.dataset import DatasetConfig, ImageDataset
from qkv.datasets.dataset_cache import data_files
from qkv.datasets.formats.archive import unpack
from qkv.datasets.formats.images import LabeledImages, parse_idx
from qkv.registry import register

NAMES = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
HELD_OUT = 5000  # last training images, used for validation

FILES = data_files(  # no URL: the source serves archives with different bytes
    "fashion_mnist",
    {
        "train-images-idx3-ubyte.gz": (26421856, "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"),
        "train-labels-idx1-ubyte.gz": (29491, "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"),
        "t10k-images-idx3-ubyte.gz": (4422079, "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"),
        "t10k-labels-idx1-ubyte.gz": (5125, "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"),
    },
)


@register("dataset", "fashion_mnist")
class FashionMNIST(DatasetConfig):
    """Grayscale images of clothing."""

    summary = "grayscale images of clothing, 28 x 28 pixels, ten classes: 60,000 for training, 10,000 for test"
    license = "MIT, Zalando SE"
    origin = "it is in the Debian package dataset-fashion-mnist, under usr/share/datasets/fashion-mnist."
    files = FILES
    dataset_class = ImageDataset
    columns = ACCURACY

    def read(self) -> ImageDataset:
        images, labels, test_images, test_labels = self.fetch()
        train = _labeled_images(images, labels)
        test = _labeled_images(test_images, test_labels)
        return ImageDataset({"train": train[:-HELD_OUT], "valid": train[-HELD_OUT:], "test": test})


def _labeled_images(images: Path, labels: Path) -> LabeledImages:
    pixels, classes = parse_idx(unpack(images), str(images), 3), parse_idx(unpack(labels), str(labels), 1)
    return LabeledImages(pixels[:, None], classes.astype("int64"), NAMES)
