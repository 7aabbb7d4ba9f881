"""Public names without a row: what the library makes and returns, and abstract classes."""

RETURNED = {
    "bl.Advice",
    "bl.Counts",
    "bl.Info",
    "bl.Result",
    "bl.RunError",
    "bl.RunState",
    "bl.Status",
    "bl.Sweep",
    "bl.Code",
    "bl.data.Mnist",
    "bl.data.Omniglot",
    "bl.data.DataError",
    "bl.hooks.Diagnosis",
    "bl.hooks.Event",
    "bl.hooks.Finding",
    "bl.problems.Quadratic",  # a pytree: JAX itself makes it, with anything in it
    "bl.problems.RandomQuadratic",
    *(
        f"bl.theory.{name}"
        for name in (
            "AIDCertificate",
            "Advice",
            "Assumed",
            "AssumedBlocks",
            "Certificate",
            "Complexity",
            "Estimated",
            "Exact",
            "ITDCertificate",
            "LowerBound",
            "Plan",
            "QuadraticInstance",
            "Report",
            "Row",
            "Run",
            "Sampled",
            "StepSizes",
            "StrictInstance",
            "TwoSequenceContraction",
            "Verdict",
        )
    ),
}
ELSEWHERE = {
    "bl.Adjoint",
    "bl.Rule",
    "bl.Solver",
    "bl.adjoints.Adjoint",
    "bl.data.omniglot",  # not bundled: tests/data has archives of its own
    "bl.hooks.Hook",  # to be derived from
    "bl.theory.advise",  # bl.advise
}
