"""The embedded model as an application of Gradio, on this machine or as a Space of Hugging Face.

`python app.py` after `pip install -r requirements.txt gradio`; README.md describes the Space.
"""

from PIL import Image

from eulerlora import EulerLoRA

MODEL = EulerLoRA.default()
UNFAMILIAR = "**Unfamiliar**: the model does not know such pictures."


def answer(picture: Image.Image, samples: int) -> tuple[dict[str, float] | None, str]:
    """The mean probability of every class, and how sure it is; None for an unfamiliar picture."""
    predictions = MODEL.predict(picture, mode="stoch", samples=samples)
    if predictions.unfamiliar[0]:
        return None, UNFAMILIAR
    probabilities = dict(zip(MODEL.classes, predictions.probabilities[0].tolist(), strict=True))
    return probabilities, (
        f"Entropy {predictions.entropy[0]:.3f} nats; mutual information of class and trajectory "
        f"{predictions.mutual_information[0]:.3f} nats."
    )


if __name__ == "__main__":
    import gradio

    gradio.Interface(
        answer,
        [gradio.Image(type="pil"), gradio.Slider(1, 16, value=4, step=1, label="samples")],
        [gradio.Label(label="classes"), gradio.Markdown()],
        title="EulerLoRA",
        description="For demonstration and research only; not a medical device.",
        flagging_mode="never",
    ).launch()
