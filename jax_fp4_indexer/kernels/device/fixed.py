"""Objects that bundle values known before any control flow."""


class Fixed:
    """A bundle whose fields never change after construction: inside a dynamic `if` or `while` it is the same object,
    so it carries nothing."""

    def __extract_mlir_values__(self):
        return []

    def __new_from_mlir_values__(self, values):
        return self
