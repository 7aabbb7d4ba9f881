"""One algorithm a file, `ingredients` and `adjoints` beside them. The factories are public as `bilevel.aid`, …"""
