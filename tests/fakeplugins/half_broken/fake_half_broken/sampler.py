"""The half that works: always the likeliest token."""

from deepinfer_core import hookimpl


class Likeliest:
    def sample(self, logits, draws):
        return [int(row.argmax()) for row in logits]


@hookimpl
def deepinfer_sampler_create(name, params):
    return Likeliest()
