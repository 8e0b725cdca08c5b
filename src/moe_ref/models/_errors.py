"""What goes wrong when a checkpoint is read."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read as the layer its configuration describes.

    The message is one line: the file, the tensor or key, what was expected and what was found.
    """
