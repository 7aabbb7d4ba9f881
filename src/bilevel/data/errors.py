"""Error of all data sets."""


class DataError(ValueError):
    """Error for a data file that is missing, cut off, corrupt or not the expected one; the message names it."""
