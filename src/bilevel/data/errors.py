"""Error of all data sets."""


class DataError(ValueError):
    """Data file is missing, cut off, corrupt or another file than expected; the message names it."""
