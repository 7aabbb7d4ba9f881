"""Error of all data sets."""


class DataError(ValueError):
    """Error for a data file that is missing, cut off, corrupt or unexpected; the message names it."""
