from zoo.table import Row

ROWS: list[Row] = []
