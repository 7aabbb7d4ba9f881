"""The error of all data sets."""


class DataError(ValueError):
    """A data file is missing, cut off, corrupt or another file than expected; the message names it."""
