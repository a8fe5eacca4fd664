"""Numbers with their noun, as people read them."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 node` or `1,200 nodes`; `plural` is for nouns that take more than an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
