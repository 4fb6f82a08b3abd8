"""What model cards say of each data set: use, misuse, limits and licence."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Texts:
    """intended: a paragraph. misuses, limits: items of a list. licence: of the training images."""

    intended: str
    misuses: tuple[str, ...]
    limits: tuple[str, ...]
    licence: str


TINY_IMAGES = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
LICENCES = {
    "ham10000": (
        "HAM10000 (Tschandl, Rosendahl and Kittler, Scientific Data 5, 180161, 2018), "
        "CC BY-NC 4.0: these weights are for non-commercial use, with attribution."
    ),
    "tiny-imagenet": (
        "Tiny ImageNet (Stanford CS231n, 2015), a part of ImageNet (Deng et al., CVPR 2009), for "
        "non-commercial research."
    ),
    "cifar10": f"CIFAR-10 ({TINY_IMAGES}).",
    "cifar100": f"CIFAR-100 ({TINY_IMAGES}).",
    "svhn": (
        "SVHN (Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, "
        "2011), for non-commercial use."
    ),
    "imagefolder": "That of the training images, which are not part of this checkpoint.",
}
INTERVALS = (
    "The intervals are of these test images. They leave out what another seed of training, "
    "another camera or another clinic would change."
)
HAM10000 = Texts(
    intended=(
        "For demonstration and research: to show how an answer can say how sure it is. It is not "
        "a medical device and has not been clinically validated."
    ),
    misuses=(
        "to decide on anyone's care, alone or as a second reader;",
        "to rule out melanoma or any other cancer: see how many it misses, by class below;",
        "on anything but dermatoscopic pictures: no phone or clinical photographs, no histology;",
        "on conditions outside the seven labels: it gives one of the seven all the same, and the "
        "out-of-distribution flag misses many such pictures;",
        "on skin types, ages or body sites of which it has seen few: HAM10000 is mostly from "
        "light skin, and by group below says how few some are;",
        "to count how frequent a condition is: the shares of the classes here are those of an "
        "archive, not of a clinic;",
        "commercially: the licence of its data forbids it.",
    ),
    limits=(
        "Test and training images come from the same two sites, in Vienna and Queensland, and "
        "their cameras. Elsewhere expect worse.",
        "53% of the labels of HAM10000 are from histology; the rest are from follow-up, expert "
        "consensus or confocal microscopy, nearly all of them `nv`.",
        INTERVALS,
        "Small classes and groups have wide intervals: read those before the figures.",
        "A threshold that keeps 95% of familiar pictures says nothing of how many unfamiliar ones "
        "it flags: that is in the table of out-of-distribution images, for those sets alone.",
    ),
    licence=LICENCES["ham10000"],
)


def texts_of(kind: str) -> Texts:
    """The texts for a data set of a kind (`training.recipe.schema.DataSettings`)."""
    if kind == "ham10000":
        return HAM10000
    return Texts(
        intended="For research on images like those it was trained on.",
        misuses=(
            "where a wrong answer does harm: validate it on your own data before you rely on one;",
            "on images unlike those it was trained on: it gives one of its labels all the same.",
        ),
        limits=(INTERVALS,),
        licence=LICENCES[kind],
    )
