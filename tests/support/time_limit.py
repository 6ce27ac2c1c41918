"""Time limits that come after an event, although a test cannot know how long a start takes."""


def after(begin, first=4):
    """What `begin(limit)` returns for the first limit of 4, 8, 16... seconds that comes after its event: it returns None before."""
    limit = first
    while (begun := begin(limit)) is None:
        limit *= 2
    return begun
