"""Numbers of things, for a reader."""


def counted(number: float | int, word: str, form: str = "") -> str:
    """Say how many there are.

    Args:
        number: how many.
        word: one of them, in the singular; an "s" makes it the plural.
        form: of the number, as in a format string.

    Returns:
        "1 check", "2 checks"; "1,024 tokens" in the form ",".
    """
    return f"{number:{form}} {word}{'' if number == 1 else 's'}"
