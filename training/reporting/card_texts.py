"""Fixed texts of model cards: intended use, misuse, limits and licence of each data set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CardTexts:
    """intended: a paragraph. misuses, limits: list items. licence: of the training images."""

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
    "imagefolder": (
        "The licence of the training images applies; the checkpoint does not contain the images."
    ),
}
INTERVALS = (
    "The confidence intervals cover the choice of test images. They do not cover another training "
    "seed, another camera or another clinic."
)
HAM10000 = CardTexts(
    intended=(
        "Demonstration and research on uncertainty estimation in image classification. The model "
        "is not a medical device and has not been clinically validated."
    ),
    misuses=(
        "decisions about anyone's care, alone or as a second reader;",
        "exclusion of melanoma or any other cancer: section By class gives the share of missed "
        "images;",
        "images other than dermatoscopic images, such as phone photographs, clinical photographs "
        "or histology;",
        "conditions outside the seven classes: the model always assigns one of the seven, and the "
        "flags for out-of-distribution images miss some of them;",
        "skin types, ages or body sites with few training images: HAM10000 is mostly from light "
        "skin, and section By group gives the number of test images;",
        "estimates of prevalence: the class frequencies are those of an archive, not of a clinic;",
        "commercial use: the licence of the data forbids it.",
    ),
    limits=(
        "Test and training images come from the same two sites (Vienna and Queensland) and "
        "cameras. Expect lower accuracy elsewhere.",
        "53% of the HAM10000 labels are from histology; the others are from follow-up, expert "
        "consensus or confocal microscopy, and almost all of these are `nv`.",
        INTERVALS,
        "Small classes and groups have wide intervals: read the interval before the value.",
        "Each OOD threshold keeps 95% of in-distribution images. This does not determine the share "
        "of out-of-distribution images that it flags; section Out-of-distribution images gives "
        "that share for the listed sets only, and says which of them resemble what training was "
        "shown.",
        "The flags miss some changes of camera and light: the sets of group `shifted` show "
        "how the accuracy falls and how many images are flagged.",
    ),
    licence=LICENCES["ham10000"],
)


def texts_of(kind: str) -> CardTexts:
    """Returns the texts for a kind of data set (`training.recipe.schema.DataSettings`)."""
    if kind == "ham10000":
        return HAM10000
    return CardTexts(
        intended="Research on images similar to the training images.",
        misuses=(
            "applications in which a wrong prediction causes harm: validate the model on your own "
            "data first;",
            "images unlike the training images: the model always assigns one of its labels.",
        ),
        limits=(INTERVALS,),
        licence=LICENCES[kind],
    )
