"""One algorithm a file, `parts` and `adjoints` beside them. The factories are public as `bilevel.aid`, …"""
