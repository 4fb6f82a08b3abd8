"""Import of other libraries' Vision Transformers as backbones."""
